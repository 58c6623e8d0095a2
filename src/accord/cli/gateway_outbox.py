"""`accord relay gateway outbox | retention`: what a gateway keeps until the connector has taken it.

The gateway's own store is opened, on its machine. What changes it wants the gateway to be stopped:
a gateway that runs holds what waits in memory.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar
from urllib.parse import quote

import typer

from accord.cli.arguments import printable
from accord.cli.output import App, Cli
from accord.cli.planes import format_millis

if TYPE_CHECKING:
    from accord.relay.gateway import StoredInbox

T = TypeVar("T")
outbox = App(no_args_is_help=True, epilog="Example: accord relay gateway outbox list --id echo")
retention = App(no_args_is_help=True, epilog="Example: accord relay gateway retention show")

GatewayId = Annotated[str | None, typer.Option("--id", help="The gateway's id.")]
Here = Annotated[
    str | None, typer.Option(help="The name under which it runs at this machine's station.")
]
Inbox = Annotated[
    str | None,
    typer.Option(help="The folder or URL that it got as --inbox (default: found by its id)."),
]
Numbers = Annotated[list[int], typer.Argument(help="Their numbers, as `list` shows them.")]


@outbox.command("list", epilog="Example: accord relay gateway outbox list --dead")
def list_actions(
    cli: Cli,
    gateway_id: GatewayId = None,
    here: Here = None,
    inbox: Inbox = None,
    dead: Annotated[
        bool | None, typer.Option("--dead/--waiting", help="Only those that failed, or the rest.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 100,
) -> None:
    """List replies that the connector has not taken, or that failed, and why; never their text.

    The gateway may run meanwhile.
    """

    async def work(store: "StoredInbox") -> dict[str, Any]:
        from accord.relay.gateway.outbox import StoredActions

        actions = StoredActions(store.store)
        backlog = await actions.backlog(store.retention.clock.now())
        entries = await actions.list_entries(limit, dead=dead)
        return {**asdict(backlog), "actions": [asdict(each) for each in entries]}

    found = _run(_place(cli, gateway_id, here, inbox), work)
    cli.emit(
        found,
        (
            (
                str(each["number"]),
                format_millis(each["created_at"]),
                f"{each['op']} {printable(each['lane'])}",
                each["state"],
                printable(each["error"] or ""),
            )
            for each in found["actions"]
        ),
    )


@outbox.command("retry", epilog="Example: accord relay gateway outbox retry 17 18")
def retry_actions(
    cli: Cli,
    numbers: Numbers,
    gateway_id: GatewayId = None,
    here: Here = None,
    inbox: Inbox = None,
) -> None:
    """Send replies again when the gateway starts; one whose outcome is unknown may be doubled.

    Stop the gateway first.
    """

    async def work(store: "StoredInbox") -> dict[str, Any]:
        from uuid import uuid4

        from accord.relay.gateway.outbox import StoredActions

        now = store.retention.clock.now()
        count = await StoredActions(store.store).retry(numbers, now, lambda: uuid4().hex)
        return {"retried": count}

    done = _run(_place(cli, gateway_id, here, inbox), work, changes=True)
    cli.emit(done, f"{done['retried']} will be sent when the gateway starts.")


@outbox.command("drop", epilog="Example: accord relay gateway outbox drop 17")
def drop_actions(
    cli: Cli,
    numbers: Numbers,
    gateway_id: GatewayId = None,
    here: Here = None,
    inbox: Inbox = None,
) -> None:
    """Give up replies that wait, and forget the words of those that failed.

    Stop the gateway first.
    """

    async def work(store: "StoredInbox") -> dict[str, Any]:
        from accord.relay.gateway.outbox import StoredActions

        now = store.retention.clock.now()
        return {"dropped": await StoredActions(store.store).drop(numbers, now)}

    done = _run(_place(cli, gateway_id, here, inbox), work, changes=True)
    cli.emit(done, f"{done['dropped']} dropped.")


@retention.command("show", epilog="Example: accord relay gateway retention show --id echo")
def show_retention(
    cli: Cli, gateway_id: GatewayId = None, here: Here = None, inbox: Inbox = None
) -> None:
    """Show when old rows were last deleted, and whether the clock is trusted to do it again."""
    _emit_clock(cli, _run(_place(cli, gateway_id, here, inbox), _clock))


@retention.command("confirm", epilog="Example: accord relay gateway retention confirm --id echo")
def confirm_clock(
    cli: Cli, gateway_id: GatewayId = None, here: Here = None, inbox: Inbox = None
) -> None:
    """Say that this machine's clock is right, so that old rows are deleted by it again.

    The gateway may run meanwhile.
    """

    async def work(store: "StoredInbox") -> dict[str, Any]:
        await store.retention.confirm()
        return await _clock(store)

    _emit_clock(cli, _run(_place(cli, gateway_id, here, inbox), work))


async def _clock(store: "StoredInbox") -> dict[str, Any]:
    passed_at, verdict = await store.retention.status()
    return {
        "passed_at": None if passed_at is None else int(passed_at * 1000),
        "now": int(store.retention.clock.now() * 1000),
        "trusted": verdict.trusted,
        "rule": verdict.rule.value,
        "reason": verdict.sentence,
    }


def _emit_clock(cli: Cli, told: dict[str, Any]) -> None:
    cli.emit(told, clock_lines(told))


def clock_lines(told: dict[str, Any]) -> list[str]:
    """What retention thinks of a clock, as text."""
    last = "never" if told["passed_at"] is None else format_millis(told["passed_at"])
    verdict = "is trusted" if told["trusted"] else "is not trusted, and nothing old is deleted"
    return [
        f"last pass  {last}",
        f"clock      {format_millis(told['now'])}",
        f"The clock {verdict}: {told['reason']} [{told['rule']}].",
    ]


def _place(cli: Cli, gateway_id: str | None, here: str | None, inbox: str | None) -> str:
    """Where a gateway keeps its inbox."""
    from accord.cli.gateway import find_credentials
    from accord.relay.errors import Code, RelayError
    from accord.relay.gateway.settings import state_folder

    if here is not None:
        place = str(cli.station_settings().home / "agents" / here)
    elif inbox is not None:
        place = inbox
    else:
        name = gateway_id or find_credentials(None, None)[1].gateway_id
        place = str(state_folder() / quote(name, safe=""))
    if "://" not in place and not Path(place).is_dir():
        raise RelayError(
            Code.NOT_FOUND,
            "this gateway has kept nothing on this machine",
            where=place,
            mend="name it with --id or --here, or its store with --inbox",
        )
    return place


@asynccontextmanager
async def _opened(place: str, *, changes: bool) -> "AsyncIterator[StoredInbox]":
    from accord.kernel.clock import SystemClock
    from accord.relay.gateway import INBOX_SCHEMA, StoredInbox, open_stored_inbox
    from accord.storage import open_store

    clock = SystemClock()
    if changes:
        async with open_stored_inbox(place, clock) as opened:
            assert isinstance(opened, StoredInbox)
            yield opened
        return
    async with open_store(place, INBOX_SCHEMA) as store:
        yield StoredInbox(store, clock)


def _run(place: str, work: "Callable[[StoredInbox], Awaitable[T]]", *, changes: bool = False) -> T:
    async def run() -> T:
        async with _opened(place, changes=changes) as store:
            return await work(store)

    return asyncio.run(run())
