"""`accord relay why | deadletters | outbox`: what became of a message, and what waits or failed."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli.arguments import printable
from accord.cli.context import App, Cli
from accord.cli.planes import Instance, format_millis, with_relay

if TYPE_CHECKING:
    from accord.relay.connector.connector import Connector
    from accord.relay.connector.dead_letters import DeadLetter
    from accord.relay.connector.ingest import Explanation
    from accord.relay.connector.outbox_store import OutboxEntry
    from accord.relay.rules.verdicts import GateVerdict


app = App()
deadletters = App(
    no_args_is_help=True, epilog="Example: accord relay deadletters list --instance echo"
)

outbox = App(no_args_is_help=True, epilog="Example: accord relay outbox list --dead")

# How many letters one unit of work takes up again, so that a running connector gets its turn.
_AT_ONCE = 500


@app.command(epilog="Example: accord relay why 01JQ8Z6S3N4TP7XGW5KE2RHV9B")
def why(
    cli: Cli,
    event: Annotated[
        str | None,
        typer.Argument(help="The platform's id of it, or ours (default: list the latest)."),
    ] = None,
    last: Annotated[int, typer.Option(min=1, max=1000, help="How many of the latest.")] = 20,
) -> None:
    """Tell who received a message and who did not, with the verdict of every layer of the gate."""
    if event is None:
        _show_latest(cli, with_relay(cli, lambda found: _latest_events(found, last)))
        return
    explained = with_relay(cli, lambda found: found.delivery.why(event))
    if explained is None:
        from accord.relay.errors import Code, RelayError

        raise RelayError(
            Code.NOT_FOUND,
            "nothing is known of this event",
            where=printable(event),
            mend="`accord relay why` lists the latest; records are kept as long as the journal",
        )
    cli.emit(_as_json(explained), _as_text(explained))


@deadletters.command("list", epilog="Example: accord relay deadletters list --instance echo")
def list_letters(
    cli: Cli,
    instance: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
) -> None:
    """List what could not be delivered to agents, and replies that could not be sent, with reasons.

    The newest first, and never what it says. `accord relay outbox` retries and drops replies.
    """

    async def both(connector: "Connector") -> tuple[list["DeadLetter"], list["OutboxEntry"]]:
        delivery = connector.delivery
        letters = await delivery.dead_letters(instance, limit)
        return letters, await delivery.outbox(instance, limit, dead=True)

    letters, replies = with_relay(cli, both)
    cli.emit(
        {
            "letters": [asdict(each) for each in letters],
            "replies": [asdict(each) for each in replies],
        },
        [*map(_letter_line, letters), *map(_reply_line, replies)],
    )


def _letter_line(letter: "DeadLetter") -> tuple[str, ...]:
    return (
        printable(letter.instance),
        str(letter.seq),
        format_millis(letter.dead_at),
        f"{printable(letter.platform)} {letter.kind}",
        f"{letter.deliveries} deliveries",
        letter.reason,
        letter.event,
    )


def _reply_line(reply: "OutboxEntry") -> tuple[str, ...]:
    return (
        printable(reply.instance),
        str(reply.number),
        format_millis(reply.ended_at or reply.created_at),
        f"{printable(reply.platform or '')} {reply.op}".strip(),
        f"{reply.attempts} attempts",
        printable(f"{reply.state}: {reply.error or ''}"),
        printable(reply.request_id),
    )


Numbers = Annotated[list[int] | None, typer.Argument(help="Their numbers, as `list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="Every one of the agent's.")]


@deadletters.command(epilog="Example: accord relay deadletters replay echo 17 18")
def replay(cli: Cli, instance: Instance, numbers: Numbers = None, all_: All = False) -> None:
    """Put dead letters at the end of their agent's queue, to be delivered again."""

    async def again(connector: "Connector") -> int:
        there = await _chosen(connector, instance, numbers, all_)
        for some in _batches(there):
            await connector.delivery.replay(instance, some)
        return len(there)

    count = with_relay(cli, again)
    cli.emit({"instance": instance, "replayed": count}, f"{count} will be delivered again.")


@deadletters.command(epilog="Example: accord relay deadletters drop echo --all")
def drop(cli: Cli, instance: Instance, numbers: Numbers = None, all_: All = False) -> None:
    """Forget dead letters for good."""

    async def forget(connector: "Connector") -> int:
        there = await _chosen(connector, instance, numbers, all_)
        for some in _batches(there):
            await connector.delivery.drop(instance, some)
        return len(there)

    count = with_relay(cli, forget)
    cli.emit({"instance": instance, "dropped": count}, f"{count} dropped.")


async def _chosen(
    connector: "Connector", instance: str, numbers: Sequence[int] | None, is_all: bool
) -> list[int]:
    """The letters that are meant, all of which are there."""
    from accord.relay.connector.dead_letters import letter_numbers
    from accord.relay.errors import Code, RelayError

    if bool(numbers) == is_all:
        raise typer.BadParameter("give their numbers, or --all")
    there = await connector.store.read(lambda c: letter_numbers(c, instance))
    if is_all:
        return there
    wanted = sorted(set(numbers or ()))
    if missing := sorted(set(wanted) - set(there)):
        raise RelayError(
            Code.NOT_FOUND,
            f"the agent has no dead letter {missing[0]}",
            where=instance,
            mend="`accord relay deadletters list` shows them",
        )
    return wanted


def _batches(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE))


Actions = Annotated[list[int], typer.Argument(help="Their numbers, as `list` shows them.")]


@outbox.command("list", epilog="Example: accord relay outbox list --instance echo --dead")
def list_actions(
    cli: Cli,
    instance: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    dead: Annotated[
        bool | None, typer.Option("--dead/--waiting", help="Only those given up, or only the rest.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
) -> None:
    """List replies of agents that wait to be sent or were given up, and why; never their text."""
    found = with_relay(cli, lambda connector: connector.delivery.outbox(instance, limit, dead=dead))
    cli.emit(
        {"actions": [asdict(each) for each in found]},
        (
            (
                str(each.number),
                printable(each.instance),
                format_millis(each.created_at),
                f"{each.op} {printable(each.lane)}",
                each.state,
                f"{each.attempts} attempts",
                printable(each.error or ""),
            )
            for each in found
        ),
    )


@outbox.command("retry", epilog="Example: accord relay outbox retry 17 18")
def retry_actions(cli: Cli, numbers: Actions) -> None:
    """Try replies again now, also those given up; one whose outcome is unknown may be doubled."""
    done = with_relay(cli, lambda connector: _change_outbox(connector, numbers, is_retry=True))
    cli.emit({"retried": done}, f"{len(done)} will be tried again.")


@outbox.command("drop", epilog="Example: accord relay outbox drop 17")
def drop_actions(cli: Cli, numbers: Actions) -> None:
    """Delete replies for good; one that is being sent now is left alone."""
    done = with_relay(cli, lambda connector: _change_outbox(connector, numbers, is_retry=False))
    cli.emit({"dropped": done}, f"{len(done)} dropped.")


async def _change_outbox(
    connector: "Connector", numbers: Sequence[int], *, is_retry: bool
) -> list[int]:
    from accord.relay.connector.outbox_store import require_numbers

    await connector.store.read(lambda c: require_numbers(c, numbers))
    delivery = connector.delivery
    change = delivery.retry_actions if is_retry else delivery.drop_actions
    return await change(numbers)


async def _latest_events(connector: "Connector", limit: int) -> list["Explanation"]:
    from accord.relay.connector.ingest import latest_events

    ids = await connector.store.read(lambda c: latest_events(c, limit))
    found = [await connector.delivery.why(each) for each in ids]
    return [each for each in found if each is not None]


def _show_latest(cli: Cli, found: Sequence["Explanation"]) -> None:
    cli.emit(
        {"events": [_as_json(each) for each in found]},
        (
            (
                each.event,
                format_millis(each.received_at),
                printable(each.recorded.event.platform),
                printable(each.recorded.event.author or "nobody"),
                printable(", ".join(each.recorded.decision.deliveries)) or _refusal(each).rule,
            )
            for each in found
        ),
    )


def _refusal(explained: "Explanation") -> "GateVerdict":
    """What kept an event from everybody; of several candidates, what kept it from the first."""
    decision = explained.recorded.decision
    said = [*decision.verdicts, *(v for each in decision.candidates for v in each.verdicts)]
    return next(verdict for verdict in said if not verdict.passed)


def _as_json(explained: "Explanation") -> dict[str, Any]:
    event, _, decision = explained.recorded
    standings = {each.instance: each for each in explained.statuses}
    return {
        "event": explained.event,
        "event_id": event.event_id,
        "received_at": format_millis(explained.received_at),
        "trace_id": explained.trace_id,
        "platform": event.platform,
        "bot_id": event.bot_id,
        "scope_id": event.scope_id,
        "chat_id": event.chat_id,
        "author": event.author,
        "tenant": decision.tenant,
        "verdicts": [_verdict(each) for each in decision.verdicts],
        "candidates": [
            {
                "instance": each.instance,
                "delivers": each.delivers,
                "verdicts": [_verdict(verdict) for verdict in each.verdicts],
                "standing": asdict(standings[each.instance])
                if each.instance in standings
                else None,
            }
            for each in decision.candidates
        ],
        "deliveries": list(decision.deliveries),
    }


def _verdict(verdict: "GateVerdict") -> dict[str, Any]:
    return {
        "layer": verdict.layer.value,
        "rule": verdict.rule,
        "passed": verdict.passed,
        "sentence": verdict.sentence,
    }


def _as_text(explained: "Explanation") -> Iterator[str]:
    event, _, decision = explained.recorded
    standings = {each.instance: each for each in explained.statuses}
    to = printable(", ".join(decision.deliveries))
    yield f"{explained.event}: {f'delivered to {to}' if to else 'delivered to nobody'}"
    yield (
        f"  {printable(event.platform)} {printable(event.event_id)}, received "
        f"{format_millis(explained.received_at)}, by {printable(event.author or 'nobody')} "
        f"in {printable(event.chat_id)}"
    )
    if decision.tenant is not None:
        yield f"  tenant {printable(decision.tenant)}"
    if explained.trace_id is not None:
        yield f"  trace {explained.trace_id}"
    yield from _verdict_lines(decision.verdicts, "  ")
    for candidate in decision.candidates:
        standing = standings.get(candidate.instance)
        state = "not delivered" if standing is None else _STATES[standing.state]
        why = f": {standing.reason}" if standing is not None and standing.reason else ""
        yield f"  {printable(candidate.instance)} ({state}{why})"
        yield from _verdict_lines(candidate.verdicts, "    ")


def _verdict_lines(verdicts: Sequence["GateVerdict"], indent: str) -> Iterator[str]:
    for each in verdicts:
        mark = "yes" if each.passed else "no "
        yield f"{indent}{each.layer.value:<11} {mark}  {each.sentence} [{each.rule}]"


_STATES = {
    "pending": "waits to be sent",
    "sent": "sent, not acknowledged yet",
    "acked": "acknowledged",
    "dead": "a dead letter",
}
