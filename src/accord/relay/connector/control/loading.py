"""Reading what the directory keeps in memory: one small value for each entity.

Owns the queries of the hot path's misses. Values are immutable and hold no message; the only
secrets are those of a gateway, which are not shown when it is printed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import BindParameter, Connection, bindparam, select

from accord.kernel import canonical
from accord.relay.connector.control import records
from accord.relay.connector.control.directory import LinkReply
from accord.relay.connector.control.keyring import Box, Keyring
from accord.relay.connector.control.tables import (
    bindings,
    dm_defaults,
    gateway_secrets,
    grants,
    identities,
    link_codes,
    link_pending,
    link_talks,
    principals,
    relevance,
    routes,
)
from accord.relay.gate.facts import Home, Principal, PrincipalPolicy
from accord.relay.wire.policy import RelevancePolicy


class Held(NamedTuple):
    """Who holds a channel."""

    tenant: str
    instance: str
    owner: str


class Pending(NamedTuple):
    """A link that waits for its user's confirmation."""

    instance: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class Person:
    """What is known of an account on a platform.

    Attributes:
        bound: The instances that it is linked to, by tenant.
        home: Where its direct messages go.
        voices: The instances that speak through it; None when it is no bot of ours.
        pending: A link that it has been asked to confirm.
        talked: The last event in which it talked to the bot about linking, and the answer.
    """

    bound: Mapping[str, tuple[str, ...]]
    home: Home | None
    voices: frozenset[str] | None
    pending: Pending | None
    talked: tuple[str, LinkReply] | None


@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of an instance; policies by platform, held scopes by platform and channel.

    Attributes:
        fronted: The platforms and bots through which it speaks.
    """

    record: records.Instance
    principals: Mapping[str, Principal]
    relevance: Mapping[str, RelevancePolicy]
    held: Mapping[tuple[str, str], tuple[str, ...]]
    fronted: frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway's record and its secrets, the newest first, each with its end."""

    record: records.Instance
    secrets: tuple[tuple[str, int | None], ...] = field(repr=False)


# Built once: after a restart everything is read within seconds, and building a statement costs more
# than running it.
_MINE: BindParameter[str] = bindparam("instance")
_BOUND = (
    select(bindings.c.tenant, bindings.c.instance)
    .where(bindings.c.platform == bindparam("platform"), bindings.c.user_id == bindparam("user"))
    .order_by(bindings.c.tenant, bindings.c.instance)
)
_HOME = select(dm_defaults.c.tenant, dm_defaults.c.instance).where(
    dm_defaults.c.platform == bindparam("platform"), dm_defaults.c.user_id == bindparam("user")
)
_VOICES = select(identities.c.instance).where(
    identities.c.platform == bindparam("platform"), identities.c.bot_id == bindparam("user")
)
_PENDING = select(link_pending.c.instance, link_pending.c.expires_at).where(
    link_pending.c.platform == bindparam("platform"), link_pending.c.user_id == bindparam("user")
)
_TALKED = select(link_talks.c.event, link_talks.c.text, link_talks.c.rule).where(
    link_talks.c.platform == bindparam("platform"), link_talks.c.user_id == bindparam("user")
)
_ROUTE = select(routes.c.tenant).where(
    routes.c.platform == bindparam("platform"), routes.c.route_key == bindparam("key")
)
_HOLDER = select(grants.c.tenant, grants.c.instance, grants.c.owner).where(
    grants.c.platform == bindparam("platform"),
    grants.c.scope_id == bindparam("scope"),
    grants.c.channel_id == bindparam("channel"),
)
_HELD = (
    select(grants.c.platform, grants.c.scope_id, grants.c.channel_id)
    .where(grants.c.instance == _MINE)
    .order_by(grants.c.scope_id)
)
_PRINCIPALS = select(principals.c.platform, principals.c.policy, principals.c.allow).where(
    principals.c.instance == _MINE
)
_RELEVANCE = select(
    relevance.c.platform,
    relevance.c.require_address,
    relevance.c.free_response_scopes,
    relevance.c.allow_other_bots,
).where(relevance.c.instance == _MINE)
_FRONTED = select(identities.c.platform, identities.c.bot_id).where(identities.c.instance == _MINE)
_SECRETS = (
    select(gateway_secrets.c.key_id, gateway_secrets.c.box, gateway_secrets.c.expires_at)
    .where(gateway_secrets.c.instance == _MINE)
    .order_by(gateway_secrets.c.id.desc())
)


def person(connection: Connection, platform: str, user_id: str) -> Person:
    """Read an account."""
    this = {"platform": platform, "user": user_id}
    bound: dict[str, tuple[str, ...]] = {}
    for tenant, instance in connection.execute(_BOUND, this):
        bound[tenant] = (*bound.get(tenant, ()), instance)
    home = connection.execute(_HOME, this).first()
    voices = frozenset(connection.execute(_VOICES, this).scalars())
    pending = connection.execute(_PENDING, this).first()
    talked = connection.execute(_TALKED, this).first()
    return Person(
        bound,
        Home(*home) if home else None,
        voices or None,
        Pending(*pending) if pending else None,
        (talked.event, LinkReply(talked.text, talked.rule)) if talked else None,
    )


def route(connection: Connection, platform: str, key: str) -> str | None:
    """Read whose a route key is."""
    found: str | None = connection.execute(_ROUTE, {"platform": platform, "key": key}).scalar()
    return found


def holder(connection: Connection, platform: str, scope_id: str, channel_id: str) -> Held | None:
    """Read who holds a channel."""
    this = {"platform": platform, "scope": scope_id, "channel": channel_id}
    row = connection.execute(_HOLDER, this).first()
    return Held(*row) if row else None


def profile(connection: Connection, instance: str) -> Profile | None:
    """Read an instance."""
    record = records.find(connection, instance)
    if record is None:
        return None
    this = {"instance": instance}
    held: dict[tuple[str, str], tuple[str, ...]] = {}
    for platform, scope_id, channel_id in connection.execute(_HELD, this):
        held[platform, channel_id] = (*held.get((platform, channel_id), ()), scope_id)
    return Profile(
        record,
        {
            platform: Principal(PrincipalPolicy(policy), frozenset(canonical.decode(allow)))
            for platform, policy, allow in connection.execute(_PRINCIPALS, this)
        },
        {
            platform: RelevancePolicy(
                bool(require_address), frozenset(canonical.decode(free)), bool(allow_other_bots)
            )
            for platform, require_address, free, allow_other_bots in connection.execute(
                _RELEVANCE, this
            )
        },
        held,
        frozenset((platform, bot_id) for platform, bot_id in connection.execute(_FRONTED, this)),
    )


def gateway(connection: Connection, keyring: Keyring, gateway_id: str) -> Gateway | None:
    """Read a gateway with its secrets."""
    record = records.find_by_gateway(connection, gateway_id)
    if record is None:
        return None
    rows = connection.execute(_SECRETS, {"instance": record.instance})
    return Gateway(
        record,
        tuple(
            (keyring.open(Box(key_id, box), "secret", record.instance), expires_at)
            for key_id, box, expires_at in rows
        ),
    )


def codes(connection: Connection) -> Mapping[bytes, int]:
    """Read which link codes are out, by digest, and when they end."""
    rows = connection.execute(select(link_codes.c.digest, link_codes.c.expires_at))
    return {row.digest: row.expires_at for row in rows}


def stopped_instances(connection: Connection) -> list[str]:
    """Read which instances have been revoked or switched off."""
    return [each.instance for each in records.list_instances(connection) if not each.live]
