"""Agents and what reaches them.

`accord relay token | operator-token | instances | link | links | unlink | default | rotate |
wake-url | sessions | key | revoke | pardon | scope | open | close | principal | policy`.
"""

from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any

import typer

from accord.cli.arguments import parse_duration, printable
from accord.cli.output import App, Cli
from accord.cli.planes import Instance, Tenant, ask_relay, format_millis


class Sessions(Enum):
    """Whose sessions in a group or thread are kept apart."""

    SHARED = "shared"
    PER_USER = "per-user"


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
    """Print a one-time enrolment token for a gateway. Treat it like a password."""
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
    """List recent enrolment tokens, without the tokens themselves."""
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
        cli, "operators/new", name=name, seconds=parse_duration(expires), read_only=read_only
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
                "; ".join(map(_refusal, each["refused"])),
                _changed_sessions(each["sessions"]),
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

    --account links an account directly, for example that of a program, which confirms no code.
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
        typer.Option(min=0, max=604_800, help="For how many seconds the old secret stays valid."),
    ] = 3600,
) -> None:
    """Give an agent's gateway a new secret, and print it; the old one stays valid for a while."""
    made = ask_relay(cli, "rotate", instance=instance, grace=grace)
    cli.note(f"The old secret is valid until {made['old_until']}; the new one is:")
    cli.emit(made, made["secret"])


@app.command("wake-url", epilog="Example: accord relay wake-url echo https://wake.example/echo")
def wake_url(
    cli: Cli,
    instance: Instance,
    url: Annotated[
        str | None, typer.Argument(help="What is requested to wake it; omit it to show.")
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="Remove it; its gateway may name one again.")
    ] = False,
) -> None:
    """Set the URL that wakes a sleeping agent; its gateway cannot change what is set here.

    The URL itself is not shown: it may hold a secret.
    """
    if clear and url is not None:
        raise typer.BadParameter("give a URL, or --clear")
    if clear or url is not None:
        found = ask_relay(cli, "wake-url/set", instance=instance, url=url)
    else:
        found = ask_relay(cli, "wake-url/show", instance=instance)
    by = found["set_by"]
    cli.emit(
        found,
        f"It is woken by a URL that the {by} named."
        if found["has_wake_url"]
        else "It has no wake URL.",
    )


@app.command(epilog="Example: accord relay sessions echo --groups shared")
def sessions(
    cli: Cli,
    instance: Instance,
    groups: Annotated[
        Sessions | None, typer.Option(help="Whether a group is one session, or one for each user.")
    ] = None,
    threads: Annotated[Sessions | None, typer.Option(help="The same of threads.")] = None,
    profile: Annotated[
        str | None, typer.Option(help="The name of its profile, a part of its session keys.")
    ] = None,
    pin: Annotated[
        bool, typer.Option("--pin", help="Let this count before what the gateway declares.")
    ] = False,
    by_gateway: Annotated[
        bool, typer.Option("--by-gateway", help="Use what its gateway declares, or the defaults.")
    ] = False,
) -> None:
    """Set how an agent's gateway keys its sessions, replacing all options; without options, show.

    For gateways that have such settings and do not declare them, such as Hermes. What a gateway
    declares counts before what is set here, unless it is pinned.
    """
    is_change = any(each is not None for each in (groups, threads, profile))
    if by_gateway and (is_change or pin):
        raise typer.BadParameter(
            "it cannot be combined with other options", param_hint="--by-gateway"
        )
    if pin and not is_change:
        raise typer.BadParameter("say what is pinned", param_hint="--pin")
    if is_change or by_gateway:
        found = ask_relay(
            cli,
            "sessions/set",
            instance=instance,
            group_sessions_per_user=_is_per_user(groups),
            thread_sessions_per_user=_is_per_user(threads),
            profile=profile,
            pinned=pin,
        )
    else:
        found = ask_relay(cli, "sessions/show", instance=instance)
    cli.emit(found, "\n".join(_session_rules(found)))


def _is_per_user(sessions: Sessions | None) -> bool | None:
    return None if sessions is None else sessions is Sessions.PER_USER


def _session_rules(found: dict[str, Any]) -> Iterator[str]:
    by = found["set_by"]
    for what, name in (("groups", "group"), ("threads", "thread")):
        rule = f"{name}_sessions_per_user"
        yield f"{what}  {'per-user' if found[rule] else 'shared'}  {_said_by(by[rule])}"
    yield f"profile  {printable(found['profile'] or '-')}  {_said_by(by['profile'])}"
    if found["override"] and found["override"]["pinned"]:
        yield "what the operator set is pinned"


def _said_by(who: str) -> str:
    return "by default" if who == "default" else f"set by the {who}"


key = App(no_args_is_help=True, epilog="Example: accord relay key rotate")


@key.command("show", epilog="Example: accord relay key show --json")
def show_keys(cli: Cli) -> None:
    """Show which keys encrypt the secrets in the relay's store, by id; no key itself is shown."""
    _emit_keys(cli, ask_relay(cli, "key/show"))


@key.command("prepare", epilog="Example: accord relay key prepare")
def prepare_key(cli: Cli) -> None:
    """Make the next key without using it, to copy `relay.key` to other connectors first."""
    _emit_keys(cli, ask_relay(cli, "key/prepare"))


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
    done = ask_relay(cli, "key/rotate", finish=finish)
    cli.emit(done, f"{done['encrypted']} secrets are encrypted anew.")


@key.command("forget", epilog="Example: accord relay key forget")
def forget_keys(cli: Cli) -> None:
    """Drop older keys from `relay.key`, once nothing needs them."""
    done = ask_relay(cli, "key/forget")
    cli.emit(done, f"{done['forgotten']} older keys forgotten.")


def _emit_keys(cli: Cli, status: dict[str, Any]) -> None:
    lines = [("encrypts", status["key_id"]), *(("decrypts", each) for each in status["older"])]
    if status["prepared"] is not None:
        lines.append(("prepared", status["prepared"]))
    lines.append(("under older keys", str(status["old_boxes"])))
    cli.emit(status, lines)


Which = Annotated[str | None, typer.Argument(help="The instance; or give --tenant.")]
Whole = Annotated[str | None, typer.Option("--tenant", help="A tenant with all its agents.")]


@app.command(epilog="Example: accord relay revoke echo")
def revoke(cli: Cli, instance: Which = None, tenant: Whole = None) -> None:
    """Revoke an agent at once, or disable a tenant with all its agents.

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
    """Let a revoked agent enrol again, or enable a tenant again."""
    _one_of(instance, tenant)
    done = ask_relay(cli, "pardon", instance=instance, tenant=tenant)
    name = printable(instance or tenant or "")
    cli.emit(done, () if done["pardoned"] is None else f"Pardoned: {name}.")
    if done["pardoned"] is None:
        cli.note(f"{name} may enrol already; no operator has revoked it.")


def _one_of(instance: str | None, tenant: str | None) -> None:
    if (instance is None) == (tenant is None):
        raise typer.BadParameter("name one instance, or one tenant with --tenant")


def _refusal(refused: dict[str, str]) -> str:
    """A hello that was refused, and why."""
    bot = f"{printable(refused['platform'])} {printable(refused['botId'])}".strip()
    return f"refused {bot}: {printable(refused['reason'])}"


def _changed_sessions(found: dict[str, Any]) -> str:
    """What the operator said of an agent's sessions, as far as it counts."""
    by = found["set_by"]
    told = [
        f"{name} {'per-user' if found[rule] else 'shared'}"
        for name, rule in (
            ("groups", "group_sessions_per_user"),
            ("threads", "thread_sessions_per_user"),
        )
        if by[rule] == "operator"
    ]
    if by["profile"] == "operator":
        told.append(f"profile {printable(found['profile'])}")
    return f"sessions: {', '.join(told)}" if told else ""


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
    done = ask_relay(cli, "route", platform=platform, key=key, tenant=None if away else tenant)
    cli.emit(
        done,
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
    """Share a server among tenants: each author reaches their own agent there."""
    done = ask_relay(cli, "share", platform=platform, key=key, shared=not away)
    cli.emit(done, f"{printable(platform)} {printable(key)} is {'not ' if away else ''}shared.")


@scope.command("list", epilog="Example: accord relay scope list --json")
def list_places(cli: Cli) -> None:
    """List whose servers and channels are, which are shared, and where agents are open."""
    found = ask_relay(cli, "places")
    cli.emit(
        found,
        (
            (
                each["kind"],
                printable(each["platform"]),
                printable(each.get("route_key") or each.get("scope_id") or "-"),
                printable(each.get("channel_id") or "-"),
                printable(each.get("tenant") or "-"),
                printable(each.get("instance") or "-"),
            )
            for each in found["places"]
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
    place = {"platform": platform, "scope_id": scope_id, "channel_id": channel_id}
    cli.emit(ask_relay(cli, "grant", instance=instance, owner=owner, **place), "Granted.")


@scope.command(epilog="Example: accord relay scope release echo discord G1 C1")
def release(
    cli: Cli, instance: Instance, platform: Platform, scope_id: Scope, channel_id: Channel
) -> None:
    """Revoke a channel of an agent."""
    place = {"platform": platform, "scope_id": scope_id, "channel_id": channel_id}
    cli.emit(ask_relay(cli, "release", instance=instance, **place), "Released.")


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
    place = _open_place(scope_id, channel_id, direct)
    done = ask_relay(cli, "open", instance=instance, platform=platform, **place)
    cli.emit(done, f"{printable(instance)} is open to everybody there.")


@app.command(epilog="Example: accord relay close discord G1 C1")
def close(
    cli: Cli,
    platform: Platform,
    scope_id: OpenScope = None,
    channel_id: OpenChannel = None,
    direct: Direct = False,
) -> None:
    """Close a place to people who are not linked; the agent can no longer write there at once."""
    place = _open_place(scope_id, channel_id, direct)
    done = ask_relay(cli, "close", platform=platform, **place)
    cli.emit(
        done,
        "No agent was open there."
        if done["instance"] is None
        else f"{printable(done['instance'])} is not open there any more.",
    )


def _open_place(scope_id: str | None, channel_id: str | None, direct: bool) -> dict[str, str]:
    """The scope and channel that are meant; both '' are direct messages, which must be said."""
    scope, channel = scope_id or "", channel_id or ""
    if direct == bool(scope or channel):
        raise typer.BadParameter("name a server or a channel, or give --direct")
    return {"scope_id": scope, "channel_id": channel}


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
