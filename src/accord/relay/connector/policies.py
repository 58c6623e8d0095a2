"""Principal policies, relevance policies and dm-defaults in the store.

Each write replaces the whole policy; one that changes nothing is not recorded. A gateway cannot
replace a relevance policy that the operator set.
"""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import Table, delete, insert, select, update

from accord.kernel import canonical
from accord.relay.connector.registry import Principal
from accord.relay.connector.store import ControlChange
from accord.relay.connector.tables import bindings, dm_defaults, principals, relevance
from accord.relay.errors import Code, RelayError
from accord.relay.rules.gate import PrincipalPolicy, RelevancePolicy


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
    """Replace an instance's relevance policy on a platform.

    Returns:
        The operator's policy, where it is set and a gateway's was ignored; else None.
    """
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
    """Route a user's direct messages to the caller.

    Raises:
        RelayError: The user is not bound to the caller.
    """
    bound = change.connection.execute(
        select(bindings.c.instance).where(
            bindings.c.tenant == caller.tenant,
            bindings.c.platform == platform,
            bindings.c.user_id == user_id,
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
    who = (dm_defaults.c.platform == platform, dm_defaults.c.user_id == user_id)
    change.connection.execute(delete(dm_defaults).where(*who))
    change.connection.execute(
        insert(dm_defaults).values(
            platform=platform, user_id=user_id, tenant=tenant, instance=instance
        )
    )
    change.touch("user", platform, user_id)


def mend_dm_default(change: ControlChange, platform: str, user_id: str) -> None:
    """After a binding changed: if the default is no longer bound, use the oldest binding."""
    who = (bindings.c.platform == platform, bindings.c.user_id == user_id)
    default = change.connection.execute(
        select(dm_defaults.c.instance).where(
            dm_defaults.c.platform == platform, dm_defaults.c.user_id == user_id
        )
    ).scalar()
    left = change.connection.execute(
        select(bindings.c.tenant, bindings.c.instance)
        .where(*who)
        .order_by(bindings.c.created_at, bindings.c.instance)
    ).all()
    if any(instance == default for _, instance in left):
        return
    change.connection.execute(
        delete(dm_defaults).where(
            dm_defaults.c.platform == platform, dm_defaults.c.user_id == user_id
        )
    )
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
