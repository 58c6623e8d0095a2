"""Which tenant a route key belongs to, and which instance holds a channel.

A key belongs to one tenant; it is deleted with its last claim, unless the operator has pinned it. A
channel has at most one holder.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import ColumnElement, Connection, delete, exists, insert, select, update

from accord.relay.connector.registry import Principal
from accord.relay.connector.store import ControlChange
from accord.relay.connector.tables import bindings, grants, route_claims, routes
from accord.relay.errors import Code, RelayError

MOST_KEYS: Final = 1000
"""How many route keys one instance may claim on one platform."""


def replace_claims(
    change: ControlChange, instance: str, tenant: str, platform: str, keys: Sequence[str]
) -> None:
    """Set the keys that an instance claims on a platform.

    Raises:
        RelayError: A key is another tenant's.
    """
    mine = (route_claims.c.instance == instance, route_claims.c.platform == platform)
    had = set(change.connection.execute(select(route_claims.c.route_key).where(*mine)).scalars())
    wanted = set(keys)
    for key in sorted(wanted - had):
        _ensure(change, platform, key, tenant, pinned=False)
        change.connection.execute(
            insert(route_claims).values(platform=platform, route_key=key, instance=instance)
        )
    for key in sorted(had - wanted):
        change.connection.execute(
            delete(route_claims).where(*mine, route_claims.c.route_key == key)
        )
    sweep(change, platform, had - wanted)


def pin(change: ControlChange, tenant: str, platform: str, key: str) -> None:
    """Pin a key to a tenant, for the operator.

    Raises:
        RelayError: It is another tenant's.
    """
    _ensure(change, platform, key, tenant, pinned=True)
    change.connection.execute(
        update(routes)
        .where(routes.c.platform == platform, routes.c.route_key == key)
        .values(pinned=1)
    )
    change.note("route.pinned", tenant=tenant, platform=platform, route_key=key)


def unpin(change: ControlChange, platform: str, key: str) -> None:
    """Remove a pin; the key is deleted unless an instance claims it."""
    change.connection.execute(
        update(routes)
        .where(routes.c.platform == platform, routes.c.route_key == key)
        .values(pinned=0)
    )
    change.note("route.unpinned", platform=platform, route_key=key)
    sweep(change, platform, [key])


def drop_claims(change: ControlChange, instance: str) -> None:
    """Remove all claims of an instance."""
    had = change.connection.execute(
        select(route_claims.c.platform, route_claims.c.route_key).where(
            route_claims.c.instance == instance
        )
    ).all()
    change.connection.execute(delete(route_claims).where(route_claims.c.instance == instance))
    for platform, key in had:
        sweep(change, platform, [key])


def sweep(change: ControlChange, platform: str, keys: Iterable[str]) -> None:
    """Delete those of the keys that are neither claimed nor pinned."""
    for key in sorted(keys):
        claimed = exists().where(
            route_claims.c.platform == platform, route_claims.c.route_key == key
        )
        gone = change.connection.execute(
            delete(routes).where(
                routes.c.platform == platform,
                routes.c.route_key == key,
                routes.c.pinned == 0,
                ~claimed,
            )
        )
        if gone.rowcount:
            change.touch("route", platform, key)


def tenant_of(change: ControlChange, platform: str, key: str) -> str | None:
    """The tenant that a key belongs to."""
    found: str | None = change.connection.execute(
        select(routes.c.tenant).where(routes.c.platform == platform, routes.c.route_key == key)
    ).scalar()
    return found


def _ensure(change: ControlChange, platform: str, key: str, tenant: str, *, pinned: bool) -> None:
    holder = tenant_of(change, platform, key)
    if holder is None:
        change.connection.execute(
            insert(routes).values(
                platform=platform, route_key=key, tenant=tenant, pinned=int(pinned)
            )
        )
        change.touch("route", platform, key)
    elif holder != tenant:
        raise RelayError(
            Code.CONFLICT,
            "a route key belongs to another tenant",
            where=f"routeKeys: {key}",
            mend="leave it out, or let its holder release it",
        )


def list_owners(connection: Connection, instance: str, platform: str, limit: int = 20) -> list[str]:
    """The users bound to an instance on a platform, the earliest first."""
    return list(
        connection.execute(
            select(bindings.c.user_id)
            .where(bindings.c.instance == instance, bindings.c.platform == platform)
            .order_by(bindings.c.created_at, bindings.c.user_id)
            .limit(limit)
        ).scalars()
    )


def claim_channel(
    change: ControlChange,
    caller: Principal,
    platform: str,
    scope_id: str,
    channel_id: str,
    owner: str,
) -> None:
    """Give a channel to the caller; a channel that it holds already stays as it is.

    Args:
        owner: The bound user who may manage the channel, and whose visibility of it counts.

    Raises:
        RelayError: Another instance holds it, its scope is not the tenant's, or the owner is no
            longer bound.
    """
    if tenant_of(change, platform, scope_id or channel_id) != caller.tenant:
        raise RelayError(
            Code.CONFLICT,
            "this scope does not belong to the instance's tenant",
            where="scope_id",
            mend="provision it as a route key, or let the operator route it",
        )
    if owner not in list_owners(change.connection, caller.instance, platform):
        raise RelayError(Code.FORBIDDEN, "the owner is no longer linked to the instance")
    where = _where(platform, scope_id, channel_id)
    holder = change.connection.execute(select(grants.c.instance).where(*where)).scalar()
    if holder == caller.instance:
        return
    if holder is not None:
        raise RelayError(
            Code.CONFLICT,
            "another instance holds this channel",
            where="channel_id",
            mend="let it release the channel first",
        )
    change.connection.execute(
        insert(grants).values(
            platform=platform,
            scope_id=scope_id,
            channel_id=channel_id,
            tenant=caller.tenant,
            instance=caller.instance,
            owner=owner,
            created_at=change.now,
        )
    )
    _record(change, "scope.claimed", caller, platform, scope_id, channel_id)


def release_channel(
    change: ControlChange, caller: Principal, platform: str, scope_id: str, channel_id: str
) -> None:
    """Release a channel.

    Raises:
        RelayError: The caller does not hold it.
    """
    gone = change.connection.execute(
        delete(grants).where(
            *_where(platform, scope_id, channel_id), grants.c.instance == caller.instance
        )
    )
    if not gone.rowcount:
        raise RelayError(
            Code.NOT_FOUND, "the instance does not hold this channel", where="channel_id"
        )
    _record(change, "scope.released", caller, platform, scope_id, channel_id)


def _where(platform: str, scope_id: str, channel_id: str) -> tuple[ColumnElement[bool], ...]:
    return (
        grants.c.platform == platform,
        grants.c.scope_id == scope_id,
        grants.c.channel_id == channel_id,
    )


def _record(
    change: ControlChange,
    action: str,
    caller: Principal,
    platform: str,
    scope_id: str,
    channel_id: str,
) -> None:
    change.touch("channel", platform, scope_id, channel_id)
    change.touch("instance", caller.instance)
    change.note(
        action,
        tenant=caller.tenant,
        instance=caller.instance,
        platform=platform,
        scope_id=scope_id,
        channel_id=channel_id,
    )
