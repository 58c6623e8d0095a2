"""`accord relay why | deadletters | outbox | retention`: what became of messages."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from accord.cli.arguments import printable
from accord.cli.gateway_outbox import clock_lines
from accord.cli.output import App, Cli
from accord.cli.planes import Instance, ask_relay, format_millis

app = App()
deadletters = App(
    no_args_is_help=True, epilog="Example: accord relay deadletters list --instance echo"
)

outbox = App(no_args_is_help=True, epilog="Example: accord relay outbox list --dead")
retention = App(no_args_is_help=True, epilog="Example: accord relay retention show")


@app.command(epilog="Example: accord relay why 01JQ8Z6S3N4TP7XGW5KE2RHV9B")
def why(
    cli: Cli,
    event: Annotated[
        str | None,
        typer.Argument(help="The platform's id of it, or ours (default: list the latest)."),
    ] = None,
    last: Annotated[int, typer.Option(min=1, max=1000, help="How many of the latest.")] = 20,
) -> None:
    """Show who received a message and who did not, with the verdict of every layer of the gate."""
    if event is None:
        latest = ask_relay(cli, "why/latest", last=last)
        cli.emit(latest, map(_latest_line, latest["events"]))
        return
    explained = ask_relay(cli, "why", event=event)
    cli.emit(explained, _as_text(explained))


@deadletters.command("list", epilog="Example: accord relay deadletters list --instance echo")
def list_letters(
    cli: Cli,
    instance: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 100,
) -> None:
    """List what could not be delivered to agents, and replies that could not be sent, with reasons.

    The newest first; texts are never shown. `accord relay outbox` retries and drops replies.
    """
    found = ask_relay(cli, "letters/list", instance=instance, limit=limit)
    cli.emit(found, [*map(_letter_line, found["letters"]), *map(_reply_line, found["replies"])])


def _letter_line(letter: dict[str, Any]) -> tuple[str, ...]:
    return (
        printable(letter["instance"]),
        str(letter["seq"]),
        format_millis(letter["dead_at"]),
        f"{printable(letter['platform'])} {letter['kind']}",
        f"{letter['deliveries']} deliveries",
        printable(letter["reason"]),
        letter["event"],
    )


def _reply_line(reply: dict[str, Any]) -> tuple[str, ...]:
    return (
        printable(reply["instance"]),
        str(reply["number"]),
        format_millis(reply["ended_at"] or reply["created_at"]),
        f"{printable(reply['platform'] or '')} {reply['op']}".strip(),
        f"{reply['attempts']} attempts",
        printable(f"{reply['state']}: {reply['error'] or ''}"),
        printable(reply["request_id"]),
    )


Numbers = Annotated[list[int] | None, typer.Argument(help="Their numbers, as `list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="Every one of the agent's.")]


@deadletters.command(epilog="Example: accord relay deadletters replay echo 17 18")
def replay(cli: Cli, instance: Instance, numbers: Numbers = None, all_: All = False) -> None:
    """Put dead letters at the end of their agent's queue, to be delivered again."""
    done = ask_relay(cli, "letters/replay", instance=instance, numbers=_chosen(numbers, all_))
    cli.emit(done, f"{done['replayed']} will be delivered again.")


@deadletters.command(epilog="Example: accord relay deadletters drop echo --all")
def drop(cli: Cli, instance: Instance, numbers: Numbers = None, all_: All = False) -> None:
    """Delete dead letters permanently."""
    done = ask_relay(cli, "letters/drop", instance=instance, numbers=_chosen(numbers, all_))
    cli.emit(done, f"{done['dropped']} dropped.")


def _chosen(numbers: Sequence[int] | None, is_all: bool) -> list[int] | None:
    if bool(numbers) == is_all:
        raise typer.BadParameter("give their numbers, or --all")
    return None if is_all else list(numbers or ())


Actions = Annotated[list[int], typer.Argument(help="Their numbers, as `list` shows them.")]


@outbox.command("list", epilog="Example: accord relay outbox list --instance echo --dead")
def list_actions(
    cli: Cli,
    instance: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    dead: Annotated[
        bool | None, typer.Option("--dead/--waiting", help="Only those given up, or only the rest.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 100,
) -> None:
    """List replies of agents that wait to be sent or were given up, and why; never their text."""
    found = ask_relay(cli, "outbox/list", instance=instance, limit=limit, dead=dead)
    cli.emit(
        found,
        (
            (
                str(each["number"]),
                printable(each["instance"]),
                format_millis(each["created_at"]),
                f"{each['op']} {printable(each['lane'])}",
                each["state"],
                f"{each['attempts']} attempts",
                printable(each["error"] or ""),
            )
            for each in found["actions"]
        ),
    )


@outbox.command("retry", epilog="Example: accord relay outbox retry 17 18")
def retry_actions(cli: Cli, numbers: Actions) -> None:
    """Try replies again now, also those given up; one whose outcome is unknown may be doubled."""
    done = ask_relay(cli, "outbox/retry", numbers=numbers)
    cli.emit(done, f"{len(done['retried'])} will be tried again.")


@outbox.command("drop", epilog="Example: accord relay outbox drop 17")
def drop_actions(cli: Cli, numbers: Actions) -> None:
    """Delete replies for good; one that is being sent now is left alone."""
    done = ask_relay(cli, "outbox/drop", numbers=numbers)
    cli.emit(done, f"{len(done['dropped'])} dropped.")


@retention.command("show", epilog="Example: accord relay retention show")
def show_retention(cli: Cli) -> None:
    """Show when old data was last deleted, and whether the clock is trusted to do it again."""
    told = ask_relay(cli, "retention/show")
    cli.emit(told, clock_lines(told))


@retention.command("confirm", epilog="Example: accord relay retention confirm")
def confirm_clock(cli: Cli) -> None:
    """Say that the connector's clock is right, so that old data is deleted by it again.

    What is old by this clock goes within a minute; look at the time that `show` prints first.
    """
    told = ask_relay(cli, "retention/confirm")
    cli.emit(told, clock_lines(told))


def _latest_line(explained: dict[str, Any]) -> tuple[str, ...]:
    delivered = ", ".join(map(printable, _receivers(explained)))
    return (
        explained["event"],
        explained["received_at"],
        printable(explained["platform"]),
        "not linked" if explained["counted"] else printable(explained["author"] or "nobody"),
        delivered or _refusal(explained),
    )


def _receivers(explained: dict[str, Any]) -> list[str]:
    """Who received an event, also later; with a word where it still waits."""
    found = []
    for each in explained["candidates"]:
        state = None if each["standing"] is None else each["standing"]["state"]
        if state == "parked":
            found.append(f"{each['instance']} (parked)")
        elif state not in (None, "refused"):
            found.append(each["instance"])
    return found


def _refusal(explained: dict[str, Any]) -> str:
    """The rule that kept an event from everybody; of several agents, from the first."""
    said = [*explained["verdicts"], *(v for e in explained["candidates"] for v in e["verdicts"])]
    return next(str(verdict["rule"]) for verdict in said if not verdict["passed"])


def _as_text(explained: dict[str, Any]) -> Iterator[str]:
    to = ", ".join(map(printable, _receivers(explained)))
    yield f"{explained['event']}: {f'delivered to {to}' if to else 'delivered to nobody'}"
    if explained["counted"]:
        yield f"  {printable(explained['platform'])}, received {explained['received_at']}"
        yield "  Its author is linked to no agent, so it was only counted."
        yield "  Who wrote it, where, and what is not recorded."
        yield from _verdict_lines(explained["verdicts"], "  ")
        return
    yield (
        f"  {printable(explained['platform'])} {printable(explained['event_id'])}, received "
        f"{explained['received_at']}, by {printable(explained['author'] or 'nobody')} "
        f"in {printable(explained['chat_id'])}"
    )
    if explained["tenant"] is not None:
        yield f"  tenant {printable(explained['tenant'])}"
    if explained["trace_id"] is not None:
        yield f"  trace {explained['trace_id']}"
    yield from _verdict_lines(explained["verdicts"], "  ")
    for candidate in explained["candidates"]:
        standing = candidate["standing"]
        state = "not delivered" if standing is None else _STATES[standing["state"]]
        why = f": {printable(standing['reason'])}" if standing and standing["reason"] else ""
        yield f"  {printable(candidate['instance'])} ({state}{why})"
        yield from _verdict_lines(candidate["verdicts"], "    ")
        for later in explained["later"]:
            if later["instance"] == candidate["instance"]:
                yield f"    decided again {later['decided_at']}"
                yield from _verdict_lines(later["verdicts"], "    ")


def _verdict_lines(verdicts: Sequence[dict[str, Any]], indent: str) -> Iterator[str]:
    for each in verdicts:
        mark = "yes" if each["passed"] else "?  " if each["unknown"] else "no "
        yield f"{indent}{each['layer']:<11} {mark}  {each['sentence']} [{each['rule']}]"


_STATES = {
    "pending": "waits to be sent",
    "sent": "sent, not acknowledged yet",
    "acked": "acknowledged",
    "dead": "a dead letter",
    "parked": "parked",
    "refused": "refused later",
}
