"""Route keys, shared and open places, channel grants, policies and dm-defaults in the store.

A route key belongs to one tenant; it is deleted with its last claim, unless the operator has pinned
it. A channel has at most one holder, and a place at most one instance that is open to everybody.
Each write of a policy replaces the whole of it; one that changes nothing is not recorded. A gateway
cannot replace the operator's relevance policy.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, insert, select, update

from accord.kernel import canonical
from accord.relay.connector.store import ControlChange, Principal, is_user
from accord.relay.connector.tables import (
    bindings,
    dm_defaults,
    grants,
    open_places,
    principals,
    relevance,
    route_claims,
    routes,
    shared_places,
)
from accord.relay.errors import Code, RelayError
from accord.relay.rules.gate import OpenKey, PrincipalPolicy, RelevancePolicy


def replace_route_claims(
    change: ControlChange, instance: str, tenant: str, platform: str, keys: Sequence[str]
) -> None:
    """Set the keys that an instance claims on a platform."""
    mine = (route_claims.c.instance == instance, route_claims.c.platform == platform)
    had = set(change.connection.execute(select(route_claims.c.route_key).where(*mine)).scalars())
    wanted = set(keys)
    for key in sorted(wanted - had):
        _ensure_route(change, platform, key, tenant, pinned=False)
        change.connection.execute(
            insert(route_claims).values(platform=platform, route_key=key, instance=instance)
        )
    for key in sorted(had - wanted):
        change.connection.execute(
            delete(route_claims).where(*mine, route_claims.c.route_key == key)
        )
    _sweep(change, platform, had - wanted)


def add_route_claims(
    change: ControlChange, instance: str, tenant: str, platform: str, keys: Sequence[str], most: int
) -> None:
    """Let an instance claim further keys on a platform, up to `most` in all."""
    mine = (route_claims.c.instance == instance, route_claims.c.platform == platform)
    had = change.connection.execute(select(route_claims.c.route_key).where(*mine)).scalars().all()
    wanted = list(dict.fromkeys((*had, *keys)))
    if len(wanted) > most:
        raise RelayError(Code.CONFLICT, f"at most {most} route keys are allowed", where="routeKeys")
    replace_route_claims(change, instance, tenant, platform, wanted)


def pin_route(change: ControlChange, tenant: str, platform: str, key: str) -> None:
    """Pin a key to a tenant, for the operator."""
    _ensure_route(change, platform, key, tenant, pinned=True)
    change.connection.execute(
        update(routes)
        .where(routes.c.platform == platform, routes.c.route_key == key)
        .values(pinned=1)
    )
    change.note("route.pinned", tenant=tenant, platform=platform, route_key=key)


def unpin_route(change: ControlChange, platform: str, key: str) -> None:
    """Remove a pin; the key is deleted unless an instance claims it."""
    change.connection.execute(
        update(routes)
        .where(routes.c.platform == platform, routes.c.route_key == key)
        .values(pinned=0)
    )
    change.note("route.unpinned", platform=platform, route_key=key)
    _sweep(change, platform, [key])


def drop_route_claims(change: ControlChange, instance: str) -> None:
    """Remove all claims of an instance."""
    had = change.connection.execute(
        select(route_claims.c.platform, route_claims.c.route_key).where(
            route_claims.c.instance == instance
        )
    ).all()
    change.connection.execute(delete(route_claims).where(route_claims.c.instance == instance))
    for platform, key in had:
        _sweep(change, platform, [key])


def _sweep(change: ControlChange, platform: str, keys: Iterable[str]) -> None:
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


def _ensure_route(
    change: ControlChange, platform: str, key: str, tenant: str, *, pinned: bool
) -> None:
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


def is_shared(change: ControlChange, platform: str, key: str) -> bool:
    """Whether an operator has said that several tenants share a place."""
    where = (shared_places.c.platform == platform, shared_places.c.route_key == key)
    return (
        change.connection.execute(select(shared_places.c.route_key).where(*where)).first()
        is not None
    )


def share_place(change: ControlChange, platform: str, key: str) -> bool:
    """Say that several tenants share a scope or chat; whether that is new."""
    if is_shared(change, platform, key):
        return False
    change.connection.execute(
        insert(shared_places).values(platform=platform, route_key=key, created_at=change.now)
    )
    change.touch("route", platform, key)
    change.note("place.shared", platform=platform, route_key=key)
    return True


def unshare_place(change: ControlChange, platform: str, key: str) -> bool:
    """Let the place belong to the tenant of its route again; whether it was shared."""
    gone = change.connection.execute(
        delete(shared_places).where(
            shared_places.c.platform == platform, shared_places.c.route_key == key
        )
    )
    if gone.rowcount:
        change.touch("route", platform, key)
        change.note("place.unshared", platform=platform, route_key=key)
    return bool(gone.rowcount)


def open_place(change: ControlChange, tenant: str, instance: str, place: OpenKey) -> None:
    """Open an instance to everybody in a place, where it may be heard at all."""
    key = place.scope_id or place.channel_id
    holder = tenant_of(change, place.platform, key) if key else None
    if holder not in (None, tenant) and not is_shared(change, place.platform, key):
        raise RelayError(
            Code.CONFLICT,
            "this place belongs to another tenant",
            where=key,
            mend="share it first, or open an agent of its tenant",
        )
    where = _is_open_place(place)
    there = change.connection.execute(select(open_places.c.instance).where(*where)).scalar()
    if there == instance:
        return
    if there is not None:
        raise RelayError(
            Code.CONFLICT,
            "another agent is open to everybody here",
            where=there,
            mend="close it first",
        )
    change.connection.execute(
        insert(open_places).values(
            **place._asdict(), tenant=tenant, instance=instance, created_at=change.now
        )
    )
    _note_open(change, "place.opened", instance, place)


def close_place(change: ControlChange, place: OpenKey) -> str | None:
    """End that an instance is open to everybody in a place; which it was."""
    where = _is_open_place(place)
    there: str | None = change.connection.execute(
        select(open_places.c.instance).where(*where)
    ).scalar()
    if there is not None:
        change.connection.execute(delete(open_places).where(*where))
        _note_open(change, "place.closed", there, place)
    return there


def _is_open_place(place: OpenKey) -> tuple[ColumnElement[bool], ...]:
    return tuple(open_places.c[name] == value for name, value in place._asdict().items())


def _note_open(change: ControlChange, action: str, instance: str, place: OpenKey) -> None:
    change.touch("open", *place)
    change.touch("instance", instance)
    change.note(action, instance=instance, **place._asdict())


def list_places(connection: Connection, most: int) -> list[dict[str, Any]]:
    """The routes, shared places, grants and open places, up to `most` of each, for operators."""
    found: list[dict[str, Any]] = []
    for kind, table, names in (
        ("route", routes, ("platform", "route_key", "tenant")),
        ("shared", shared_places, ("platform", "route_key")),
        ("grant", grants, ("platform", "scope_id", "channel_id", "tenant", "instance")),
        ("open", open_places, ("platform", "scope_id", "channel_id", "tenant", "instance")),
    ):
        columns = [table.c[name] for name in names]
        rows = connection.execute(select(*columns).order_by(*columns).limit(most))
        found += [{"kind": kind, **row} for row in rows.mappings()]
    return found


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

    The owner is the bound user who may manage the channel, and whose visibility of it counts.
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
    where = _is_channel(platform, scope_id, channel_id)
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
    _note_channel(change, "scope.claimed", caller, platform, scope_id, channel_id)


def release_channel(
    change: ControlChange, caller: Principal, platform: str, scope_id: str, channel_id: str
) -> None:
    """Release a channel."""
    gone = change.connection.execute(
        delete(grants).where(
            *_is_channel(platform, scope_id, channel_id), grants.c.instance == caller.instance
        )
    )
    if not gone.rowcount:
        raise RelayError(
            Code.NOT_FOUND, "the instance does not hold this channel", where="channel_id"
        )
    _note_channel(change, "scope.released", caller, platform, scope_id, channel_id)


def _is_channel(platform: str, scope_id: str, channel_id: str) -> tuple[ColumnElement[bool], ...]:
    return (
        grants.c.platform == platform,
        grants.c.scope_id == scope_id,
        grants.c.channel_id == channel_id,
    )


def _note_channel(
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


def set_principal(
    change: ControlChange,
    caller: Principal,
    platform: str,
    policy: PrincipalPolicy,
    allow: Iterable[str],
) -> None:
    """Replace an instance's principal policy on a platform."""
    values = {"policy": policy.value, "allow": _texts(allow)}
    if _replace(change, principals, caller.instance, platform, values):
        change.note(
            "principal.set",
            tenant=caller.tenant,
            instance=caller.instance,
            platform=platform,
            policy=policy.value,
        )


def set_relevance(
    change: ControlChange,
    caller: Principal,
    platform: str,
    policy: RelevancePolicy,
    *,
    by_operator: bool,
) -> RelevancePolicy | None:
    """Replace a relevance policy; the operator's, where a gateway's was ignored because of it."""
    pinned = _pinned(change, caller.instance, platform)
    if pinned is not None and not by_operator:
        return pinned
    values = {
        "pinned": int(by_operator),
        "require_address": int(policy.require_address),
        "free_response_scopes": _texts(policy.free_response_scopes),
        "allow_other_bots": int(policy.allow_other_bots),
    }
    if _replace(change, relevance, caller.instance, platform, values):
        change.note(
            "relevance.set", tenant=caller.tenant, instance=caller.instance, platform=platform
        )
    return None


def unpin_relevance(change: ControlChange, caller: Principal, platform: str) -> bool:
    """Let the gateway's next declaration replace the operator's policy; whether there was one."""
    if _pinned(change, caller.instance, platform) is None:
        return False
    change.connection.execute(
        update(relevance)
        .where(relevance.c.instance == caller.instance, relevance.c.platform == platform)
        .values(pinned=0)
    )
    change.note(
        "relevance.unpinned", tenant=caller.tenant, instance=caller.instance, platform=platform
    )
    return True


def set_dm_default(change: ControlChange, caller: Principal, platform: str, user_id: str) -> None:
    """Route a user's direct messages to the caller."""
    bound = change.connection.execute(
        select(bindings.c.instance).where(
            bindings.c.tenant == caller.tenant,
            *is_user(bindings, platform, user_id),
            bindings.c.instance == caller.instance,
        )
    ).first()
    if bound is None:
        raise RelayError(
            Code.NOT_FOUND,
            "this user is not linked to the instance",
            where="user_id",
            mend="let the user link the account first",
        )
    put_dm_default(change, platform, user_id, caller.tenant, caller.instance)
    change.note(
        "dm-default.set",
        tenant=caller.tenant,
        instance=caller.instance,
        platform=platform,
        user_id=user_id,
    )


def put_dm_default(
    change: ControlChange, platform: str, user_id: str, tenant: str, instance: str
) -> None:
    """Store where a user's direct messages go."""
    change.connection.execute(delete(dm_defaults).where(*is_user(dm_defaults, platform, user_id)))
    change.connection.execute(
        insert(dm_defaults).values(
            platform=platform, user_id=user_id, tenant=tenant, instance=instance
        )
    )
    change.touch("user", platform, user_id)


def find_dm_default(change: ControlChange, platform: str, user_id: str) -> str | None:
    """The instance that a user's direct messages go to."""
    own = is_user(dm_defaults, platform, user_id)
    found: str | None = change.connection.execute(
        select(dm_defaults.c.instance).where(*own)
    ).scalar()
    return found


def mend_dm_default(change: ControlChange, platform: str, user_id: str) -> None:
    """After a binding changed: if the default is no longer bound, use the oldest binding."""
    own = is_user(dm_defaults, platform, user_id)
    default = find_dm_default(change, platform, user_id)
    left = change.connection.execute(
        select(bindings.c.tenant, bindings.c.instance)
        .where(*is_user(bindings, platform, user_id))
        .order_by(bindings.c.created_at, bindings.c.instance)
    ).all()
    if any(instance == default for _, instance in left):
        return
    change.connection.execute(delete(dm_defaults).where(*own))
    change.touch("user", platform, user_id)
    if left:
        put_dm_default(change, platform, user_id, left[0].tenant, left[0].instance)


def _pinned(change: ControlChange, instance: str, platform: str) -> RelevancePolicy | None:
    """The operator's policy, if one is set."""
    row = change.connection.execute(
        select(relevance).where(relevance.c.instance == instance, relevance.c.platform == platform)
    ).first()
    if row is None or not row.pinned:
        return None
    return RelevancePolicy(
        bool(row.require_address),
        frozenset(canonical.decode(row.free_response_scopes)),
        bool(row.allow_other_bots),
    )


def _replace(
    change: ControlChange, table: Table, instance: str, platform: str, values: dict[str, Any]
) -> bool:
    where = (table.c.instance == instance, table.c.platform == platform)
    row = change.connection.execute(select(table).where(*where)).mappings().first()
    if row is not None and all(row[name] == value for name, value in values.items()):
        return False
    if row is None:
        change.connection.execute(
            insert(table).values(instance=instance, platform=platform, **values)
        )
    else:
        change.connection.execute(update(table).where(*where).values(**values))
    change.touch("instance", instance)
    return True


def _texts(values: Iterable[str]) -> str:
    return canonical.encode(sorted(set(values))).decode()
