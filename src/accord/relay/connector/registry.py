"""The stored records of tenants, instances and their secrets.

An instance is an agent; it belongs to one tenant and has one gateway. Secrets leave in the clear
only by `secrets_of` and `issue`.
"""

import secrets
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Connection, RowMapping, Select, bindparam, delete, insert, select, update

from accord.kernel import canonical
from accord.relay.connector.keyring import Box, Keyring
from accord.relay.connector.store import ControlChange
from accord.relay.connector.tables import (
    bindings,
    dm_defaults,
    gateway_secrets,
    grants,
    identities,
    instances,
    principals,
    relevance,
    route_claims,
    tenants,
)
from accord.relay.errors import Code, RelayError


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller, by its stored record; `via` is what it authenticated with."""

    tenant: str
    instance: str
    gateway_id: str
    via: Literal["secret", "managed"]


_SECRET_BYTES: Final = 32
_MOST_IDENTITIES: Final = 64


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """What is stored of one instance; times in milliseconds since the epoch."""

    instance: str
    tenant: str
    gateway_id: str
    name: str
    # `enrolled` or `managed`.
    origin: str
    dialect: str
    wake_url: str | None
    created_at: int
    revoked_at: int | None
    # Whether the operator revoked it, so that it cannot enrol again by itself.
    barred: bool
    # Whether its whole tenant is suspended.
    suspended: bool

    @property
    def live(self) -> bool:
        """Whether it is neither revoked nor suspended."""
        return self.revoked_at is None and not self.suspended


def find(connection: Connection, instance: str) -> InstanceRecord | None:
    """The record of an instance."""
    return _first(connection, _BY_NAME, instance)


def find_by_gateway(connection: Connection, gateway_id: str) -> InstanceRecord | None:
    """The record of the instance that a gateway speaks for."""
    return _first(connection, _BY_GATEWAY, gateway_id)


def list_instances(connection: Connection, tenant: str | None = None) -> list[InstanceRecord]:
    """Every record, or those of one tenant."""
    where = () if tenant is None else (instances.c.tenant == tenant,)
    rows = connection.execute(_SELECT.where(*where).order_by(instances.c.instance))
    return [_instance(row) for row in rows.mappings()]


def unknown(instance: str) -> RelayError:
    """The error for an unknown instance."""
    return RelayError(
        Code.NOT_FOUND,
        f"there is no instance {instance!r}",
        mend="`accord relay instances` lists them",
    )


def need(connection: Connection, instance: str) -> InstanceRecord:
    """The record of a live instance.

    Raises:
        RelayError: There is none, or it was revoked.
    """
    found = find(connection, instance)
    if found is None:
        raise unknown(instance)
    if not found.live:
        raise RelayError(Code.FORBIDDEN, f"the instance {instance!r} is revoked or switched off")
    return found


def ensure_tenant(change: ControlChange, keyring: Keyring, tenant: str) -> str:
    """Make the tenant where it is missing, and return its delivery key.

    Raises:
        RelayError: The tenant is suspended.
    """
    row = (
        change.connection.execute(select(tenants).where(tenants.c.tenant == tenant))
        .mappings()
        .first()
    )
    if row is not None:
        if row["suspended_at"] is not None:
            raise RelayError(Code.FORBIDDEN, "the tenant is switched off")
        return keyring.open(Box(row["key_id"], row["box"]), "tenant", tenant)
    delivery_key = secrets.token_urlsafe(_SECRET_BYTES)
    box = keyring.close(delivery_key, "tenant", tenant)
    change.connection.execute(
        insert(tenants).values(
            tenant=tenant, key_id=box.key_id, box=box.data, created_at=change.now
        )
    )
    change.note("tenant.made", tenant=tenant)
    return delivery_key


def put(
    change: ControlChange,
    *,
    instance: str,
    tenant: str,
    gateway_id: str,
    name: str,
    origin: str,
    wake_url: str | None,
    before: InstanceRecord | None,
) -> None:
    """Insert the record of an instance, or update the one `before`."""
    values = {
        "tenant": tenant,
        "gateway_id": gateway_id,
        "name": name,
        "origin": origin,
        "wake_url": wake_url,
        "revoked_at": None,
        "barred": 0,
    }
    if before is None:
        change.connection.execute(
            insert(instances).values(instance=instance, dialect="", created_at=change.now, **values)
        )
    else:
        change.connection.execute(
            update(instances).where(instances.c.instance == instance).values(**values)
        )
        change.touch("gateway", before.gateway_id)
    change.touch("instance", instance)
    change.touch("gateway", gateway_id)


def secrets_of(connection: Connection, keyring: Keyring, instance: str, now: int) -> list[str]:
    """The valid secrets of an instance's gateway, the newest first."""
    rows = connection.execute(
        select(gateway_secrets)
        .where(
            gateway_secrets.c.instance == instance,
            gateway_secrets.c.expires_at.is_(None) | (gateway_secrets.c.expires_at > now),
        )
        .order_by(gateway_secrets.c.expires_at.is_(None).desc(), gateway_secrets.c.id.desc())
    ).mappings()
    return [keyring.open(Box(row["key_id"], row["box"]), "secret", instance) for row in rows]


def issue(change: ControlChange, keyring: Keyring, instance: str, secret_id: str) -> str:
    """Give an instance a new secret, and return it."""
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    box = keyring.close(secret, "secret", instance)
    change.connection.execute(
        insert(gateway_secrets).values(
            id=secret_id,
            instance=instance,
            key_id=box.key_id,
            box=box.data,
            created_at=change.now,
        )
    )
    return secret


def retire(change: ControlChange, instance: str, until: int | None) -> None:
    """Let an instance's secrets expire at a time in milliseconds, or delete them if None."""
    mine = gateway_secrets.c.instance == instance
    if until is None:
        change.connection.execute(delete(gateway_secrets).where(mine))
        return
    change.connection.execute(
        delete(gateway_secrets).where(mine, gateway_secrets.c.expires_at <= change.now)
    )
    change.connection.execute(
        update(gateway_secrets)
        .where(mine, gateway_secrets.c.expires_at.is_(None))
        .values(expires_at=until)
    )


def front(change: ControlChange, instance: str, platform: str, bot_id: str) -> None:
    """Store through which bot an instance speaks.

    Raises:
        RelayError: It has too many already.
    """
    known = change.connection.execute(
        select(identities.c.platform, identities.c.bot_id).where(identities.c.instance == instance)
    )
    mine = {(row.platform, row.bot_id) for row in known}
    if (platform, bot_id) in mine:
        return
    if len(mine) >= _MOST_IDENTITIES:
        raise RelayError(Code.CONFLICT, f"an instance fronts at most {_MOST_IDENTITIES} bots")
    change.connection.execute(
        insert(identities).values(instance=instance, platform=platform, bot_id=bot_id)
    )
    change.touch("user", platform, bot_id)
    change.touch("instance", instance)


_SELECT = select(instances, tenants.c.suspended_at).join(
    tenants, tenants.c.tenant == instances.c.tenant
)


_BY_NAME = _SELECT.where(instances.c.instance == bindparam("of"))
_BY_GATEWAY = _SELECT.where(instances.c.gateway_id == bindparam("of"))


def _first(connection: Connection, query: Select[Any], of: str) -> InstanceRecord | None:
    row = connection.execute(query, {"of": of}).mappings().first()
    return None if row is None else _instance(row)


def _instance(values: RowMapping) -> InstanceRecord:
    return InstanceRecord(
        instance=values["instance"],
        tenant=values["tenant"],
        gateway_id=values["gateway_id"],
        name=values["name"],
        origin=values["origin"],
        dialect=values["dialect"],
        wake_url=values["wake_url"],
        created_at=values["created_at"],
        revoked_at=values["revoked_at"],
        barred=bool(values["barred"]),
        suspended=values["suspended_at"] is not None,
    )


_MOST: Final = 1000


def instance_status(connection: Connection, instance: str, now: int) -> dict[str, Any]:
    """What is known of an instance, at most the first thousand of each kind."""
    record = need(connection, instance)

    def rows(table: Any, *names: str) -> list[dict[str, Any]]:
        columns = [table.c[name] for name in names]
        found = connection.execute(
            select(*columns).where(table.c.instance == instance).order_by(*columns).limit(_MOST)
        )
        return [dict(row) for row in found.mappings()]

    ends = [row["expires_at"] for row in rows(gateway_secrets, "expires_at")]
    return {
        "tenant": record.tenant,
        "instanceId": record.instance,
        "gatewayId": record.gateway_id,
        "name": record.name,
        "origin": record.origin,
        "sessionKeys": record.dialect or "hermes",
        "hasWakeUrl": record.wake_url is not None,
        "createdAt": record.created_at,
        "secrets": sum(end is None or end > now for end in ends),
        "identities": rows(identities, "platform", "bot_id"),
        "routeKeys": rows(route_claims, "platform", "route_key"),
        "bindings": rows(bindings, "platform", "user_id"),
        "dmDefaults": rows(dm_defaults, "platform", "user_id"),
        "scopes": rows(grants, "platform", "scope_id", "channel_id", "owner"),
        "principals": [
            {**row, "allow": canonical.decode(row["allow"])}
            for row in rows(principals, "platform", "policy", "allow")
        ],
        "relevance": [
            {
                "platform": row["platform"],
                "requireAddress": bool(row["require_address"]),
                "freeResponseScopes": canonical.decode(row["free_response_scopes"]),
                "allowOtherBots": bool(row["allow_other_bots"]),
                "setBy": "operator" if row["pinned"] else "gateway",
            }
            for row in rows(
                relevance,
                "platform",
                "require_address",
                "free_response_scopes",
                "allow_other_bots",
                "pinned",
            )
        ],
    }
