"""Plans."""

from typing import Any

from sqlalchemy import Connection, RowMapping, delete, insert, select, update

from accord.authority.records import Classification, Plan, PlanState
from accord.authority.stored.encoding import decode, encode
from accord.authority.tables import plans


def read(connection: Connection, plan: str) -> Plan | None:
    """One plan."""
    row = connection.execute(select(plans).where(plans.c.id == plan)).mappings().first()
    return None if row is None else _plan(row)


def read_some(
    connection: Connection,
    *,
    deployment: str | None = None,
    state: PlanState | None = None,
    requester: str | None = None,
    limit: int | None = None,
) -> list[Plan]:
    """Plans, the newest first."""
    query = select(plans).order_by(plans.c.created_at.desc(), plans.c.id.desc()).limit(limit)
    if deployment is not None:
        query = query.where(plans.c.deployment == deployment)
    if state is not None:
        query = query.where(plans.c.state == state.value)
    if requester is not None:
        query = query.where(plans.c.requester == requester)
    return [_plan(row) for row in connection.execute(query).mappings()]


def write(connection: Connection, plan: Plan) -> None:
    """Keep a plan, new or decided."""
    values: dict[str, Any] = {
        "deployment": plan.deployment,
        "classification": plan.classification.value,
        "state": plan.state.value,
        "requester": plan.requester,
        "contract_id": plan.contract_id,
        "digest": plan.digest,
        "delta": encode(dict(plan.delta)),
        "based_on": plan.based_on,
        "created_at": plan.created_at,
        "decided_at": plan.decided_at,
        "decided_by": plan.decided_by,
    }
    if not connection.execute(update(plans).where(plans.c.id == plan.id).values(values)).rowcount:
        connection.execute(insert(plans).values(id=plan.id, **values))


def drop(connection: Connection, plan: str) -> None:
    """Forget a plan that nobody decided."""
    connection.execute(delete(plans).where(plans.c.id == plan))


def _plan(row: RowMapping) -> Plan:
    return Plan(
        row["id"],
        row["deployment"],
        Classification(row["classification"]),
        PlanState(row["state"]),
        row["requester"],
        row["contract_id"],
        row["digest"],
        decode(row["delta"]),
        row["based_on"],
        row["created_at"],
        row["decided_at"],
        row["decided_by"],
    )
