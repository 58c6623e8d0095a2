"""Taking an instance away: what goes, and what stays as its mark (section 3).

Owns the list of what is dropped. The record itself stays, without a wake URL and marked as revoked,
so that its secret is recognised and refused. Sockets and buffers are delivery's, which is told by
the entity `revoked`.
"""

from typing import Final

from sqlalchemy import delete, select, update

from accord.relay.connector.control import policies, records, routing
from accord.relay.connector.control.changes import Change
from accord.relay.connector.control.tables import (
    bindings,
    dm_defaults,
    grants,
    identities,
    instances,
    link_codes,
    link_pending,
    principals,
    relevance,
    tenants,
    vault,
)
from accord.relay.errors import Code, RelayError

_OWN: Final = (
    dm_defaults,
    bindings,
    grants,
    principals,
    relevance,
    link_codes,
    link_pending,
    identities,
    vault,
)


def revoke(change: Change, instance: str, *, by_operator: bool) -> bool:
    """Drop all that an instance has; whether it was live.

    Args:
        change: Where to write it.
        instance: The instance.
        by_operator: Whether it must not come back by itself.

    Raises:
        RelayError: There is no such instance.
    """
    record = records.find(change.connection, instance)
    if record is None:
        raise records.unknown(instance)
    if record.revoked_at is not None and record.barred >= by_operator:
        return False
    _forget(change, instance)
    for table in _OWN:
        change.connection.execute(delete(table).where(table.c.instance == instance))
    for platform, user_id in {entity[1:] for entity in change.entities if entity[0] == "user"}:
        policies.mend_dm_default(change, platform, user_id)
    routing.drop_claims(change, instance)
    change.connection.execute(
        update(instances)
        .where(instances.c.instance == instance)
        .values(revoked_at=change.now, wake_url=None, barred=int(by_operator or record.barred))
    )
    _tell_gone(change, record)
    change.note(
        "instance.barred" if by_operator else "instance.deprovisioned",
        tenant=record.tenant,
        instance=instance,
    )
    return True


def suspend(change: Change, tenant: str) -> list[str]:
    """Switch off a whole tenant, and say which instances that stops. It can be switched on again.

    Raises:
        RelayError: There is no such tenant.
    """
    _switch(change, tenant, change.now)
    stopped = records.list_instances(change.connection, tenant)
    for record in stopped:
        if record.revoked_at is None:
            _tell_gone(change, record)
    change.note("tenant.suspended", tenant=tenant)
    return [record.instance for record in stopped]


def resume(change: Change, tenant: str) -> None:
    """Switch a tenant on again.

    Raises:
        RelayError: There is no such tenant.
    """
    _switch(change, tenant, None)
    for record in records.list_instances(change.connection, tenant):
        change.touch("instance", record.instance)
        change.touch("gateway", record.gateway_id)
    change.note("tenant.resumed", tenant=tenant)


def pardon(change: Change, instance: str) -> bool:
    """Let an instance that the operator revoked enrol or be provisioned again; whether it was.

    Raises:
        RelayError: There is no such instance.
    """
    record = records.find(change.connection, instance)
    if record is None:
        raise records.unknown(instance)
    if not record.barred:
        return False
    change.connection.execute(
        update(instances).where(instances.c.instance == instance).values(barred=0)
    )
    change.touch("instance", instance)
    change.note("instance.pardoned", tenant=record.tenant, instance=instance)
    return True


def _switch(change: Change, tenant: str, moment: int | None) -> None:
    changed = change.connection.execute(
        update(tenants).where(tenants.c.tenant == tenant).values(suspended_at=moment)
    )
    if not changed.rowcount:
        raise RelayError(
            Code.NOT_FOUND,
            f"there is no tenant {tenant!r}",
            mend="`accord relay instances` lists them with their agents",
        )


def _forget(change: Change, instance: str) -> None:
    for platform, user_id in change.connection.execute(
        select(bindings.c.platform, bindings.c.user_id)
        .where(bindings.c.instance == instance)
        .union(
            select(dm_defaults.c.platform, dm_defaults.c.user_id).where(
                dm_defaults.c.instance == instance
            ),
            select(link_pending.c.platform, link_pending.c.user_id).where(
                link_pending.c.instance == instance
            ),
            select(identities.c.platform, identities.c.bot_id).where(
                identities.c.instance == instance
            ),
        )
    ).all():
        change.touch("user", platform, user_id)
    for row in change.connection.execute(
        select(grants.c.platform, grants.c.scope_id, grants.c.channel_id).where(
            grants.c.instance == instance
        )
    ).all():
        change.touch("channel", *row)
    change.touch("codes")


def _tell_gone(change: Change, record: records.Instance) -> None:
    change.touch("instance", record.instance)
    change.touch("gateway", record.gateway_id)
    change.touch("revoked", record.instance)
