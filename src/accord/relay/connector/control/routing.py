"""Route keys: which tenant a scope, chat or webhook belongs to (section 4, layer 0).

Owns the rule that a key names one tenant. Several instances of one tenant may claim the same key; a
key goes when its last claim goes, unless the operator has pinned it.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from sqlalchemy import delete, exists, insert, select, update

from accord.relay.connector.control.changes import Change
from accord.relay.connector.control.tables import route_claims, routes
from accord.relay.errors import Code, RelayError

MOST_KEYS: Final = 1000
"""How many route keys one instance may claim on one platform."""


def replace(change: Change, instance: str, tenant: str, platform: str, keys: Sequence[str]) -> None:
    """Let an instance claim exactly these keys on a platform.

    Raises:
        RelayError: One of them is another tenant's.
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


def pin(change: Change, tenant: str, platform: str, key: str) -> None:
    """Let the operator give a key to a tenant.

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


def unpin(change: Change, platform: str, key: str) -> None:
    """Take a pin away; the key goes unless an instance claims it."""
    change.connection.execute(
        update(routes)
        .where(routes.c.platform == platform, routes.c.route_key == key)
        .values(pinned=0)
    )
    change.note("route.unpinned", platform=platform, route_key=key)
    sweep(change, platform, [key])


def drop_claims(change: Change, instance: str) -> None:
    """Let an instance claim nothing any more."""
    had = change.connection.execute(
        select(route_claims.c.platform, route_claims.c.route_key).where(
            route_claims.c.instance == instance
        )
    ).all()
    change.connection.execute(delete(route_claims).where(route_claims.c.instance == instance))
    for platform, key in had:
        sweep(change, platform, [key])


def sweep(change: Change, platform: str, keys: Iterable[str]) -> None:
    """Drop those of the keys that nobody claims and nobody has pinned."""
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


def tenant_of(change: Change, platform: str, key: str) -> str | None:
    """Which tenant a key belongs to."""
    found: str | None = change.connection.execute(
        select(routes.c.tenant).where(routes.c.platform == platform, routes.c.route_key == key)
    ).scalar()
    return found


def _ensure(change: Change, platform: str, key: str, tenant: str, *, pinned: bool) -> None:
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
