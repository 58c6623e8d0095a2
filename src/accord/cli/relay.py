"""`accord relay serve | gateway | chat`: the connector, agents that dial it, and the web chat.

A gateway dials a connector that may be anywhere; it needs no home and no station, unless it is let
in at the one of this machine (`--here`).
"""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from accord.cli import output, relay_agents, relay_deliveries
from accord.cli.arguments import STDIN, printable
from accord.cli.context import App, Cli, Output
from accord.cli.planes import (
    RemoteOptions,
    format_millis,
    refuse_remote,
    remote_options,
    with_relay,
)
from accord.cli.station import Port, serve_plane

if TYPE_CHECKING:
    from accord.relay.gateway import Agent, GatewayHealth, GatewayState
    from accord.relay.gateway.enrolment import GatewayCredentials
    from accord.relay.platforms.webchat import Admin, Channel, Invite, PendingInvite, Space, User
    from accord.station.agents import LocalAgent
    from accord.station.sections import TelemetrySettings

gateway_app = App(
    no_args_is_help=True, epilog="Example: accord relay gateway run --command 'cat -'"
)


_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


class SessionKeyForm(Enum):
    """How a gateway names its conversations."""

    SCOPED = "scoped"
    HERMES = "hermes"


Front = Annotated[
    list[str] | None,
    typer.Option(help="platform or platform:bot to speak through; as often as needed."),
]
GatewayId = Annotated[str | None, typer.Option("--id", help="The gateway's id.")]
CredentialsFile = Annotated[
    Path | None,
    typer.Option("--file", help="Where its credentials are (default: in the user's state folder)."),
]


@gateway_app.command(
    epilog="Example: accord relay gateway enroll https://connector.example enrol_…"
)
def enroll(
    cli: Output,
    url: Annotated[str, typer.Argument(help="The connector.")],
    token: Annotated[
        str, typer.Argument(help="What `accord relay token new` printed; - is stdin.")
    ],
    gateway_id: GatewayId = None,
    file: CredentialsFile = None,
    wake_url: Annotated[
        str | None, typer.Option(help="What the connector asks for to wake it.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace older credentials of this id.")
    ] = False,
) -> None:
    """Spend an enrolment token and keep the gateway's secret in a file that only you can read."""
    from accord.relay.gateway.enrolment import credentials_file, enrol, is_private

    name = gateway_id or f"{socket.gethostname()}-{os.urandom(3).hex()}"
    place = file or credentials_file(name)
    given = sys.stdin.readline().strip() if token == STDIN else token
    if not is_private(url):
        output.say("warning: without https, whoever is on the way can read the gateway's secret")
    made = asyncio.run(enrol(url, given, name, place, wake_url=wake_url, replace=replace))
    cli.emit(
        {"gateway_id": made.gateway_id, "tenant": made.tenant, "file": str(place)},
        f"Enrolled as {printable(made.gateway_id)}; the secret is in {place}.",
    )


@gateway_app.command(
    epilog="Example: accord relay gateway run --here echo --command 'jq -r .event.text'"
)
def run(
    cli: Cli,
    agent: Annotated[
        str | None, typer.Option(help="A Python agent, as module:name; found from here, too.")
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(help="A shell command: reads the event as JSON, prints the answer."),
    ] = None,
    front: Front = None,
    here: Annotated[
        str | None,
        typer.Option(
            help="Let it in by this name at this machine's station, with a space in the web chat."
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="The connector (default: where it was enrolled).")
    ] = None,
    gateway_id: GatewayId = None,
    file: CredentialsFile = None,
    inbox: Annotated[
        str | None,
        typer.Option(help="A folder for what was taken; `memory` (default: beside the secret)."),
    ] = None,
    session_keys: Annotated[
        SessionKeyForm,
        typer.Option(help="How conversations are named; older connectors want hermes."),
    ] = SessionKeyForm.SCOPED,
) -> None:
    """Connect a shell command or a Python function to chats, and serve until told to stop.

    With --here nobody has to enrol it: it is let in by your own hand, and a link is printed by
    which somebody joins its space and talks to it.

    Prints each state as it is entered. SIGTERM or Ctrl-C lets the connector buffer and finishes the
    turns under way; a second one ends at once. Exit code 1 when the access was revoked.
    """
    from accord.relay.gateway import GatewaySettings, GatewayState, RelayGateway
    from accord.station import logs, trace_export
    from accord.station.sections import LogSettings
    from accord.station.supervisor import exit_at_once

    if here is not None and (url or gateway_id or file):
        raise typer.BadParameter("with --here, none of --url, --id and --file is needed")
    if here is not None and not _NAME.fullmatch(here):
        raise typer.BadParameter(
            "letters, digits, dots and dashes make a name", param_hint="--here"
        )
    answering = _load_agent(agent, command)

    async def serve() -> "GatewayState":
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(
                trace_export.export_traces(_telemetry_settings(cli, here), service="accord-gateway")
            )
            if here is None:
                known = _find_credentials(gateway_id, file)
                return await dial(url or known.url, known, inbox)
            guest = await opened.enter_async_context(_open_agent(cli, here))
            if guest.invite:
                cli.emit({"invite": guest.invite}, f"talk to it: {guest.invite}")
            return await dial(guest.address, guest.credentials, inbox or str(guest.folder))

    async def dial(address: str, known: "GatewayCredentials", kept: str | None) -> "GatewayState":
        gateway = RelayGateway(
            address,
            secret=known.secret,
            gateway_id=known.gateway_id,
            agent=answering,
            settings=GatewaySettings(
                identities=identities(front),
                session_keys=session_keys.value,
                inbox=kept,
                environment=os.environ,
            ),
            on_health=partial(show_health, cli),
        )
        asked: list[int] = []

        def stop(number: signal.Signals) -> None:
            if asked:
                # Whoever asks twice does not want to wait, and what was taken is on disk.
                exit_at_once(128 + number)
            asked.append(number)
            gateway.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
        show_health(cli, gateway.health)
        return await gateway.run()

    with logs.configured(LogSettings(level="warning")):
        ended = asyncio.run(serve())
    raise typer.Exit(output.FAILED if ended is GatewayState.DISABLED else 0)


def show_health(cli: Output, health: "GatewayHealth") -> None:
    """Print the state that a gateway has entered."""
    state = health.state.value
    reason = f": {printable(health.reason)}" if health.reason else ""
    cli.emit({"state": state, "reason": health.reason}, f"{state}{reason}")
    sys.stdout.flush()


def _telemetry_settings(cli: Cli, here: str | None) -> "TelemetrySettings":
    """Those of the station beside the gateway; elsewhere the standard variables are used."""
    from accord.station.sections import TelemetrySettings

    return TelemetrySettings() if here is None else cli.settings().telemetry


def _open_agent(cli: Cli, name: str) -> "AbstractAsyncContextManager[LocalAgent]":
    from accord.kernel.clock import SystemClock
    from accord.station.agents import open_agent

    return open_agent(cli.station_settings(), SystemClock(), name)


def _load_agent(agent: str | None, command: str | None) -> "Agent":
    from accord.relay.gateway import command_agent, load_agent

    if (agent is None) == (command is None):
        raise typer.BadParameter("give either --agent or --command")
    if agent is None:
        return command_agent(["sh", "-c", command or ""])
    sys.path.insert(0, "")
    return load_agent(agent)


def _find_credentials(gateway_id: str | None, file: Path | None) -> "GatewayCredentials":
    """Those that are named, else those of the environment, else the only ones on this machine."""
    from accord.relay.errors import Code, RelayError
    from accord.relay.gateway.enrolment import (
        GatewayCredentials,
        credentials_file,
        credentials_files,
        load_credentials,
    )

    if file is not None:
        return load_credentials(file)
    if gateway_id is not None:
        return load_credentials(credentials_file(gateway_id))
    given = [os.environ.get(f"GATEWAY_RELAY_{name}", "") for name in ("URL", "ID", "SECRET")]
    if all(given):
        return GatewayCredentials(given[0], given[1], "", given[2])
    found = credentials_files()
    if len(found) == 1:
        return load_credentials(found[0])
    raise RelayError(
        Code.NOT_FOUND,
        f"{len(found)} gateways have enrolled here" if found else "no gateway has enrolled here",
        mend="say which with --id or --file"
        if found
        else "get a token from the operator, and `accord relay gateway enroll URL TOKEN`",
    )


def identities(front: list[str] | None) -> tuple[tuple[str, str], ...]:
    """The bots that --front names, else those of the environment."""
    from accord.relay.rules.connection import read_identities

    if not front:
        return read_identities(os.environ)
    pairs = (each.partition(":") for each in front)
    return tuple((platform, bot_id) for platform, _, bot_id in pairs)


app = App(no_args_is_help=True, epilog="Example: accord relay token new --instance echo")


@app.callback()
def relay(
    connector: Annotated[
        str | None,
        typer.Option(
            help="The URL of a connector on another machine, for commands that look after agents "
            "and messages (default: $ACCORD_RELAY_CONNECTOR, else the one of the home)."
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(
            help="What `accord relay operator-token new` printed there; - is stdin "
            "(default: $ACCORD_RELAY_TOKEN). Other users of this machine may see it."
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="A file with the token (default: $ACCORD_RELAY_TOKEN_FILE)."),
    ] = None,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Send the token without TLS to another machine.")
    ] = False,
) -> None:
    """Bring agents into chats."""
    remote_options.set(RemoteOptions(connector, token, token_file, plain_http))


@app.command(epilog="Example: accord relay serve --home ./connector --port 7090")
def serve(cli: Cli, *, port: Port = None) -> None:
    """Run a connector alone, without the other planes, until it is told to stop.

    Several of them share a store by the setting `store.url`, and hint each other by `relay.redis`.
    """
    from accord.station.run import relay_planes

    serve_plane(cli, "The connector", relay_planes, port, with_device=True)


T = TypeVar("T")

chat_app = App(no_args_is_help=True, epilog="Example: accord relay chat space kitchen")

InSpace = Annotated[
    str | None, typer.Option("--space", help="The space's name or id (default: the only one).")
]


@chat_app.command(epilog="Example: accord relay chat space kitchen --tenant default")
def space(
    cli: Cli,
    name: Annotated[str, typer.Argument(help="What it is called.")],
    tenant: Annotated[str, typer.Option(help="Whose agents may be reached there.")] = "default",
) -> None:
    """Open a space with a channel `general`, in which a tenant's agents can be reached."""

    async def make(admin: "Admin") -> tuple["Space", "Channel"]:
        made = await admin.create_space(name)
        return made, await admin.create_channel(made.id, "general")

    made, channel = _with_chat(cli, make)
    with_relay(cli, lambda connector: connector.control.route(tenant, "webchat", made.id))
    cli.emit(
        {"space": made.id, "channel": channel.id, "tenant": tenant},
        f"The space {made.name} is {made.id}, its channel general is {channel.id}.",
    )


@chat_app.command(epilog="Example: accord relay chat channel plans --private")
def channel(
    cli: Cli,
    name: Annotated[str, typer.Argument(help="What it is called.")],
    space: InSpace = None,
    private: Annotated[
        bool, typer.Option("--private", help="Nobody sees it who was not let in.")
    ] = False,
) -> None:
    """Open a channel in a space."""

    async def make(admin: "Admin") -> "Channel":
        return await admin.create_channel(await _find_space(admin, space), name, private=private)

    made = _with_chat(cli, make)
    cli.emit({"space": made.space_id, "channel": made.id}, f"The channel {made.name} is {made.id}.")


@chat_app.command(epilog="Example: accord relay chat invite --space kitchen")
def invite(
    cli: Cli,
    space: InSpace = None,
    manager: Annotated[
        bool, typer.Option("--manager", help="May manage every channel of the space.")
    ] = False,
    hours: Annotated[float, typer.Option(min=0.001, max=8760, help="Until it expires.")] = 168.0,
) -> None:
    """Print a link by which one person joins a space, once."""

    async def make(admin: "Admin") -> "Invite":
        seconds = max(1, round(hours * 3600))
        return await admin.invite(await _find_space(admin, space), manager=manager, seconds=seconds)

    made = _with_chat(cli, make)
    url = _absolute_url(cli, made.url)
    cli.note(f"Until {format_millis(made.expires_at)}:")
    cli.emit({"url": url, "expires_at": format_millis(made.expires_at)}, url)


@chat_app.command(epilog="Example: accord relay chat withdraw 5f1d0c9a7be24c11")
def withdraw(
    cli: Cli,
    invite: Annotated[str, typer.Argument(help="Its id, as `accord relay chat list` shows it.")],
) -> None:
    """Let nobody join by an invitation any more."""
    _with_chat(cli, lambda admin: admin.withdraw(invite))
    cli.emit({"withdrawn": invite}, "Nobody can join by it any more.")


@chat_app.command(epilog="Example: accord relay chat remove 01JZ6M3S9A8Q4W0X7B2C5D6E7F")
def remove(
    cli: Cli,
    user: Annotated[str, typer.Argument(help="Their id, as `accord relay chat list` shows it.")],
) -> None:
    """Take somebody's access away, and every link to agents with it; what was written stays."""
    _with_chat(cli, lambda admin: admin.remove_user(user))
    links = with_relay(cli, lambda connector: connector.control.unbind("webchat", user))
    cli.emit({"removed": user, "links": links}, f"{printable(user)} cannot come in any more.")


@chat_app.command("list", epilog="Example: accord relay chat list --json")
def list_all(cli: Cli) -> None:
    """List spaces, channels, people, and invitations that nobody has used yet."""

    async def read(
        admin: "Admin",
    ) -> tuple[list["Space"], list["Channel"], list["User"], list["PendingInvite"]]:
        return (
            list(await admin.spaces()),
            list(await admin.channels()),
            [each for each in await admin.users() if not each.is_removed],
            list(await admin.pending()),
        )

    spaces, channels, users, pending = _with_chat(cli, read)
    cli.emit(
        {
            "spaces": [{"id": each.id, "name": each.name} for each in spaces],
            "channels": [
                {"id": each.id, "space": each.space_id, "name": each.name} for each in channels
            ],
            "users": [{"id": each.id, "name": each.name, "spaces": each.spaces} for each in users],
            "invites": [
                {
                    "id": each.id,
                    "space": each.space_id,
                    "manager": each.is_manager,
                    "expires_at": format_millis(each.expires_at),
                }
                for each in pending
            ],
        },
        [
            *(("space", each.id, printable(each.name)) for each in spaces),
            *(("channel", each.id, printable(each.name)) for each in channels),
            *(("user", each.id, printable(each.name)) for each in users),
            *(("invite", each.id, f"until {format_millis(each.expires_at)}") for each in pending),
        ],
    )


def _with_chat(cli: Cli, work: Callable[["Admin"], Awaitable[T]]) -> T:
    from accord.kernel.clock import SystemClock
    from accord.relay.platforms.webchat import open_admin
    from accord.station.relay import webchat_settings
    from accord.station.store import store_location

    refuse_remote(cli)
    settings = cli.station_settings()

    async def run() -> T:
        async with open_admin(
            store_location(settings), SystemClock(), webchat_settings(settings)
        ) as admin:
            return await work(admin)

    return asyncio.run(run())


def _absolute_url(cli: Cli, url: str) -> str:
    """An address that can be followed: below the running station's where no other was set."""
    from accord.station.home import Home as Place
    from accord.station.home import home_holder

    if not url.startswith("/"):
        return url
    held = home_holder(Place(cli.settings().home))
    if held is None:
        output.say("The station does not run: put its address before this, once it does.")
        return url
    return f"{held.address}{url}"


async def _find_space(admin: "Admin", wanted: str | None) -> str:
    from accord.relay.errors import Code, RelayError

    spaces = await admin.spaces()
    found = [each for each in spaces if wanted in (None, each.id, each.name)]
    if len(found) != 1:
        raise RelayError(
            Code.NOT_FOUND,
            "there are several spaces" if found else "there is no such space",
            mend="say which with --space" if found else "open one with `accord relay chat space`",
        )
    return found[0].id


for verbs in (relay_agents, relay_deliveries):
    app.registered_commands += verbs.app.registered_commands
app.add_typer(relay_agents.token, name="token", help="Let gateways enrol.")
app.add_typer(
    relay_agents.operator_token,
    name="operator-token",
    help="Let operators look after this connector from elsewhere.",
)
app.add_typer(relay_agents.scope, name="scope", help="Say whose servers and channels are.")
app.add_typer(relay_deliveries.outbox, name="outbox", help="Replies that wait or were given up.")
app.add_typer(relay_deliveries.deadletters, name="deadletters", help="What could not be delivered.")
app.add_typer(chat_app, name="chat", help="Look after the built-in web chat.")
app.add_typer(gateway_app, name="gateway", help="Connect an agent to a connector.")
