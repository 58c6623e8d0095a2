"""`accord relay why | deadletters`: what became of a message, and what could not be delivered."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import report
from accord.cli.community_node import show_lines
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json
from accord.cli.relay_store import Instance, moment, with_relay

if TYPE_CHECKING:
    from accord.relay.connector.assembly import Connector
    from accord.relay.connector.delivery.graveyard import DeadLetter
    from accord.relay.connector.delivery.inspect import Explained
    from accord.relay.gate import Verdict

app = typer.Typer()
deadletters = typer.Typer(
    no_args_is_help=True, epilog="Example: accord relay deadletters list --instance echo"
)

# How many letters one unit of work takes up again, so that a running connector gets its turn.
_AT_ONCE = 500


@app.command(epilog="Example: accord relay why 01JQ8Z6S3N4TP7XGW5KE2RHV9B")
def why(
    event: Annotated[
        str | None,
        typer.Argument(help="The platform's id of it, or ours (default: list the latest)."),
    ] = None,
    last: Annotated[int, typer.Option(min=1, max=1000, help="How many of the latest.")] = 20,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Tell who received a message and who did not, with the verdict of every layer of the gate."""
    if event is None:
        _show_latest(with_relay(home, config, lambda found: _latest(found, last)), as_json)
        return
    explained = with_relay(home, config, lambda found: found.delivery.why(event))
    if explained is None:
        from accord.relay.errors import Code, RelayError

        raise RelayError(
            Code.NOT_FOUND,
            "nothing is known of this event",
            where=printable(event),
            mend="`accord relay why` lists the latest; records are kept as long as the journal",
        )
    if as_json:
        report.show_json(_as_json(explained))
    else:
        for line in _as_text(explained):
            typer.echo(line)


@deadletters.command("list", epilog="Example: accord relay deadletters list --instance echo")
def list_letters(
    instance: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 100,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List what could not be delivered, the newest first, and why; never what it says."""

    async def read(connector: "Connector") -> list["DeadLetter"]:
        return await connector.delivery.dead_letters(instance, limit)

    found = with_relay(home, config, read)
    if as_json:
        report.show_json({"letters": [asdict(each) for each in found]})
        return
    show_lines(
        [
            (
                printable(each.instance),
                str(each.seq),
                moment(each.dead_at),
                f"{printable(each.platform)} {each.kind}",
                f"{each.deliveries} deliveries",
                each.reason,
                each.event,
            )
            for each in found
        ]
    )


Numbers = Annotated[list[int] | None, typer.Argument(help="Their numbers, as `list` shows them.")]
All = Annotated[bool, typer.Option("--all", help="Every one of the agent's.")]


@deadletters.command(epilog="Example: accord relay deadletters replay echo 17 18")
def replay(
    instance: Instance,
    numbers: Numbers = None,
    all_: All = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Put dead letters at the end of their agent's queue, to be delivered again."""

    async def again(connector: "Connector") -> int:
        there = await _chosen(connector, instance, numbers, all_)
        for some in _parts(there):
            await connector.delivery.replay(instance, some)
        return len(there)

    count = with_relay(home, config, again)
    if as_json:
        report.show_json({"instance": instance, "replayed": count})
    else:
        typer.echo(f"{count} will be delivered again.")


@deadletters.command(epilog="Example: accord relay deadletters drop echo --all")
def drop(
    instance: Instance,
    numbers: Numbers = None,
    all_: All = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Forget dead letters for good."""
    from accord.relay.connector.operating import drop_letters

    async def forget(connector: "Connector") -> int:
        there = await _chosen(connector, instance, numbers, all_)
        for some in _parts(there):
            burial = connector.delivery.burial("dropped")
            await connector.store.write(
                lambda c, some=some, burial=burial: drop_letters(c, instance, some, burial)  # type: ignore[misc]
            )
        return len(there)

    count = with_relay(home, config, forget)
    if as_json:
        report.show_json({"instance": instance, "dropped": count})
    else:
        typer.echo(f"{count} dropped.")


async def _chosen(
    connector: "Connector", instance: str, numbers: Sequence[int] | None, is_all: bool
) -> list[int]:
    """The letters that are meant, all of which are there.

    Raises:
        RelayError: One of them is not.
    """
    from accord.relay.connector.operating import letters_of
    from accord.relay.errors import Code, RelayError

    if bool(numbers) == is_all:
        raise typer.BadParameter("give their numbers, or --all")
    there = await connector.store.read(lambda c: letters_of(c, instance))
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


def _parts(numbers: Sequence[int]) -> Iterator[Sequence[int]]:
    return (numbers[start : start + _AT_ONCE] for start in range(0, len(numbers), _AT_ONCE))


async def _latest(connector: "Connector", limit: int) -> list["Explained"]:
    from accord.relay.connector.operating import latest_events

    ids = await connector.store.read(lambda c: latest_events(c, limit))
    found = [await connector.delivery.why(each) for each in ids]
    return [each for each in found if each is not None]


def _show_latest(found: Sequence["Explained"], as_json: bool) -> None:
    if as_json:
        report.show_json({"events": [_as_json(each) for each in found]})
        return
    show_lines(
        [
            (
                each.event,
                moment(each.received_at),
                printable(each.recorded.event.platform),
                printable(each.recorded.event.author or "nobody"),
                printable(", ".join(each.recorded.decision.deliveries)) or _refusal(each).rule,
            )
            for each in found
        ]
    )


def _refusal(explained: "Explained") -> "Verdict":
    """What kept an event from everybody; of several candidates, what kept it from the first."""
    decision = explained.recorded.decision
    said = [*decision.verdicts, *(v for each in decision.candidates for v in each.verdicts)]
    return next(verdict for verdict in said if not verdict.passed)


def _as_json(explained: "Explained") -> dict[str, Any]:
    event, _, decision = explained.recorded
    standings = {each.instance: each for each in explained.standings}
    return {
        "event": explained.event,
        "event_id": event.event_id,
        "received_at": moment(explained.received_at),
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


def _verdict(verdict: "Verdict") -> dict[str, Any]:
    return {
        "layer": verdict.layer.value,
        "rule": verdict.rule,
        "passed": verdict.passed,
        "sentence": verdict.sentence,
    }


def _as_text(explained: "Explained") -> Iterator[str]:
    event, _, decision = explained.recorded
    standings = {each.instance: each for each in explained.standings}
    to = printable(", ".join(decision.deliveries))
    yield f"{explained.event}: {f'delivered to {to}' if to else 'delivered to nobody'}"
    yield (
        f"  {printable(event.platform)} {printable(event.event_id)}, received "
        f"{moment(explained.received_at)}, by {printable(event.author or 'nobody')} "
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


def _verdict_lines(verdicts: Sequence["Verdict"], indent: str) -> Iterator[str]:
    for each in verdicts:
        mark = "yes" if each.passed else "no "
        yield f"{indent}{each.layer.value:<11} {mark}  {each.sentence} [{each.rule}]"


_STATES = {
    "pending": "waits to be sent",
    "sent": "sent, not acknowledged yet",
    "acked": "acknowledged",
    "dead": "a dead letter",
}
