"""The stored records of tenants, instances and their secrets: reading and writing, no rules.

An instance is an agent; it belongs to one tenant and has one gateway. Secrets are handed out in the
clear only by `secrets_of` and `issue`, to whoever verifies or answers with them.
"""

import secrets
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, RowMapping, Select, bindparam, delete, insert, select, update

from accord.relay.connector.control.changes import Change
from accord.relay.connector.control.keyring import Box, Keyring
from accord.relay.connector.control.tables import gateway_secrets, identities, instances, tenants
from accord.relay.errors import Code, RelayError

_SECRET_BYTES: Final = 32
_MOST_IDENTITIES: Final = 64


@dataclass(frozen=True, slots=True)
class Instance:
    """What is stored of one instance.

    Attributes:
        origin: `enrolled` or `managed`.
        revoked_at: When it was revoked, in milliseconds since the epoch.
        barred: Whether the operator revoked it, so that it cannot come back by itself.
        suspended: Whether its whole tenant is switched off.
    """

    instance: str
    tenant: str
    gateway_id: str
    name: str
    origin: str
    dialect: str
    wake_url: str | None
    created_at: int
    revoked_at: int | None
    barred: bool
    suspended: bool

    @property
    def live(self) -> bool:
        """Whether it may do anything at all."""
        return self.revoked_at is None and not self.suspended


def find(connection: Connection, instance: str) -> Instance | None:
    """The record of an instance."""
    return _first(connection, _BY_NAME, instance)


def find_by_gateway(connection: Connection, gateway_id: str) -> Instance | None:
    """The record of the instance that a gateway speaks for."""
    return _first(connection, _BY_GATEWAY, gateway_id)


def list_instances(connection: Connection, tenant: str | None = None) -> list[Instance]:
    """Every record, or those of one tenant."""
    where = () if tenant is None else (instances.c.tenant == tenant,)
    rows = connection.execute(_SELECT.where(*where).order_by(instances.c.instance))
    return [_instance(row) for row in rows.mappings()]


def unknown(instance: str) -> RelayError:
    """The error for an instance that nobody knows."""
    return RelayError(
        Code.NOT_FOUND,
        f"there is no instance {instance!r}",
        mend="`accord relay instances` lists them",
    )


def need(connection: Connection, instance: str) -> Instance:
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


def ensure_tenant(change: Change, keyring: Keyring, tenant: str) -> str:
    """Make the tenant where it is missing, and return its delivery key.

    Raises:
        RelayError: The tenant is switched off.
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
    change: Change,
    *,
    instance: str,
    tenant: str,
    gateway_id: str,
    name: str,
    origin: str,
    wake_url: str | None,
    before: Instance | None,
) -> None:
    """Make the record of an instance, or renew one that was there before."""
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
    """The secrets by which an instance's gateway may be known now, the newest first."""
    rows = connection.execute(
        select(gateway_secrets)
        .where(
            gateway_secrets.c.instance == instance,
            gateway_secrets.c.expires_at.is_(None) | (gateway_secrets.c.expires_at > now),
        )
        .order_by(gateway_secrets.c.expires_at.is_(None).desc(), gateway_secrets.c.id.desc())
    ).mappings()
    return [keyring.open(Box(row["key_id"], row["box"]), "secret", instance) for row in rows]


def issue(change: Change, keyring: Keyring, instance: str, secret_id: str) -> str:
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


def retire(change: Change, instance: str, until: int | None) -> None:
    """Let an instance's secrets end at a moment, or at once when there is none."""
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


def front(change: Change, instance: str, platform: str, bot_id: str) -> None:
    """Remember through which bot an instance speaks.

    Raises:
        RelayError: It speaks through too many already.
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


def _first(connection: Connection, query: Select[Any], of: str) -> Instance | None:
    row = connection.execute(query, {"of": of}).mappings().first()
    return None if row is None else _instance(row)


def _instance(values: RowMapping) -> Instance:
    return Instance(
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
