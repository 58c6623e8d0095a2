"""`accord relay chat`: the spaces, channels and people of the built-in web chat."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from accord.cli import report
from accord.cli.community_node import show_lines
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json
from accord.cli.relay_store import moment, need_home, with_relay

if TYPE_CHECKING:
    from accord.relay.connector.assembly import Connector
    from accord.relay.platforms.webchat import Admin, Channel, Invite, Space, User

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, epilog="Example: accord relay chat space kitchen")

In = Annotated[
    str | None, typer.Option("--space", help="The space's name or id (default: the only one).")
]


@app.command(epilog="Example: accord relay chat space kitchen --tenant default")
def space(
    name: Annotated[str, typer.Argument(help="What it is called.")],
    tenant: Annotated[str, typer.Option(help="Whose agents may be reached there.")] = "default",
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Open a space with a channel `general`, in which a tenant's agents can be reached."""

    async def make(admin: "Admin") -> tuple["Space", "Channel"]:
        made = await admin.create_space(name)
        return made, await admin.create_channel(made.id, "general")

    async def route(connector: "Connector") -> None:
        await connector.control.route(tenant, "webchat", made.id)

    made, channel = _with_chat(home, config, make)
    with_relay(home, config, route)
    if as_json:
        report.show_json({"space": made.id, "channel": channel.id, "tenant": tenant})
    else:
        typer.echo(f"The space {made.name} is {made.id}, its channel general is {channel.id}.")


@app.command(epilog="Example: accord relay chat channel plans --private")
def channel(
    name: Annotated[str, typer.Argument(help="What it is called.")],
    space: In = None,
    private: Annotated[
        bool, typer.Option("--private", help="Nobody sees it who was not let in.")
    ] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Open a channel in a space."""

    async def make(admin: "Admin") -> "Channel":
        return await admin.create_channel(await _space(admin, space), name, private=private)

    made = _with_chat(home, config, make)
    if as_json:
        report.show_json({"space": made.space_id, "channel": made.id})
    else:
        typer.echo(f"The channel {made.name} is {made.id}.")


@app.command(epilog="Example: accord relay chat invite --space kitchen")
def invite(
    space: In = None,
    manager: Annotated[
        bool, typer.Option("--manager", help="May manage every channel of the space.")
    ] = False,
    hours: Annotated[float, typer.Option(min=0.001, max=8760, help="Until it expires.")] = 168.0,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Print a link by which one person joins a space, once."""

    async def make(admin: "Admin") -> "Invite":
        seconds = max(1, round(hours * 3600))
        return await admin.invite(await _space(admin, space), manager=manager, seconds=seconds)

    made = _with_chat(home, config, make)
    url = _whole(made.url, home, config)
    if as_json:
        report.show_json({"url": url, "expires_at": moment(made.expires_at)})
        return
    report.say(f"Until {moment(made.expires_at)}:")
    typer.echo(url)


@app.command("list", epilog="Example: accord relay chat list --json")
def list_all(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """List spaces, channels and people."""

    async def read(
        admin: "Admin",
    ) -> tuple[list["Space"], list["Channel"], list["User"]]:
        return (
            list(await admin.spaces()),
            list(await admin.channels()),
            list(await admin.users()),
        )

    spaces, channels, users = _with_chat(home, config, read)
    if as_json:
        report.show_json(
            {
                "spaces": [{"id": each.id, "name": each.name} for each in spaces],
                "channels": [
                    {"id": each.id, "space": each.space_id, "name": each.name} for each in channels
                ],
                "users": [
                    {"id": each.id, "name": each.name, "spaces": each.spaces} for each in users
                ],
            }
        )
        return
    show_lines(
        [
            *(("space", each.id, printable(each.name)) for each in spaces),
            *(("channel", each.id, printable(each.name)) for each in channels),
            *(("user", each.id, printable(each.name)) for each in users),
        ]
    )


def _with_chat(
    home: Path | None, config: Path | None, work: Callable[["Admin"], Awaitable[T]]
) -> T:
    from accord.kernel.clock import SystemClock
    from accord.relay.platforms.webchat import open_admin
    from accord.station.relay import webchat_settings
    from accord.station.settings import load
    from accord.station.store import place

    settings = load(home, config)
    need_home(settings)

    async def run() -> T:
        async with open_admin(place(settings), SystemClock(), webchat_settings(settings)) as admin:
            return await work(admin)

    return asyncio.run(run())


def _whole(url: str, home: Path | None, config: Path | None) -> str:
    """An address that can be followed: below the running station's where no other was set."""
    from accord.station.home import Home as Place
    from accord.station.home import holder
    from accord.station.settings import load

    if not url.startswith("/"):
        return url
    held = holder(Place(load(home, config).home))
    if held is None:
        report.say("The station does not run: put its address before this, once it does.")
        return url
    return f"{held.address}{url}"


async def _space(admin: "Admin", wanted: str | None) -> str:
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
