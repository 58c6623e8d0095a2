"""Agents and what reaches them.

`accord relay token | instances | link | rotate | wake-url | key | revoke | pardon | scope |
principal | policy | open | close`.
"""

from dataclasses import asdict
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli.arguments import printable
from accord.cli.context import App, Cli
from accord.cli.planes import Instance, Tenant, format_millis, with_instance, with_relay

if TYPE_CHECKING:
    from accord.relay.connector.connector import Connector
    from accord.relay.connector.manage import KeyStatus
    from accord.relay.connector.registry import MintedToken
    from accord.relay.connector.store import Principal


app = App()
token = App(no_args_is_help=True, epilog="Example: accord relay token new --instance echo")


@token.command(epilog="Example: accord relay token new --instance echo --hours 1")
def new(
    cli: Cli,
    tenant: Annotated[str, typer.Option(help="The tenant of the agent.")] = "default",
    instance: Annotated[
        str | None, typer.Option(help="The agent's instance id (default: a new one).")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What people read when they link it (default: the id).")
    ] = None,
    hours: Annotated[
        float, typer.Option(min=0.001, max=8760, help="For how long it can be used.")
    ] = 24.0,
) -> None:
    """Print a one-time enrolment token for a gateway. Treat it like a password."""
    made = with_relay(
        cli,
        lambda connector: connector.control.mint_token(
            tenant, instance, name=name, seconds=max(1, round(hours * 3600))
        ),
    )
    cli.note(f"The instance is {printable(made.instance)}; until {format_millis(made.expires_at)}:")
    cli.emit(
        {
            "token": made.token,
            "tenant": made.tenant,
            "instance": made.instance,
            "expires_at": format_millis(made.expires_at),
        },
        made.token,
    )


@token.command("list", epilog="Example: accord relay token list --tenant default")
def list_tokens(cli: Cli, tenant: Tenant = None) -> None:
    """List recent enrolment tokens, without the tokens themselves."""
    from accord.relay.connector.registry import list_tokens

    async def read(connector: "Connector") -> list["MintedToken"]:
        return await connector.store.read(lambda c: list_tokens(c, tenant))

    found = with_relay(cli, read)
    cli.emit(
        {"tokens": [asdict(each) for each in found]},
        (
            (
                printable(each.tenant),
                printable(each.instance),
                f"until {format_millis(each.expires_at)}",
                "not used" if each.used_at is None else f"used {format_millis(each.used_at)}",
            )
            for each in found
        ),
    )


@app.command(epilog="Example: accord relay instances --json")
def instances(cli: Cli, tenant: Tenant = None) -> None:
    """List the agents that have enrolled, and how each is doing."""

    async def read(connector: "Connector") -> list[dict[str, Any]]:
        from accord.relay.connector.registry import refused_hellos

        return [
            {
                **asdict(each),
                "refused": refused_hellos(each),
                "live": each.live,
                "empty": await connector.delivery.is_empty(each.instance),
            }
            for each in await connector.control.instances(tenant)
        ]

    found = with_relay(cli, read)
    cli.emit(
        {"instances": found},
        (
            (
                printable(each["instance"]),
                printable(each["tenant"]),
                f"gateway {printable(each['gateway_id'])}",
                each["origin"],
                _standing(each),
                "nothing waits" if each["empty"] else "messages wait",
                "; ".join(map(_refusal, each["refused"])),
            )
            for each in found
        ),
    )


@app.command(epilog="Example: accord relay link echo")
def link(
    cli: Cli,
    instance: Instance,
    account: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Link this account at once: its platform, and the user id there."),
    ] = None,
) -> None:
    """Print a code by which a person links a chat account to an agent.

    --account links an account directly, for example that of a program, which confirms no code.
    """
    if account is not None:
        platform, user = account
        with_relay(cli, lambda each: each.control.bind(instance, platform, user))
        cli.emit(
            {"instance": instance, "platform": platform, "user": user},
            f"{printable(user)} on {printable(platform)} is linked.",
        )
        return

    made = with_instance(cli, instance, lambda connector, caller: connector.control.link(caller))
    cli.note(
        f"Until {format_millis(made.expires_at)}, send the bot this as a direct message, "
        "then answer its question with yes:"
    )
    cli.emit(
        {"code": made.code, "expires_at": format_millis(made.expires_at)}, f"/link {made.code}"
    )


@app.command(epilog="Example: accord relay rotate echo --grace 600")
def rotate(
    cli: Cli,
    instance: Instance,
    grace: Annotated[
        int,
        typer.Option(min=0, max=604_800, help="For how many seconds the old secret stays valid."),
    ] = 3600,
) -> None:
    """Give an agent's gateway a new secret, and print it; the old one stays valid for a while."""
    made = with_instance(
        cli,
        instance,
        lambda connector, caller: connector.control.rotate(caller, grace_seconds=grace),
    )
    cli.note(f"The old secret is valid until {format_millis(made.old_until)}; the new one is:")
    cli.emit({"secret": made.secret, "old_until": format_millis(made.old_until)}, made.secret)


@app.command("wake-url", epilog="Example: accord relay wake-url echo https://wake.example/echo")
def wake_url(
    cli: Cli,
    instance: Instance,
    url: Annotated[
        str | None, typer.Argument(help="What is asked for to wake it; without it, show.")
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Take it away; its gateway may name one again.")
    ] = False,
) -> None:
    """Say by which URL a sleeping agent is woken; what is said here, its gateway cannot change.

    The URL itself is not shown: it may hold a secret.
    """
    if clear and url is not None:
        raise typer.BadParameter("give a URL, or --clear")

    async def change(connector: "Connector", caller: "Principal") -> dict[str, Any]:
        if clear or url is not None:
            await connector.control.set_wake_url(caller, url, by_operator=True)
        return await connector.control.status(caller)

    status = with_instance(cli, instance, change)
    has_one, by = status["hasWakeUrl"], status["wakeUrlSetBy"]
    cli.emit(
        {"instance": instance, "has_wake_url": has_one, "set_by": by if has_one else None},
        f"It is woken by a URL that the {by} named." if has_one else "It has no wake URL.",
    )


key = App(no_args_is_help=True, epilog="Example: accord relay key rotate")


@key.command("show", epilog="Example: accord relay key show --json")
def show_keys(cli: Cli) -> None:
    """Show which keys encrypt the secrets in the relay's store, by id."""
    _emit_keys(cli, with_relay(cli, lambda connector: connector.control.key_status()))


@key.command("prepare", epilog="Example: accord relay key prepare")
def prepare_key(cli: Cli) -> None:
    """Make the next key without using it, to copy `relay.key` to other connectors first."""
    _emit_keys(cli, with_relay(cli, lambda connector: connector.control.prepare_key()))


@key.command("rotate", epilog="Example: accord relay key rotate")
def rotate_key(
    cli: Cli,
    finish: Annotated[
        bool, typer.Option("--finish", help="Make no new key: encrypt what is under older ones.")
    ] = False,
) -> None:
    """Encrypt every secret in the relay's store under a new key; the station may run.

    Older keys stay in the file until `accord relay key forget`. A rotation that was cut off loses
    nothing; --finish encrypts the rest.
    """
    done = with_relay(cli, lambda connector: connector.control.rotate_key(with_new_key=not finish))
    cli.emit({"encrypted": done}, f"{done} secrets are encrypted anew.")


@key.command("forget", epilog="Example: accord relay key forget")
def forget_keys(cli: Cli) -> None:
    """Drop older keys from `relay.key`, once nothing needs them."""
    done = with_relay(cli, lambda connector: connector.control.forget_keys())
    cli.emit({"forgotten": done}, f"{done} older keys forgotten.")


def _emit_keys(cli: Cli, status: "KeyStatus") -> None:
    lines = [("encrypts", status.key_id), *(("decrypts", each) for each in status.older)]
    if status.prepared is not None:
        lines.append(("prepared", status.prepared))
    lines.append(("under older keys", str(status.old_boxes)))
    cli.emit(asdict(status), lines)


Which = Annotated[str | None, typer.Argument(help="The instance; or give --tenant.")]
Whole = Annotated[str | None, typer.Option("--tenant", help="A tenant with all its agents.")]


@app.command(epilog="Example: accord relay revoke echo")
def revoke(cli: Cli, instance: Which = None, tenant: Whole = None) -> None:
    """Revoke an agent at once, or disable a tenant with all its agents.

    Sockets are closed and what waits becomes dead letters. An agent loses its links, channels and
    policies; a tenant that is switched on again has kept them.
    """
    _one_of(instance, tenant)

    async def end(connector: "Connector") -> list[str]:
        if tenant is not None:
            return await connector.control.suspend(tenant)
        await connector.control.revoke(instance or "")
        return [instance or ""]

    ended = with_relay(cli, end)
    cli.emit(
        {"revoked": ended},
        f"Revoked: {', '.join(map(printable, ended)) or 'nobody, it had no agents'}.",
    )


@app.command(epilog="Example: accord relay pardon echo")
def pardon(cli: Cli, instance: Which = None, tenant: Whole = None) -> None:
    """Let a revoked agent enrol again, or enable a tenant again."""
    _one_of(instance, tenant)

    async def undo(connector: "Connector") -> bool:
        if tenant is not None:
            await connector.control.resume(tenant)
            return True
        return await connector.control.pardon(instance or "")

    done, name = with_relay(cli, undo), instance or tenant or ""
    cli.emit(
        {"pardoned": name if done else None}, [f"Pardoned: {printable(name)}."] if done else ()
    )
    if not done:
        cli.note(f"{printable(name)} may enrol already; no operator has revoked it.")


def _one_of(instance: str | None, tenant: str | None) -> None:
    if (instance is None) == (tenant is None):
        raise typer.BadParameter("name one instance, or one tenant with --tenant")


def _refusal(refused: dict[str, str]) -> str:
    """A hello that was refused, and why."""
    bot = f"{printable(refused['platform'])} {printable(refused['botId'])}".strip()
    return f"refused {bot}: {refused['reason']}"


def _standing(record: dict[str, Any]) -> str:
    if record["suspended"]:
        return "its tenant is switched off"
    if record["revoked_at"] is not None:
        return f"revoked {format_millis(record['revoked_at'])}"
    return "live"


scope = App(no_args_is_help=True, epilog="Example: accord relay scope grant echo discord G1 C1")

Platform = Annotated[str, typer.Argument(help="The platform, such as webchat.")]
Scope = Annotated[str, typer.Argument(help="The server or space; '' where there is none.")]
Channel = Annotated[str, typer.Argument(help="The channel's id.")]


class PrincipalPolicyName(Enum):
    """Whom an agent listens to in the channels that it holds."""

    OWNER_ONLY = "owner-only"
    ALLOW_LIST = "allow-list"
    ANY = "any"


@scope.command(epilog="Example: accord relay scope route discord G1 --tenant default")
def route(
    cli: Cli,
    platform: Platform,
    key: Annotated[str, typer.Argument(help="A server, a chat that is in none, or a webhook.")],
    tenant: Annotated[str, typer.Option(help="The tenant.")] = "default",
    away: Annotated[
        bool, typer.Option("--away", help="Remove it from its tenant instead.")
    ] = False,
) -> None:
    """Assign a server to a tenant; until then, each author reaches their own agent."""

    async def change(connector: "Connector") -> None:
        if away:
            await connector.control.unroute(platform, key)
        else:
            await connector.control.route(tenant, platform, key)

    with_relay(cli, change)
    cli.emit(
        {"platform": platform, "key": key, "tenant": None if away else tenant},
        f"{printable(platform)} {printable(key)} belongs to "
        f"{'nobody' if away else printable(tenant)}.",
    )


@scope.command(epilog="Example: accord relay scope share discord G1")
def share(
    cli: Cli,
    platform: Platform,
    key: Annotated[str, typer.Argument(help="A server, or a chat that is in none.")],
    away: Annotated[
        bool, typer.Option("--away", help="Let it belong to the tenant of its route again.")
    ] = False,
) -> None:
    """Say that several tenants share a server: each author reaches their own agent there."""

    async def change(connector: "Connector") -> bool:
        control = connector.control
        return await (control.unshare(platform, key) if away else control.share(platform, key))

    changed = with_relay(cli, change)
    cli.emit(
        {"platform": platform, "key": key, "shared": not away, "changed": changed},
        f"{printable(platform)} {printable(key)} is {'not ' if away else ''}shared.",
    )


@scope.command("list", epilog="Example: accord relay scope list --json")
def list_places(cli: Cli) -> None:
    """List whose servers and channels are, which are shared, and where agents are open."""
    found = with_relay(cli, lambda connector: connector.control.places())
    cli.emit(
        {"places": found},
        (
            (
                each["kind"],
                printable(each["platform"]),
                printable(each.get("route_key") or each.get("scope_id") or "-"),
                printable(each.get("channel_id") or "-"),
                printable(each.get("tenant") or "-"),
                printable(each.get("instance") or "-"),
            )
            for each in found
        ),
    )


@scope.command(epilog="Example: accord relay scope grant echo discord G1 C1")
def grant(
    cli: Cli,
    instance: Instance,
    platform: Platform,
    scope_id: Scope,
    channel_id: Channel,
    owner: Annotated[
        str | None, typer.Option(help="The linked user whose view counts (default: the first one).")
    ] = None,
) -> None:
    """Grant a channel to an agent."""
    with_relay(
        cli,
        lambda connector: connector.control.grant(instance, platform, scope_id, channel_id, owner),
    )
    cli.emit(_channel_json(instance, platform, scope_id, channel_id), "Granted.")


@scope.command(epilog="Example: accord relay scope release echo discord G1 C1")
def release(
    cli: Cli, instance: Instance, platform: Platform, scope_id: Scope, channel_id: Channel
) -> None:
    """Revoke a channel of an agent."""
    with_instance(
        cli,
        instance,
        lambda connector, caller: connector.control.release_scope(
            caller, platform, scope_id, channel_id
        ),
    )
    cli.emit(_channel_json(instance, platform, scope_id, channel_id), "Released.")


OpenScope = Annotated[
    str | None, typer.Argument(help="The server or space; '' where there is none.")
]
OpenChannel = Annotated[
    str | None, typer.Argument(help="One channel of it (default: all of them).")
]
Direct = Annotated[bool, typer.Option("--direct", help="The platform's direct messages.")]


@app.command("open", epilog="Example: accord relay open helpdesk discord G1 C1")
def open_(
    cli: Cli,
    instance: Instance,
    platform: Platform,
    scope_id: OpenScope = None,
    channel_id: OpenChannel = None,
    direct: Direct = False,
) -> None:
    """Let people who are not linked talk to an agent in a place.

    They must address it, except in channels that its policy frees. How much one person may write is
    limited, and the agent may answer there and nowhere else.
    """
    scope, channel = _open_place(scope_id, channel_id, direct)
    with_relay(cli, lambda connector: connector.control.open(instance, platform, scope, channel))
    cli.emit(
        _channel_json(instance, platform, scope, channel),
        f"{printable(instance)} is open to everybody there.",
    )


@app.command(epilog="Example: accord relay close discord G1 C1")
def close(
    cli: Cli,
    platform: Platform,
    scope_id: OpenScope = None,
    channel_id: OpenChannel = None,
    direct: Direct = False,
) -> None:
    """End that an agent is open to everybody in a place; it can no longer write there at once."""
    scope, channel = _open_place(scope_id, channel_id, direct)
    closed = with_relay(cli, lambda connector: connector.control.close(platform, scope, channel))
    cli.emit(
        {"instance": closed, "platform": platform, "scope_id": scope, "channel_id": channel},
        "No agent was open there."
        if closed is None
        else f"{printable(closed)} is not open there any more.",
    )


def _open_place(scope_id: str | None, channel_id: str | None, direct: bool) -> tuple[str, str]:
    """The scope and channel that are meant; both '' are direct messages, which must be said."""
    scope, channel = scope_id or "", channel_id or ""
    if direct == bool(scope or channel):
        raise typer.BadParameter("name a server or a channel, or give --direct")
    return scope, channel


@app.command(
    epilog="Example: accord relay principal echo webchat allow-list --allow ann --allow bo"
)
def principal(
    cli: Cli,
    instance: Instance,
    platform: Platform,
    policy: Annotated[
        PrincipalPolicyName | None, typer.Argument(help="Omit it to show the current value.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="A user id for the list; repeatable.")
    ] = None,
) -> None:
    """Set whose messages an agent receives in its channels; its owner's always are."""
    if allow and policy is not PrincipalPolicyName.ALLOW_LIST:
        raise typer.BadParameter("--allow is valid only with allow-list", param_hint="--allow")

    async def change(connector: "Connector", caller: "Principal") -> Any:
        from accord.relay.rules.gate import PrincipalPolicy

        if policy is not None:
            chosen = PrincipalPolicy(policy.value)
            await connector.control.set_principal(caller, platform, chosen, allow or ())
        return await connector.control.status(caller)

    status = with_instance(cli, instance, change)
    found = _of_platform(status["principals"], platform) or {
        "platform": platform,
        "policy": PrincipalPolicyName.OWNER_ONLY.value,
        "allow": [],
    }
    listed = f": {', '.join(map(printable, found['allow']))}" if found["allow"] else ""
    cli.emit(found, f"{found['policy']}{listed}")


@app.command(epilog="Example: accord relay policy echo webchat --require-address --free C1")
def policy(
    cli: Cli,
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
        list[str] | None, typer.Option(help="A channel in which it need not; repeatable.")
    ] = None,
    other_bots: Annotated[
        bool | None,
        typer.Option(
            "--other-bots/--no-other-bots", help="Whether it receives messages of other bots."
        ),
    ] = None,
    by_gateway: Annotated[
        bool, typer.Option("--by-gateway", help="Use what its gateway declares again.")
    ] = False,
) -> None:
    """Set which messages an agent wants, replacing all options; without options, show it.

    A gateway declares this at each start. What is set here overrides it until --by-gateway.
    """
    is_change = any(each is not None for each in (require_address, free, other_bots))
    if by_gateway and is_change:
        raise typer.BadParameter(
            "it cannot be combined with other options", param_hint="--by-gateway"
        )

    async def change(connector: "Connector", caller: "Principal") -> Any:
        from accord.relay.rules.gate import RelevancePolicy

        if is_change:
            wanted = RelevancePolicy(
                require_address=bool(require_address),
                free_response_scopes=frozenset(free or ()),
                allow_other_bots=bool(other_bots),
            )
            await connector.control.set_relevance(caller, platform, wanted, by_operator=True)
        else:
            wanted = RelevancePolicy()
            if by_gateway:
                await connector.control.unpin_relevance(caller, platform)
        status = await connector.control.status(caller)
        default = {"platform": platform, **wanted.to_dict(), "setBy": "gateway"}
        return _of_platform(status["relevance"], platform) or default

    found = with_instance(cli, instance, change)
    lines = [
        "must be addressed" if found["requireAddress"] else "need not be addressed",
        "hears other bots" if found["allowOtherBots"] else "hears no other bots",
    ]
    if found["freeResponseScopes"]:
        lines.append(f"free in {', '.join(map(printable, found['freeResponseScopes']))}")
    if found["setBy"] == "operator":
        lines.append("set by the operator")
    cli.emit(found, "; ".join(lines))


def _of_platform(rows: list[dict[str, Any]], platform: str) -> dict[str, Any] | None:
    return next((row for row in rows if row["platform"] == platform), None)


def _channel_json(instance: str, platform: str, scope_id: str, channel_id: str) -> dict[str, Any]:
    return {
        "instance": instance,
        "platform": platform,
        "scope_id": scope_id,
        "channel_id": channel_id,
    }
