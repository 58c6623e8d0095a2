"""`accord relay gateway enroll | run | rotate | outbox | retention`: agents that dial a connector.

A gateway dials a connector that may be anywhere; it needs no home and no station, unless it is let
in at the one of this machine (`--here`).
"""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from dataclasses import replace as changed
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import gateway_outbox, output
from accord.cli.arguments import STDIN, printable, read_json
from accord.cli.output import App, Cli, Output

if TYPE_CHECKING:
    from accord.relay.gateway import (
        Agent,
        GatewayHealth,
        GatewayLimits,
        GatewaySettings,
        GatewayState,
        IdlePolicy,
    )
    from accord.relay.gateway.enrolment import GatewayCredentials
    from accord.station.agents import LocalAgent
    from accord.station.sections import TelemetrySettings

app = App(no_args_is_help=True, epilog="Example: accord relay gateway run --command 'cat -'")


_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,60}")


class SessionKeyForm(Enum):
    """How a gateway names its conversations."""

    SCOPED = "scoped"
    HERMES = "hermes"


Front = Annotated[
    list[str] | None,
    typer.Option(help="platform or platform:bot to use; repeatable."),
]


class WhenBusyChoice(Enum):
    """What becomes of a message in a session whose turn still runs."""

    QUEUE = "queue"
    INTERRUPT = "interrupt"


@dataclass(frozen=True)
class GatewayOptions(Output):
    """What can be chosen for every gateway, by option or by environment."""

    when_busy: Annotated[
        WhenBusyChoice,
        typer.Option(
            envvar="GATEWAY_RELAY_WHEN_BUSY",
            help="Whether a message in a busy session waits, or ends the running turn.",
        ),
    ] = WhenBusyChoice.QUEUE
    require_mention: Annotated[
        bool | None,
        typer.Option(
            "--require-mention/--no-require-mention",
            envvar="GATEWAY_RELAY_REQUIRE_MENTION",
            help="Whether it must be mentioned or replied to; an operator's word stays.",
        ),
    ] = None
    free_response_channels: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWAY_RELAY_FREE_RESPONSE_CHANNELS",
            help="Channels in which it need not, with commas between.",
        ),
    ] = None
    idle: Annotated[
        float | None,
        typer.Option(
            min=1,
            envvar="GATEWAY_RELAY_IDLE_SECONDS",
            help="Go to sleep after so many seconds without a message (default: never).",
        ),
    ] = None
    suspend: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWAY_RELAY_SUSPEND_COMMAND",
            help="A shell command that suspends the machine, and ends when it is awake again.",
        ),
    ] = None
    awake_while: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWAY_RELAY_AWAKE_WHILE",
            help="Do not sleep while this shell command succeeds: people reach it another way.",
        ),
    ] = None
    wake_url: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWAY_RELAY_WAKE_URL",
            help="The URL that the connector requests to wake it; registered at each start.",
        ),
    ] = None
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            envvar="GATEWAY_RELAY_LIMITS",
            help="A limit of the reference of settings; repeatable, in the variable with spaces.",
        ),
    ] = None

    def choose(self, settings: "GatewaySettings") -> "GatewaySettings":
        """The settings of a gateway with what was chosen."""
        from accord.relay.rules.messages import GENERIC_PLATFORM

        for name in ("suspend", "awake_while"):
            if getattr(self, name) is not None and self.idle is None:
                raise typer.BadParameter(
                    "say with --idle after how long", param_hint=f"--{name.replace('_', '-')}"
                )
        declared: dict[str, Any] = {}
        if self.require_mention is not None:
            declared["require_mention"] = self.require_mention
        if self.free_response_channels is not None:
            declared["free_response_channels"] = self.free_response_channels
        if declared and settings.identities[0][0] == GENERIC_PLATFORM:
            raise typer.BadParameter(
                "name the platforms with --front: what it wants to hear is said for each",
                param_hint="--require-mention",
            )
        return changed(
            settings,
            when_busy=self.when_busy.value,
            relevance=declared,
            wake_url=self.wake_url or None,
            idle=self._idle_policy(),
            limits=self._limits(settings.limits),
        )

    def _limits(self, known: "GatewayLimits") -> "GatewayLimits":
        from pydantic import ValidationError

        given: dict[str, str] = {}
        for each in self.limit or ():
            name, _, number = each.partition("=")
            if name not in type(known).model_fields:
                names = ", ".join(type(known).model_fields)
                raise typer.BadParameter(
                    f"there is no limit {name!r}; there are {names}", param_hint="--limit"
                )
            given[name] = number
        try:
            return type(known).model_validate({**known.model_dump(), **given})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise typer.BadParameter(
                f"{first['loc'][0]}: {first['msg']}", param_hint="--limit"
            ) from None

    def suspend_hook(self) -> "Callable[[], Awaitable[None]] | None":
        """What suspends the machine; None where something else does, or nothing."""
        if self.suspend is None:
            return None
        line = self.suspend

        async def suspend() -> None:
            if code := await _run(line):
                raise RuntimeError(f"the suspend command ended with {code}")

        return suspend

    def _idle_policy(self) -> "IdlePolicy | None":
        from accord.relay.gateway import IdlePolicy, known_to_connector

        if self.idle is None:
            return None
        policy = IdlePolicy(self.wake_url or None, self.idle, known_to_connector)
        if self.awake_while is None:
            return policy
        line = self.awake_while

        async def others() -> Collection[str]:
            return () if await _run(line) else (line,)

        return changed(policy, other_connections=others)


async def _run(line: str) -> int:
    """The exit code of a shell command, which gets none of the gateway's own settings."""
    from accord.relay.gateway.agent import public_environment

    process = await asyncio.create_subprocess_exec("sh", "-c", line, env=public_environment())
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.kill()


@dataclass(frozen=True)
class GatewayCli(GatewayOptions, Cli):
    """The context of a command that runs a gateway."""


GatewayId = Annotated[str | None, typer.Option("--id", help="The gateway's id.")]
CredentialsFile = Annotated[
    Path | None,
    typer.Option("--file", help="Where its credentials are (default: in the user's state folder)."),
]


@app.command(epilog="Example: accord relay gateway enroll https://connector.example enrol_…")
def enroll(
    cli: Output,
    url: Annotated[str, typer.Argument(help="The connector.")],
    token: Annotated[
        str, typer.Argument(help="What `accord relay token new` printed; - is stdin.")
    ],
    gateway_id: GatewayId = None,
    file: CredentialsFile = None,
    wake_url: Annotated[
        str | None, typer.Option(help="The URL that the connector requests to wake it.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace older credentials of this id.")
    ] = False,
) -> None:
    """Enrol with a token, and store the gateway's secret in a file that only you can read."""
    from accord.relay.gateway.enrolment import credentials_file, enrol, is_private

    name = gateway_id or f"{socket.gethostname()}-{os.urandom(3).hex()}"
    place = file or credentials_file(name)
    given = sys.stdin.readline().strip() if token == STDIN else token
    if not is_private(url):
        output.say(
            "warning: without https, anybody on the network path can read the gateway's secret"
        )
    made = asyncio.run(enrol(url, given, name, place, wake_url=wake_url, replace=replace))
    cli.emit(
        {"gateway_id": made.gateway_id, "tenant": made.tenant, "file": str(place)},
        f"Enrolled as {printable(made.gateway_id)}; the secret is in {place}.",
    )


@app.command(epilog="Example: accord relay gateway run --here echo --command 'jq -r .event.text'")
def run(
    cli: GatewayCli,
    agent: Annotated[
        str | None,
        typer.Option(help="A Python agent, as module:name; the current folder is searched, too."),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(help="A shell command: reads the event as JSON, prints the answer."),
    ] = None,
    front: Front = None,
    here: Annotated[
        str | None,
        typer.Option(
            help="Enrol it under this name at this machine's station, with a space in the web chat."
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="The connector (default: where it was enrolled).")
    ] = None,
    gateway_id: GatewayId = None,
    file: CredentialsFile = None,
    inbox: Annotated[
        str | None,
        typer.Option(
            help="The folder for unfinished events, or `memory` (default: beside the secret)."
        ),
    ] = None,
    session_keys: Annotated[
        SessionKeyForm,
        typer.Option(help="The form of session keys; older connectors need hermes."),
    ] = SessionKeyForm.SCOPED,
    shared_groups: Annotated[
        bool,
        typer.Option(
            "--shared-groups",
            envvar="GATEWAY_RELAY_SHARED_GROUPS",
            help="Let everybody in a group talk in one session.",
        ),
    ] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWAY_RELAY_PROFILE", help="The name under which its sessions are kept apart."
        ),
    ] = None,
    commands: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWAY_RELAY_COMMANDS",
            help="A JSON file with a list of commands to offer: name, description, options.",
        ),
    ] = None,
) -> None:
    """Connect a shell command or a Python function to chats, and serve until SIGTERM or Ctrl-C.

    With --here no token is needed: the station of this machine enrols it directly, and a link to
    join its space and talk to it is printed.

    A gateway that sleeps after --idle seconds is woken by its wake URL; without --suspend it dials
    again at once, unless something else has frozen the machine meanwhile. A rotated secret is used
    from the next dial.

    Prints each change of state. SIGTERM or Ctrl-C lets the connector buffer and finishes the
    turns under way; a second one ends at once. Exit code 1 when the access was revoked.
    """
    from accord.kernel.clock import SystemClock
    from accord.relay.errors import RelayError
    from accord.relay.gateway import (
        GatewaySettings,
        GatewayState,
        RelayGateway,
        StoredSecret,
        settle,
    )
    from accord.relay.gateway.enrolment import CREDENTIALS_FILE
    from accord.relay.rules.messages import read_profile
    from accord.station import logs, trace_export
    from accord.station.sections import LogSettings
    from accord.station.supervisor import exit_at_once

    if here is not None and (url or gateway_id or file):
        raise typer.BadParameter("with --here, none of --url, --id and --file is needed")
    if here is not None and not _NAME.fullmatch(here):
        raise typer.BadParameter("use letters, digits, dots and dashes", param_hint="--here")
    chosen = cli.choose(
        GatewaySettings(
            identities=identities(front),
            session_keys=session_keys.value,
            group_sessions_per_user=not shared_groups,
            profile=read_profile(profile),
            command_manifest=_read_commands(commands),
            environment=os.environ,
        )
    )
    answering = _load_agent(agent, command, chosen.limits)

    async def serve() -> "GatewayState":
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(
                trace_export.export_traces(_telemetry_settings(cli, here), service="accord-gateway")
            )
            if here is None:
                place, known = find_credentials(gateway_id, file)
                return await dial(url or known.url, known, place, inbox)
            guest = await opened.enter_async_context(_open_agent(cli, here))
            if guest.invite:
                cli.emit({"invite": guest.invite}, f"talk to it: {guest.invite}")
            kept = inbox or str(guest.folder)
            place = guest.folder / CREDENTIALS_FILE
            return await dial(guest.address, guest.credentials, place, kept)

    async def dial(
        address: str, known: "GatewayCredentials", place: Path | None, kept: str | None
    ) -> "GatewayState":
        if place is not None:
            with suppress(RelayError):  # it tries both secrets until then
                known = await settle(known, place, SystemClock().now())
        gateway = RelayGateway(
            address,
            secret=known.secret if place is None else StoredSecret(place, known),
            gateway_id=known.gateway_id,
            agent=answering,
            settings=changed(chosen, inbox=kept),
            suspend=cli.suspend_hook(),
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


@app.command(epilog="Example: accord relay gateway rotate --id echo")
def rotate(
    cli: Output,
    gateway_id: GatewayId = None,
    file: CredentialsFile = None,
    secret: Annotated[
        str | None,
        typer.Option(
            help="Store the secret that the connector's operator got by `accord relay rotate`, "
            "instead of asking for one; - is stdin."
        ),
    ] = None,
) -> None:
    """Get a new secret for a gateway and keep it in its file; the old one stays valid for a while.

    A gateway that runs need not be restarted: it reads the file at its next dial. Killed at any
    moment, the file holds a secret that is good.
    """
    from accord.kernel.clock import SystemClock
    from accord.relay.errors import Code, RelayError
    from accord.relay.gateway import rotate, store_secret

    place, known = find_credentials(gateway_id, file)
    if place is None:
        raise RelayError(
            Code.BAD_REQUEST,
            "the secret comes from the environment",
            where="GATEWAY_RELAY_SECRET",
            mend="let the connector's operator rotate, and set it anew",
        )
    now = SystemClock().now()
    if secret is None:
        asyncio.run(rotate(known, place, now))
    else:
        given = sys.stdin.readline().strip() if secret == STDIN else secret
        asyncio.run(store_secret(known, given, place, now))
    cli.emit(
        {"gateway_id": known.gateway_id, "file": str(place)},
        f"The new secret of {printable(known.gateway_id)} is in {place}.",
    )


def _read_commands(file: str | None) -> Any:
    """The manifest in a file; what of it is no command is left out by the platforms."""
    if file is None:
        return None
    manifest = read_json(file)
    if not isinstance(manifest, list) or not all(isinstance(each, dict) for each in manifest):
        raise typer.BadParameter("the file should hold a list of objects", param_hint="--commands")
    return manifest


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


def _load_agent(agent: str | None, command: str | None, limits: "GatewayLimits") -> "Agent":
    from accord.relay.gateway import command_agent, load_agent

    if (agent is None) == (command is None):
        raise typer.BadParameter("give either --agent or --command")
    if agent is None:
        return command_agent(
            ["sh", "-c", command or ""], timeout=limits.command, output_bytes=limits.command_bytes
        )
    sys.path.insert(0, "")
    return load_agent(agent)


def find_credentials(
    gateway_id: str | None, file: Path | None
) -> tuple[Path | None, "GatewayCredentials"]:
    """Those that are named, else those of the environment, else the only ones on this machine.

    With the file that they are in, if they are in one.
    """
    from accord.relay.errors import Code, RelayError
    from accord.relay.gateway.enrolment import (
        GatewayCredentials,
        credentials_file,
        credentials_files,
        load_credentials,
    )

    if file is None and gateway_id is not None:
        file = credentials_file(gateway_id)
    if file is not None:
        return file, load_credentials(file)
    given = [os.environ.get(f"GATEWAY_RELAY_{name}", "") for name in ("URL", "ID", "SECRET")]
    if all(given):
        return None, GatewayCredentials(given[0], given[1], "", given[2])
    found = credentials_files()
    if len(found) == 1:
        return found[0], load_credentials(found[0])
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


app.add_typer(
    gateway_outbox.outbox, name="outbox", help="List, retry and drop what a gateway keeps."
)
app.add_typer(
    gateway_outbox.retention, name="retention", help="Show and confirm a gateway's clock."
)
