"""Reading what the directory keeps in memory: one small value for each entity.

Owns the queries of the hot path's misses. Values are immutable and hold no message; the only
secrets are those of a gateway, which are not shown when it is printed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sqlalchemy import Connection, select

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
    """What is known of an instance; policies by platform, held scopes by platform and channel."""

    record: records.Instance
    principals: Mapping[str, Principal]
    relevance: Mapping[str, RelevancePolicy]
    held: Mapping[tuple[str, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Gateway:
    """A gateway's record and its secrets, the newest first, each with its end."""

    record: records.Instance
    secrets: tuple[tuple[str, int | None], ...] = field(repr=False)


def person(connection: Connection, platform: str, user_id: str) -> Person:
    """Read an account."""
    bound: dict[str, tuple[str, ...]] = {}
    for tenant, instance in connection.execute(
        select(bindings.c.tenant, bindings.c.instance)
        .where(bindings.c.platform == platform, bindings.c.user_id == user_id)
        .order_by(bindings.c.tenant, bindings.c.instance)
    ):
        bound[tenant] = (*bound.get(tenant, ()), instance)
    home = connection.execute(
        select(dm_defaults.c.tenant, dm_defaults.c.instance).where(
            dm_defaults.c.platform == platform, dm_defaults.c.user_id == user_id
        )
    ).first()
    voices = frozenset(
        connection.execute(
            select(identities.c.instance).where(
                identities.c.platform == platform, identities.c.bot_id == user_id
            )
        ).scalars()
    )
    pending = connection.execute(
        select(link_pending.c.instance, link_pending.c.expires_at).where(
            link_pending.c.platform == platform, link_pending.c.user_id == user_id
        )
    ).first()
    talked = connection.execute(
        select(link_talks).where(link_talks.c.platform == platform, link_talks.c.user_id == user_id)
    ).first()
    return Person(
        bound,
        Home(*home) if home else None,
        voices or None,
        Pending(*pending) if pending else None,
        (talked.event, LinkReply(talked.text, talked.rule)) if talked else None,
    )


def route(connection: Connection, platform: str, key: str) -> str | None:
    """Read whose a route key is."""
    found: str | None = connection.execute(
        select(routes.c.tenant).where(routes.c.platform == platform, routes.c.route_key == key)
    ).scalar()
    return found


def holder(connection: Connection, platform: str, scope_id: str, channel_id: str) -> Held | None:
    """Read who holds a channel."""
    row = connection.execute(
        select(grants.c.tenant, grants.c.instance, grants.c.owner).where(
            grants.c.platform == platform,
            grants.c.scope_id == scope_id,
            grants.c.channel_id == channel_id,
        )
    ).first()
    return Held(*row) if row else None


def profile(connection: Connection, instance: str) -> Profile | None:
    """Read an instance."""
    record = records.find(connection, instance)
    if record is None:
        return None
    held: dict[tuple[str, str], tuple[str, ...]] = {}
    for platform, scope_id, channel_id in connection.execute(
        select(grants.c.platform, grants.c.scope_id, grants.c.channel_id)
        .where(grants.c.instance == instance)
        .order_by(grants.c.scope_id)
    ):
        held[platform, channel_id] = (*held.get((platform, channel_id), ()), scope_id)
    return Profile(
        record,
        {
            row["platform"]: Principal(
                PrincipalPolicy(row["policy"]), frozenset(canonical.decode(row["allow"]))
            )
            for row in connection.execute(
                select(principals).where(principals.c.instance == instance)
            ).mappings()
        },
        {
            row["platform"]: RelevancePolicy(
                bool(row["require_address"]),
                frozenset(canonical.decode(row["free_response_scopes"])),
                bool(row["allow_other_bots"]),
            )
            for row in connection.execute(
                select(relevance).where(relevance.c.instance == instance)
            ).mappings()
        },
        held,
    )


def gateway(connection: Connection, keyring: Keyring, gateway_id: str) -> Gateway | None:
    """Read a gateway with its secrets."""
    record = records.find_by_gateway(connection, gateway_id)
    if record is None:
        return None
    rows = connection.execute(
        select(gateway_secrets)
        .where(gateway_secrets.c.instance == record.instance)
        .order_by(gateway_secrets.c.id.desc())
    ).mappings()
    return Gateway(
        record,
        tuple(
            (
                keyring.open(Box(row["key_id"], row["box"]), "secret", record.instance),
                row["expires_at"],
            )
            for row in rows
        ),
    )


def codes(connection: Connection) -> Mapping[bytes, int]:
    """Read which link codes are out, by digest, and when they end."""
    rows = connection.execute(select(link_codes.c.digest, link_codes.c.expires_at))
    return {row.digest: row.expires_at for row in rows}


def stopped_instances(connection: Connection) -> list[str]:
    """Read which instances have been revoked or switched off."""
    return [each.instance for each in records.list_instances(connection) if not each.live]
