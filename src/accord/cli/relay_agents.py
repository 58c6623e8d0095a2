"""Agents and what reaches them.

`accord relay token | operator-token | instances | link | links | unlink | default | rotate |
revoke | pardon | scope | principal | policy`.
"""

import re
from enum import Enum
from typing import Annotated, Any

import typer

from accord.cli.arguments import printable
from accord.cli.context import App, Cli
from accord.cli.planes import Instance, Tenant, ask_relay, format_millis

app = App()
token = App(no_args_is_help=True, epilog="Example: accord relay token new --instance echo")


@token.command(epilog="Example: accord relay token new --instance echo --hours 1")
def new(
    cli: Cli,
    tenant: Annotated[str, typer.Option(help="Whose agent it will be.")] = "default",
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
    """Print a token by which one gateway can enrol, once. Hand it over as you would a password."""
    made = ask_relay(
        cli,
        "tokens/new",
        tenant=tenant,
        instance=instance,
        name=name,
        seconds=max(1, round(hours * 3600)),
    )
    cli.note(f"The instance is {printable(made['instance'])}; until {made['expires_at']}:")
    cli.emit(made, made["token"])


@token.command("list", epilog="Example: accord relay token list --tenant default")
def list_tokens(cli: Cli, tenant: Tenant = None) -> None:
    """List the enrolment tokens that were made lately, without the tokens themselves."""
    found = ask_relay(cli, "tokens/list", tenant=tenant)
    cli.emit(
        found,
        (
            (
                printable(each["tenant"]),
                printable(each["instance"]),
                f"until {format_millis(each['expires_at'])}",
                "not used" if each["used_at"] is None else f"used {format_millis(each['used_at'])}",
            )
            for each in found["tokens"]
        ),
    )


operator_token = App(
    no_args_is_help=True, epilog="Example: accord relay operator-token new ann --read-only"
)
_DURATION = re.compile(r"([0-9]{1,5})([mhd])", re.ASCII)
_UNITS = {"m": 60, "h": 3600, "d": 86_400}


def _seconds(duration: str) -> int:
    found = _DURATION.fullmatch(duration)
    if found is None:
        raise typer.BadParameter("such as 30m, 12h or 90d")
    return int(found[1]) * _UNITS[found[2]]


OperatorName = Annotated[str, typer.Argument(help="Who holds it, as the audit trail will say.")]


@operator_token.command(
    "new", epilog="Example: accord relay operator-token new ann --read-only --expires 30d"
)
def new_operator(
    cli: Cli,
    name: OperatorName,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Let it look, and change nothing.")
    ] = False,
    expires: Annotated[
        str, typer.Option(help="For how long it is good: minutes, hours or days, such as 12h.")
    ] = "90d",
) -> None:
    """Print a token by which somebody looks after this connector from another machine, once."""
    made = ask_relay(
        cli, "operators/new", name=name, seconds=_seconds(expires), read_only=read_only
    )
    may = "may look" if made["read_only"] else "may change everything"
    cli.note(f"Until {made['expires_at']}, whoever holds it {may}:")
    cli.emit(made, made["token"])


@operator_token.command("list", epilog="Example: accord relay operator-token list --json")
def list_operators(cli: Cli) -> None:
    """List the tokens of operators, without the tokens themselves."""
    found = ask_relay(cli, "operators/list")
    cli.emit(
        found,
        (
            (
                each["name"],
                "reads" if each["read_only"] else "changes",
                f"until {format_millis(each['expires_at'])}",
                ""
                if each["revoked_at"] is None
                else f"revoked {format_millis(each['revoked_at'])}",
            )
            for each in found["operators"]
        ),
    )


@operator_token.command("revoke", epilog="Example: accord relay operator-token revoke ann")
def revoke_operator(cli: Cli, name: OperatorName) -> None:
    """End an operator's token at once."""
    done = ask_relay(cli, "operators/revoke", name=name)
    cli.emit(done, f"The token of {printable(name)} is good no more.")


@app.command(epilog="Example: accord relay instances --json")
def instances(cli: Cli, tenant: Tenant = None) -> None:
    """List the agents that have enrolled, and how each is doing."""
    found = ask_relay(cli, "instances", tenant=tenant)
    cli.emit(
        found,
        (
            (
                printable(each["instance"]),
                printable(each["tenant"]),
                f"gateway {printable(each['gateway_id'])}",
                each["origin"],
                _standing(each),
                "nothing waits" if each["empty"] else "messages wait",
            )
            for each in found["instances"]
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

    For an account that no person writes from, such as a program's, --account links it by your word.
    """
    if account is not None:
        platform, user = account
        done = ask_relay(cli, "links/add", instance=instance, platform=platform, user=user)
        cli.emit(done, f"{printable(user)} on {printable(platform)} is linked.")
        return
    made = ask_relay(cli, "links/new", instance=instance)
    cli.note(
        f"Until {made['expires_at']}, send the bot this as a direct message, "
        "then answer its question with yes:"
    )
    cli.emit(made, f"/link {made['code']}")


User = Annotated[str, typer.Argument(help="The user's id on that platform.")]
OnPlatform = Annotated[str, typer.Argument(help="The platform, such as webchat.")]


@app.command(epilog="Example: accord relay links --instance echo")
def links(
    cli: Cli,
    instance: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 1000,
) -> None:
    """List linked accounts, and to which agent the direct messages of each go."""
    found = ask_relay(cli, "links/list", instance=instance, limit=limit)
    cli.emit(
        found,
        (
            (
                printable(each["platform"]),
                printable(each["user"]),
                printable(each["instance"]),
                printable(each["tenant"]),
                "direct messages" if each["is_default"] else "",
            )
            for each in found["links"]
        ),
    )


@app.command(epilog="Example: accord relay unlink discord 80351110224678912 --instance echo")
def unlink(
    cli: Cli,
    platform: OnPlatform,
    user: User,
    instance: Annotated[
        str | None, typer.Option(help="Only its link to this agent (default: all).")
    ] = None,
) -> None:
    """End the links of an account, and with them the right of those agents to write to it."""
    done = ask_relay(cli, "links/remove", platform=platform, user=user, instance=instance)
    cli.emit(done, f"{done['removed']} removed.")


@app.command(epilog="Example: accord relay default echo discord 80351110224678912")
def default(cli: Cli, instance: Instance, platform: OnPlatform, user: User) -> None:
    """Send the direct messages of an account that is linked to an agent to that agent."""
    done = ask_relay(cli, "links/default", instance=instance, platform=platform, user=user)
    cli.emit(
        done,
        f"Direct messages of {printable(user)} on {printable(platform)} go to "
        f"{printable(instance)}.",
    )


@app.command(epilog="Example: accord relay rotate echo --grace 600")
def rotate(
    cli: Cli,
    instance: Instance,
    grace: Annotated[
        int,
        typer.Option(min=0, max=604_800, help="For how many seconds the old secret stays good."),
    ] = 3600,
) -> None:
    """Give an agent's gateway a new secret, and print it; the old one stays good for a while."""
    made = ask_relay(cli, "rotate", instance=instance, grace=grace)
    cli.note(f"The old secret is good until {made['old_until']}; the new one is:")
    cli.emit(made, made["secret"])


Which = Annotated[str | None, typer.Argument(help="The instance; or give --tenant.")]
Whole = Annotated[str | None, typer.Option("--tenant", help="A tenant with all its agents.")]


@app.command(epilog="Example: accord relay revoke echo")
def revoke(cli: Cli, instance: Which = None, tenant: Whole = None) -> None:
    """Take an agent away at once, or switch off a tenant with all its agents.

    Sockets are closed and what waits becomes dead letters. An agent loses its links, channels and
    policies; a tenant that is switched on again has kept them.
    """
    _one_of(instance, tenant)
    ended = ask_relay(cli, "revoke", instance=instance, tenant=tenant)
    cli.emit(
        ended,
        f"Revoked: {', '.join(map(printable, ended['revoked'])) or 'nobody, it had no agents'}.",
    )


@app.command(epilog="Example: accord relay pardon echo")
def pardon(cli: Cli, instance: Which = None, tenant: Whole = None) -> None:
    """Let a revoked agent enrol again, or switch a tenant on again."""
    _one_of(instance, tenant)
    done = ask_relay(cli, "pardon", instance=instance, tenant=tenant)
    name = printable(instance or tenant or "")
    cli.emit(done, () if done["pardoned"] is None else f"Pardoned: {name}.")
    if done["pardoned"] is None:
        cli.note(f"{name} may enrol already; no operator has revoked it.")


def _one_of(instance: str | None, tenant: str | None) -> None:
    if (instance is None) == (tenant is None):
        raise typer.BadParameter("name one instance, or one tenant with --tenant")


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
    tenant: Annotated[str, typer.Option(help="Whose it is.")] = "default",
    away: Annotated[bool, typer.Option("--away", help="Take it from its tenant instead.")] = False,
) -> None:
    """Say to which tenant a server belongs; before that nothing in it reaches anybody."""
    done = ask_relay(cli, "route", platform=platform, key=key, tenant=None if away else tenant)
    cli.emit(
        done,
        f"{printable(platform)} {printable(key)} belongs to "
        f"{'nobody' if away else printable(tenant)}.",
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
    """Give a channel to an agent."""
    place = {"platform": platform, "scope_id": scope_id, "channel_id": channel_id}
    cli.emit(ask_relay(cli, "grant", instance=instance, owner=owner, **place), "Granted.")


@scope.command(epilog="Example: accord relay scope release echo discord G1 C1")
def release(
    cli: Cli, instance: Instance, platform: Platform, scope_id: Scope, channel_id: Channel
) -> None:
    """Take a channel from an agent."""
    place = {"platform": platform, "scope_id": scope_id, "channel_id": channel_id}
    cli.emit(ask_relay(cli, "release", instance=instance, **place), "Released.")


@app.command(
    epilog="Example: accord relay principal echo webchat allow-list --allow ann --allow bo"
)
def principal(
    cli: Cli,
    instance: Instance,
    platform: Platform,
    policy: Annotated[
        PrincipalPolicyName | None, typer.Argument(help="Leave it out to see what holds now.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="A user id for the list; as often as needed.")
    ] = None,
) -> None:
    """Say whose messages an agent hears in the channels that it holds; an owner is always heard."""
    if allow and policy is not PrincipalPolicyName.ALLOW_LIST:
        raise typer.BadParameter("--allow belongs to allow-list", param_hint="--allow")
    on = {"instance": instance, "platform": platform}
    if policy is None:
        found = ask_relay(cli, "principals/show", **on)
    else:
        found = ask_relay(cli, "principals/set", policy=policy.value, allow=allow or [], **on)
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
        list[str] | None, typer.Option(help="A channel in which it need not; as often as needed.")
    ] = None,
    other_bots: Annotated[
        bool | None,
        typer.Option("--other-bots/--no-other-bots", help="Whether it hears other bots."),
    ] = None,
    by_gateway: Annotated[
        bool, typer.Option("--by-gateway", help="Let what its gateway declares hold again.")
    ] = False,
) -> None:
    """Say when an agent wants to be spoken to, all of it anew; without options, show it.

    A gateway declares this at each start. What was said here stays, until --by-gateway.
    """
    is_change = any(each is not None for each in (require_address, free, other_bots))
    if by_gateway and is_change:
        raise typer.BadParameter(
            "it is said either here or by the gateway", param_hint="--by-gateway"
        )
    on = {"instance": instance, "platform": platform}
    if is_change:
        found = ask_relay(
            cli,
            "relevance/set",
            require_address=bool(require_address),
            free=free or [],
            other_bots=bool(other_bots),
            **on,
        )
    else:
        found = ask_relay(cli, "relevance/unset" if by_gateway else "relevance/show", **on)
    lines = [
        "must be addressed" if found["requireAddress"] else "need not be addressed",
        "hears other bots" if found["allowOtherBots"] else "hears no other bots",
    ]
    if found["freeResponseScopes"]:
        lines.append(f"free in {', '.join(map(printable, found['freeResponseScopes']))}")
    if found["setBy"] == "operator":
        lines.append("set by the operator")
    cli.emit(found, "; ".join(lines))
