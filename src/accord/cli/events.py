"""`accord events tail`: hear a contract's events as they come."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli import report
from accord.cli.contract_reading import printable, read_contract
from accord.cli.fabric_session import (
    PATIENCE,
    As,
    AuthorityUrl,
    ContractFile,
    KeyFile,
    Shell,
    Wait,
    first,
    stopping,
)
from accord.cli.options import Config, Home, Json
from accord.cli.rpc import demand, typed

if TYPE_CHECKING:
    from accord.fabric import Received, Session

app = typer.Typer(
    no_args_is_help=True, epilog="Example: accord events tail library.json Library.Lent"
)


@app.command(epilog="Example: accord events tail library.json Library.Lent --where /reader=ann")
def tail(
    contract: ContractFile,
    name: Annotated[str, typer.Argument(help="The event, such as Library.Lent.")],
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only where a parameter of the subject is so, as POINTER=VALUE."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Leave after so many (default: go on).")
    ] = None,
    authority: AuthorityUrl = None,
    key_file: KeyFile = None,
    acting_as: As = None,
    wait: Wait = PATIENCE,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Print every event from now on, until SIGTERM or Ctrl-C.

    It hears what is published while it listens; a service that must not miss any declares a
    consumer group.
    """
    target, chosen = read_contract(contract), _wheres(where or [])
    shell = Shell(home, config, authority, key_file, acting_as, wait)

    async def work(session: "Session") -> None:
        stop = stopping()
        async with session.client(target).listen(name, where=chosen) as heard:
            report.say(f"listening for {name} of {target['id']}")
            await first(_tell(heard, count, as_json), stop.wait(), session.ended())

    with typed(as_json):
        demand(target, "events", name)
        shell.run(target, work)


async def _tell(heard: "AsyncIterator[Received]", count: int | None, as_json: bool) -> None:
    from accord.kernel import canonical

    left = count
    async for event in heard:
        if as_json:
            report.show_json({"id": event.id, "time": event.time, "payload": event.payload})
        else:
            said = canonical.encode(event.payload).decode()
            typer.echo(f"{printable(event.time)}  {printable(said)}")
        if left is not None:
            left -= 1
            if left == 0:
                return


def _wheres(given: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    if not all(pointer.startswith("/") and sign for pointer, sign, _ in pairs):
        raise typer.BadParameter(
            "expected POINTER=VALUE, such as /reader=ann", param_hint="--where"
        )
    return {pointer: value for pointer, _, value in pairs}
