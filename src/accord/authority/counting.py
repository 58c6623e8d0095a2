"""How many plans, offers and deployments stand where, for figures.

Counts by the store in one look, so that whoever shows the figures waits for nothing.
"""

from collections import Counter
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select

from accord.authority.decisions.liveness import GRACE, Liveness
from accord.authority.records import MaterialState, PlanState
from accord.authority.tables import deployments, materialized, offers, plans


@dataclass(frozen=True, slots=True)
class States:
    """How many there are, by state."""

    plans: Counter[tuple[str]] = field(default_factory=Counter)
    offers: Counter[tuple[str]] = field(default_factory=Counter)
    deployments: Counter[tuple[str]] = field(default_factory=Counter)


_NEW = "new"
_DISABLED = "disabled"


def states(connection: Connection, now: float) -> States:
    """Count, at a time; a state that nothing is in counts 0."""
    found = States(
        Counter({(each.value,): 0 for each in PlanState}),
        Counter({(each.value,): 0 for each in Liveness}),
        Counter(
            {(each,): 0 for each in (*(each.value for each in MaterialState), _NEW, _DISABLED)}
        ),
    )
    for state, count in connection.execute(
        select(plans.c.state, func.count()).group_by(plans.c.state)
    ):
        found.plans[(state,)] += count
    # As `liveness` decides, but by the database: there may be very many.
    total = func.count()
    expired = connection.execute(select(total).where(offers.c.expires_at <= now)).scalar_one()
    live = connection.execute(
        select(total).where(offers.c.live == 1, offers.c.expires_at - GRACE > now)
    ).scalar_one()
    every = connection.execute(select(total).select_from(offers)).scalar_one()
    found.offers[(Liveness.EXPIRED.value,)] = expired
    found.offers[(Liveness.LIVE.value,)] = live
    found.offers[(Liveness.STALE.value,)] = every - expired - live
    made = (
        select(deployments.c.disabled, materialized.c.status, total)
        .join(materialized, materialized.c.deployment == deployments.c.id, isouter=True)
        .group_by(deployments.c.disabled, materialized.c.status)
    )
    for is_disabled, status, count in connection.execute(made):
        found.deployments[(_DISABLED if is_disabled else status or _NEW,)] += count
    return found
