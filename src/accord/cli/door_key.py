"""`accord door-key new | list | revoke`: keys of the local APIs, with what each opens."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli.arguments import parse_duration
from accord.cli.output import App, Cli
from accord.kernel.clock import SystemClock, format_time

if TYPE_CHECKING:
    from accord.capabilities.doors import DoorKey, DoorKeys

app = App(no_args_is_help=True, epilog="Example: accord door-key new kitchen --model 'qwen*'")
KeyName = Annotated[str, typer.Argument(help="Who holds it.")]
_DOORS = ("openai", "mcp")


@app.command(
    epilog="Example: accord door-key new helper --door mcp --tool rag.query --tool 'market.*'"
)
def new(
    cli: Cli,
    name: KeyName,
    door: Annotated[
        list[str] | None,
        typer.Option(help="The API that it opens, openai or mcp; both if left out.", metavar="API"),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model that it may use, or a beginning such as qwen*; all if left out."
        ),
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            help="A capability that an agent may call by MCP, or a beginning such as rag.*; all if "
            "left out."
        ),
    ] = None,
    per_minute: Annotated[int | None, typer.Option(help="The most requests in a minute.")] = None,
    at_once: Annotated[int | None, typer.Option(help="The most requests at the same time.")] = None,
    network: Annotated[
        bool,
        typer.Option("--network", help="Open it to other machines of the home network, too."),
    ] = False,
    expires: Annotated[
        str, typer.Option(help="For how long it is good: minutes, hours or days, such as 12h.")
    ] = "90d",
) -> None:
    """Print a key by which a program uses this node's models and tools, once."""
    from accord.capabilities.doors import Door, DoorScope

    chosen = door or list(_DOORS)
    if unknown := [each for each in chosen if each not in _DOORS]:
        raise typer.BadParameter(f"{unknown[0]} is none of {', '.join(_DOORS)}")
    scope = DoorScope(
        frozenset(map(Door, chosen)),
        tuple(model or ("*",)),
        tuple(tool or ("*",)),
        per_minute,
        at_once,
        network,
    )
    made, secret = _keys(cli).mint(
        name, scope, seconds=parse_duration(expires), now=SystemClock().now()
    )
    cli.note(f"Until {format_time(made.expires_at)}, whoever holds it may use {_opens(made)}:")
    cli.emit({**_shown(made), "key": secret}, secret)


@app.command("list", epilog="Example: accord door-key list --json")
def list_keys(cli: Cli) -> None:
    """List the keys, without their secrets."""
    found = sorted(_keys(cli).all(), key=lambda key: key.name)
    cli.emit(
        {"keys": [_shown(each) for each in found]},
        ((each.name, f"until {format_time(each.expires_at)}", _opens(each)) for each in found),
    )


@app.command(epilog="Example: accord door-key revoke kitchen")
def revoke(cli: Cli, name: KeyName) -> None:
    """End a key at once, also while the station runs."""
    ended = _keys(cli).revoke(name)
    cli.emit(_shown(ended), f"The key {name} opens nothing any more.")


def _keys(cli: Cli) -> "DoorKeys":
    from accord.capabilities.doors import DoorKeys
    from accord.station.home import Home

    home = Home(cli.station_settings().home)
    return DoorKeys(home.device_key.with_name("door-keys.json"))


def _shown(key: "DoorKey") -> dict[str, Any]:
    told = asdict(key.scope) | {"doors": sorted(each.value for each in key.scope.doors)}
    times = {"created_at": key.created_at, "expires_at": key.expires_at}
    return {"id": key.id, "name": key.name, **told, **times}


def _opens(key: "DoorKey") -> str:
    scope = key.scope
    parts = [" and ".join(sorted(each.value for each in scope.doors))]
    parts.append(f"models {', '.join(scope.models)}")
    parts.append(f"tools {', '.join(scope.tools)}")
    if scope.per_minute is not None:
        parts.append(f"{scope.per_minute} a minute")
    if scope.at_once is not None:
        parts.append(f"{scope.at_once} at once")
    parts.append("home network" if scope.network else "this machine")
    return "; ".join(parts)
