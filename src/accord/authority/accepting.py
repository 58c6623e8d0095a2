"""What accepting a plan changes: what is desired, what it ends, and what is said of it.

Everything here happens within a unit of work that relies on the revision by which the plan was
decided. Nothing is made real by it; what was made stays current where nothing of it is touched.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import Connection

from accord.authority.gathering import Gathered
from accord.authority.history import Act, Word
from accord.authority.ledger import Change
from accord.authority.manifests import Manifest
from accord.authority.records import (
    Deployment,
    Desired,
    Materialized,
    MaterialState,
    Plan,
    PlanState,
)
from accord.authority.stored import deployments, plans

_CIRCUMSTANCES: Final = ("findings", "shapes", "instance")


def accept_in(connection: Connection, change: Change, gathered: Gathered, plan: Plan) -> Deployment:
    """Accept a plan within a unit of work that relies on the gathered revision."""
    deployment, facts = gathered.deployment, gathered.facts
    changed = desire_in(connection, change, deployment, gathered.proposal.desired, facts.manifests)
    deployments.supersede(connection, deployment.id, gathered.proposal.ends, facts.digest)
    plans.write(connection, plan)
    for other in plans.read_some(connection, deployment=deployment.id, state=PlanState.PENDING):
        if other.digest == plan.digest and asks(other.delta) == asks(plan.delta):
            settled = dataclasses.replace(
                other,
                state=plan.state,
                decided_at=plan.decided_at,
                decided_by=plan.decided_by,
            )
            plans.write(connection, settled)
    previous = facts.latest if facts.latest != facts.digest else None
    change.tell(told("accepted", plan, plan.decided_by or "?", previous=previous))
    return changed


def desire_in(
    connection: Connection,
    change: Change,
    deployment: Deployment,
    desired: Desired,
    manifests: Mapping[str, Manifest],
) -> Deployment:
    """Change what is desired; what was made stays current if nothing of it is touched."""
    if desired == deployment.desired:
        return deployment
    changed = dataclasses.replace(deployment, desired=desired, version=deployment.version + 1)
    deployments.write(connection, changed)
    change.wish()
    made = deployments.read_materialized(connection, deployment.id)
    if made is not None and _is_untouched(made, deployment, changed, manifests):
        record = dataclasses.replace(made, version=changed.version)
        deployments.write_materialized(connection, record)
    return changed


def _is_untouched(
    made: Materialized, old: Deployment, new: Deployment, manifests: Mapping[str, Manifest]
) -> bool:
    def made_of(deployment: Deployment) -> Any:
        # Operations are kept in a bucket of their own, which no request names.
        with_operations = {
            identity: bool(manifests.get(digest, {}).get("operations"))
            for identity, digest in deployment.desired.contracts.items()
        }
        return with_operations, deployment.desired.resources

    return (
        made.status is MaterialState.CURRENT
        and made.version == old.version
        and made_of(old) == made_of(new)
    )


def asks(delta: Mapping[str, Any]) -> dict[str, Any]:
    """What of a plan's delta a reviewer agrees to."""
    return {name: value for name, value in delta.items() if name not in _CIRCUMSTANCES}


def presented(plan: Plan, contract: Manifest) -> Act:
    """The act of presenting the contract of a plan."""
    return told("presented", plan, plan.requester, manifest=contract)


def told(word: Word, plan: Plan, by: str, **more: Any) -> Act:
    """An act that is about a plan."""
    return Act(
        word, by, plan.deployment, plan.contract_id, plan.digest, plan.classification, **more
    )
