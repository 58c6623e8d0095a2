"""`accord relay scope | principal | policy`: which channels and whose messages reach an agent."""

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import report
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json
from accord.cli.relay_store import Instance, with_instance, with_relay

if TYPE_CHECKING:
    from accord.relay.connector.assembly import Connector
    from accord.relay.connector.control import Principal

app = typer.Typer()
scope = typer.Typer(
    no_args_is_help=True, epilog="Example: accord relay scope grant echo discord G1 C1"
)

Platform = Annotated[str, typer.Argument(help="The platform, such as webchat.")]
Scope = Annotated[str, typer.Argument(help="The server or space; '' where there is none.")]
Channel = Annotated[str, typer.Argument(help="The channel's id.")]


class Policy(Enum):
    """Whom an agent listens to in the channels that it holds."""

    OWNER_ONLY = "owner-only"
    ALLOW_LIST = "allow-list"
    ANY = "any"


@scope.command(epilog="Example: accord relay scope route discord G1 --tenant default")
def route(
    platform: Platform,
    key: Annotated[str, typer.Argument(help="A server, a chat that is in none, or a webhook.")],
    tenant: Annotated[str, typer.Option(help="Whose it is.")] = "default",
    away: Annotated[bool, typer.Option("--away", help="Take it from its tenant instead.")] = False,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Say to which tenant a server belongs; before that nothing in it reaches anybody."""

    async def change(connector: "Connector") -> None:
        if away:
            await connector.control.unroute(platform, key)
        else:
            await connector.control.route(tenant, platform, key)

    with_relay(home, config, change)
    _done(
        as_json,
        {"platform": platform, "key": key, "tenant": None if away else tenant},
        f"{printable(platform)} {printable(key)} belongs to "
        f"{'nobody' if away else printable(tenant)}.",
    )


@scope.command(epilog="Example: accord relay scope grant echo discord G1 C1")
def grant(
    instance: Instance,
    platform: Platform,
    scope_id: Scope,
    channel_id: Channel,
    owner: Annotated[
        str | None,
        typer.Option(help="The linked user whose view counts (default: the first one)."),
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Give a channel to an agent."""

    async def change(connector: "Connector") -> None:
        await connector.control.grant(instance, platform, scope_id, channel_id, owner)

    with_relay(home, config, change)
    _done(as_json, _channel(instance, platform, scope_id, channel_id), "Granted.")


@scope.command(epilog="Example: accord relay scope release echo discord G1 C1")
def release(
    instance: Instance,
    platform: Platform,
    scope_id: Scope,
    channel_id: Channel,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Take a channel from an agent."""

    async def change(connector: "Connector", caller: "Principal") -> None:
        await connector.control.release_scope(caller, platform, scope_id, channel_id)

    with_instance(home, config, instance, change)
    _done(as_json, _channel(instance, platform, scope_id, channel_id), "Released.")


@app.command(
    epilog="Example: accord relay principal echo webchat allow-list --allow ann --allow bo"
)
def principal(
    instance: Instance,
    platform: Platform,
    policy: Annotated[
        Policy | None, typer.Argument(help="Leave it out to see what holds now.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="A user id for the list; as often as needed.")
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Say whose messages an agent hears in the channels that it holds; an owner is always heard."""
    if allow and policy is not Policy.ALLOW_LIST:
        raise typer.BadParameter("--allow belongs to allow-list", param_hint="--allow")

    async def change(connector: "Connector", caller: "Principal") -> Any:
        from accord.relay.gate.facts import PrincipalPolicy

        if policy is not None:
            chosen = PrincipalPolicy(policy.value)
            await connector.control.set_principal(caller, platform, chosen, allow or ())
        return await connector.control.status(caller)

    status = with_instance(home, config, instance, change)
    found = _of(status["principals"], platform) or {
        "platform": platform,
        "policy": Policy.OWNER_ONLY.value,
        "allow": [],
    }
    listed = f": {', '.join(map(printable, found['allow']))}" if found["allow"] else ""
    _done(as_json, found, f"{found['policy']}{listed}")


@app.command(epilog="Example: accord relay policy echo webchat --require-address --free C1")
def policy(
    instance: Instance,
    platform: Platform,
    require_address: Annotated[
        bool | None,
        typer.Option(
            "--require-address/--no-require-address",
            help="Whether it must be mentioned or replied to.",
        ),
    ] = None,
    free: Annotated[
        list[str] | None,
        typer.Option(help="A channel in which it need not; as often as needed."),
    ] = None,
    other_bots: Annotated[
        bool | None,
        typer.Option("--other-bots/--no-other-bots", help="Whether it hears other bots."),
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Say when an agent wants to be spoken to, all of it anew; without options, show it.

    A gateway declares this at each start, and that replaces what was said here.
    """
    is_change = any(each is not None for each in (require_address, free, other_bots))

    async def change(connector: "Connector", caller: "Principal") -> Any:
        from accord.relay.wire.policy import RelevancePolicy

        if is_change:
            wanted = RelevancePolicy(
                require_address=bool(require_address),
                free_response_scopes=frozenset(free or ()),
                allow_other_bots=bool(other_bots),
            )
            await connector.control.set_relevance(caller, platform, wanted)
        else:
            wanted = RelevancePolicy()
        status = await connector.control.status(caller)
        return _of(status["relevance"], platform) or {"platform": platform, **wanted.to_dict()}

    found = with_instance(home, config, instance, change)
    lines = [
        "must be addressed" if found["requireAddress"] else "need not be addressed",
        "hears other bots" if found["allowOtherBots"] else "hears no other bots",
    ]
    if found["freeResponseScopes"]:
        lines.append(f"free in {', '.join(map(printable, found['freeResponseScopes']))}")
    _done(as_json, found, "; ".join(lines))


def _of(rows: list[dict[str, Any]], platform: str) -> dict[str, Any] | None:
    return next((row for row in rows if row["platform"] == platform), None)


def _channel(instance: str, platform: str, scope_id: str, channel_id: str) -> dict[str, Any]:
    return {
        "instance": instance,
        "platform": platform,
        "scope_id": scope_id,
        "channel_id": channel_id,
    }


def _done(as_json: bool, value: dict[str, Any], line: str) -> None:
    if as_json:
        report.show_json(value)
    else:
        typer.echo(line)
