"""Who holds a channel: claiming, releasing, and the one holder that it may have (section 3).

Owns the rules inside the store. Whether an owner may manage the channel on its platform is asked
before, by `Control`.
"""

from sqlalchemy import ColumnElement, Connection, delete, insert, select

from accord.relay.connector.control import routing
from accord.relay.connector.control.changes import Change
from accord.relay.connector.control.directory import Principal
from accord.relay.connector.control.tables import bindings, grants
from accord.relay.errors import Code, RelayError


def owners(connection: Connection, instance: str, platform: str, limit: int = 20) -> list[str]:
    """The users bound to an instance on a platform, the earliest first."""
    return list(
        connection.execute(
            select(bindings.c.user_id)
            .where(bindings.c.instance == instance, bindings.c.platform == platform)
            .order_by(bindings.c.created_at, bindings.c.user_id)
            .limit(limit)
        ).scalars()
    )


def claim(
    change: Change,
    caller: Principal,
    platform: str,
    scope_id: str,
    channel_id: str,
    owner: str,
) -> None:
    """Give a channel to the caller; claiming what one holds changes nothing.

    Args:
        change: Where to write it.
        caller: Who claims.
        platform: Where the channel is.
        scope_id: The server around it; '' where there is none.
        channel_id: The channel.
        owner: The bound user who may manage it, and whose view of it counts.

    Raises:
        RelayError: Another instance holds it, its scope is not the tenant's, or the owner is no
            longer bound.
    """
    if routing.tenant_of(change, platform, scope_id or channel_id) != caller.tenant:
        raise RelayError(
            Code.CONFLICT,
            "this scope does not belong to the instance's tenant",
            where="scope_id",
            mend="provision it as a route key, or let the operator route it",
        )
    if owner not in owners(change.connection, caller.instance, platform):
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
    _tell(change, "scope.claimed", caller, platform, scope_id, channel_id)


def release(
    change: Change, caller: Principal, platform: str, scope_id: str, channel_id: str
) -> None:
    """Give a channel back.

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
    _tell(change, "scope.released", caller, platform, scope_id, channel_id)


def _where(platform: str, scope_id: str, channel_id: str) -> tuple[ColumnElement[bool], ...]:
    return (
        grants.c.platform == platform,
        grants.c.scope_id == scope_id,
        grants.c.channel_id == channel_id,
    )


def _tell(
    change: Change,
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
