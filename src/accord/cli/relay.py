"""`accord relay serve | chat`: the connector and its web chat; here the groups come together."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from accord.cli import gateway, output, relay_agents, relay_deliveries
from accord.cli.arguments import printable
from accord.cli.output import App, Cli
from accord.cli.planes import (
    RemoteOptions,
    format_millis,
    refuse_remote,
    remote_options,
    with_relay,
)
from accord.cli.station import Port, serve_plane

if TYPE_CHECKING:
    from accord.relay.platforms.webchat import Admin, Channel, Invite, PendingInvite, Space, User

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
    """Run a connector alone, without the other planes, until SIGTERM or Ctrl-C.

    Several connectors can share a store (`store.url`) and notify each other over Redis
    (`relay.redis`). It runs on this machine, so `--connector` is refused.
    """
    from accord.station.run import relay_planes

    refuse_remote(cli, "`serve` runs a connector on this machine, not on another")
    serve_plane(cli, "The connector", relay_planes, port, with_device=True)


T = TypeVar("T")

chat_app = App(no_args_is_help=True, epilog="Example: accord relay chat space kitchen")

InSpace = Annotated[
    str | None, typer.Option("--space", help="The space's name or id (default: the only one).")
]


@chat_app.command(epilog="Example: accord relay chat space kitchen --tenant default")
def space(
    cli: Cli,
    name: Annotated[str, typer.Argument(help="Its name.")],
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
    name: Annotated[str, typer.Argument(help="Its name.")],
    space: InSpace = None,
    private: Annotated[
        bool, typer.Option("--private", help="Only people who were admitted see it.")
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
    hours: Annotated[
        float, typer.Option(min=0.001, max=8760, help="Hours until it expires.")
    ] = 168.0,
) -> None:
    """Print a one-time link to join a space."""

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
    """Withdraw an invitation."""
    _with_chat(cli, lambda admin: admin.withdraw(invite))
    cli.emit({"withdrawn": invite}, "The invitation is withdrawn.")


@chat_app.command(epilog="Example: accord relay chat remove 01JZ6M3S9A8Q4W0X7B2C5D6E7F")
def remove(
    cli: Cli,
    user: Annotated[str, typer.Argument(help="Their id, as `accord relay chat list` shows it.")],
) -> None:
    """Remove a person's access and links to agents; what was written stays."""
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

    refuse_remote(cli, "the web chat is managed on the connector's own machine")
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
app.add_typer(relay_agents.token, name="token", help="Manage enrolment tokens.")
app.add_typer(
    relay_agents.operator_token,
    name="operator-token",
    help="Manage the tokens of operators on other machines.",
)
app.add_typer(relay_agents.key, name="key", help="Rotate the key of the relay's secrets.")
app.add_typer(relay_agents.scope, name="scope", help="Assign servers and channels.")
app.add_typer(
    relay_deliveries.outbox, name="outbox", help="List, retry and drop actions of agents."
)
app.add_typer(
    relay_deliveries.retention, name="retention", help="Show and confirm the clock of retention."
)
app.add_typer(
    relay_deliveries.deadletters,
    name="deadletters",
    help="List, replay and delete undelivered messages.",
)
app.add_typer(
    chat_app, name="chat", help="Manage the built-in web chat, on the connector's own machine."
)
app.add_typer(gateway.app, name="gateway", help="Connect an agent to a connector.")
