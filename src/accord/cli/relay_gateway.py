"""`accord relay gateway enroll | run`: an agent's side, without writing a program.

A gateway dials a connector that may be anywhere; it needs no home and no station, unless it is to
be let in at the one of this machine.
"""

import asyncio
import os
import re
import signal
import socket
import sys
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli import report
from accord.cli.contract_reading import STDIN, printable
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from accord.relay.gateway import Agent, Health, State
    from accord.relay.gateway.enrolment import Credentials
    from accord.station.guests import Guest
    from accord.station.settings import TelemetrySettings

app = typer.Typer(
    no_args_is_help=True, epilog="Example: accord relay gateway run --command 'cat -'"
)


_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


class Dialect(Enum):
    """How a gateway names its conversations."""

    SCOPED = "scoped"
    HERMES = "hermes"


Id = Annotated[str | None, typer.Option("--id", help="The gateway's id.")]
File = Annotated[
    Path | None,
    typer.Option("--file", help="Where its credentials are (default: in the user's state folder)."),
]


@app.command(epilog="Example: accord relay gateway enroll https://connector.example enrol_…")
def enroll(
    url: Annotated[str, typer.Argument(help="The connector.")],
    token: Annotated[
        str, typer.Argument(help="What `accord relay token new` printed; - is stdin.")
    ],
    gateway_id: Id = None,
    file: File = None,
    wake_url: Annotated[
        str | None, typer.Option(help="What the connector asks for to wake it.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace older credentials of this id.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Spend an enrolment token and keep the gateway's secret in a file that only you can read."""
    from accord.relay.gateway.enrolment import credentials_file, enrol, is_private

    name = gateway_id or f"{socket.gethostname()}-{os.urandom(3).hex()}"
    place = file or credentials_file(name)
    given = sys.stdin.readline().strip() if token == STDIN else token
    if not is_private(url):
        report.say("warning: without https, whoever is on the way can read the gateway's secret")
    made = asyncio.run(enrol(url, given, name, place, wake_url=wake_url, replace=replace))
    if as_json:
        report.show_json({"gateway_id": made.gateway_id, "tenant": made.tenant, "file": str(place)})
    else:
        typer.echo(f"Enrolled as {printable(made.gateway_id)}; the secret is in {place}.")


@app.command(epilog="Example: accord relay gateway run --here echo --command 'jq -r .event.text'")
def run(
    agent: Annotated[
        str | None, typer.Option(help="A Python agent, as module:name; found from here, too.")
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(help="A shell command: reads the event as JSON, prints the answer."),
    ] = None,
    front: Annotated[
        list[str] | None,
        typer.Option(help="platform or platform:bot to speak through; as often as needed."),
    ] = None,
    here: Annotated[
        str | None,
        typer.Option(
            help="Let it in by this name at this machine's station, with a space in the web chat."
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="The connector (default: where it was enrolled).")
    ] = None,
    gateway_id: Id = None,
    file: File = None,
    inbox: Annotated[
        str | None,
        typer.Option(help="A folder for what was taken; `memory` (default: beside the secret)."),
    ] = None,
    session_keys: Annotated[
        Dialect, typer.Option(help="How conversations are named; older connectors want hermes.")
    ] = Dialect.SCOPED,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Connect a shell command or a Python function to chats, and serve until told to stop.

    With --here nobody has to enrol it: it is let in by your own hand, and a link is printed by
    which somebody joins its space and talks to it.

    Prints each state as it is entered. SIGTERM or Ctrl-C lets the connector buffer and finishes the
    turns under way; a second one ends at once. Exit code 1 when the access was revoked.
    """
    from accord.relay.gateway import GatewaySettings, RelayGateway, State
    from accord.station import logs, telemetry
    from accord.station.leaving import leave
    from accord.station.settings import LogSettings

    if here is not None and (url or gateway_id or file):
        raise typer.BadParameter("with --here, none of --url, --id and --file is needed")
    if here is not None and not _NAME.fullmatch(here):
        raise typer.BadParameter(
            "letters, digits, dots and dashes make a name", param_hint="--here"
        )
    answering = _agent(agent, command)

    def show(health: "Health") -> None:
        if as_json:
            report.show_json({"state": health.state.value, "reason": health.reason})
        else:
            reason = f": {printable(health.reason)}" if health.reason else ""
            typer.echo(f"{health.state.value}{reason}")
        sys.stdout.flush()

    async def serve() -> "State":
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(
                telemetry.recording(_telemetry(home, config, here), service="accord-gateway")
            )
            if here is None:
                known = _credentials(gateway_id, file)
                return await dial(url or known.url, known, inbox)
            guest = await opened.enter_async_context(_welcomed(here, home, config))
            if guest.invite and as_json:
                report.show_json({"invite": guest.invite})
            elif guest.invite:
                typer.echo(f"talk to it: {guest.invite}")
            return await dial(guest.address, guest.credentials, inbox or str(guest.folder))

    async def dial(address: str, known: "Credentials", kept: str | None) -> "State":
        gateway = RelayGateway(
            address,
            secret=known.secret,
            gateway_id=known.gateway_id,
            agent=answering,
            settings=GatewaySettings(
                identities=_identities(front),
                session_keys=session_keys.value,
                inbox=kept,
                environment=os.environ,
            ),
            on_health=show,
        )
        asked: list[int] = []

        def stop(number: signal.Signals) -> None:
            if asked:
                # Whoever asks twice does not want to wait, and what was taken is on disk.
                leave(128 + number)
            asked.append(number)
            gateway.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        show(gateway.health)
        return await gateway.run()

    with logs.configured(LogSettings(level="warning")):
        ended = asyncio.run(serve())
    raise typer.Exit(report.FAILED if ended is State.DISABLED else 0)


def _telemetry(home: Path | None, config: Path | None, here: str | None) -> "TelemetrySettings":
    """A gateway beside a station records where that does; elsewhere the standard variables say."""
    from accord.station.settings import TelemetrySettings, load

    return TelemetrySettings() if here is None else load(home, config).telemetry


def _welcomed(
    name: str, home: Path | None, config: Path | None
) -> "AbstractAsyncContextManager[Guest]":
    from accord.cli.relay_store import need_home
    from accord.kernel.clock import SystemClock
    from accord.station.guests import welcomed
    from accord.station.settings import load

    settings = load(home, config)
    need_home(settings)
    return welcomed(settings, SystemClock(), name)


def _agent(agent: str | None, command: str | None) -> "Agent":
    from accord.relay.gateway import command_agent, load_agent

    if (agent is None) == (command is None):
        raise typer.BadParameter("give either --agent or --command")
    if agent is None:
        return command_agent(["sh", "-c", command or ""])
    sys.path.insert(0, "")
    return load_agent(agent)


def _credentials(gateway_id: str | None, file: Path | None) -> "Credentials":
    """Those that are named, else those of the environment, else the only ones there are."""
    from accord.relay.errors import Code, RelayError
    from accord.relay.gateway.enrolment import (
        Credentials,
        credentials_file,
        known_files,
        load_credentials,
    )

    if file is not None:
        return load_credentials(file)
    if gateway_id is not None:
        return load_credentials(credentials_file(gateway_id))
    given = [os.environ.get(f"GATEWAY_RELAY_{name}", "") for name in ("URL", "ID", "SECRET")]
    if all(given):
        return Credentials(given[0], given[1], "", given[2])
    found = known_files()
    if len(found) == 1:
        return load_credentials(found[0])
    raise RelayError(
        Code.NOT_FOUND,
        f"{len(found)} gateways have enrolled here" if found else "no gateway has enrolled here",
        mend="say which with --id or --file"
        if found
        else "get a token from the operator, and `accord relay gateway enroll URL TOKEN`",
    )


def _identities(front: list[str] | None) -> tuple[tuple[str, str], ...]:
    from accord.relay.wire import identities

    if not front:
        return identities(os.environ)
    pairs = (each.partition(":") for each in front)
    return tuple((platform, bot_id) for platform, _, bot_id in pairs)
