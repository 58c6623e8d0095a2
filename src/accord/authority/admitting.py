"""The offer that a ready instance gets, and those that end by it.

Everything here happens within the unit of work of a bootstrap, after the contract was accepted.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from accord.authority.decisions.liveness import GRACE, Liveness, liveness
from accord.authority.gathering import Gathered
from accord.authority.history import Act
from accord.authority.ledger import Change
from accord.authority.manifests import Manifest
from accord.authority.records import (
    Deployment,
    Holder,
    Instance,
    Materialized,
    MaterialState,
    Offer,
    Session,
)
from accord.authority.stored import deployments, offers, sessions
from accord.contracts import Bindings


@dataclass(frozen=True, slots=True)
class Ready:
    """What an instance needs to run.

    Attributes:
        deployment: The deployment that it is of.
        instance: Its name.
        contract_id: The contract that it implements.
        digest: The contract's digest.
        bindings: What is bound to the contract's aliases.
        settings: What a runtime must know of each, by kind and alias.
    """

    deployment: str
    instance: str
    contract_id: str
    digest: str
    bindings: Bindings
    settings: Mapping[str, Any]


def admit(
    connection: Connection,
    change: Change,
    gathered: Gathered,
    deployment: Deployment,
    instance: Instance,
) -> Ready | None:
    """Accept the offer, if everything that was accepted is there.

    What runs already goes on with what is bound to it, whatever becomes of a newer digest.
    """
    made = deployments.read_materialized(connection, deployment.id)
    if made is None:
        return None
    is_current = made.status is MaterialState.CURRENT and made.version >= deployment.version
    is_running = gathered.facts.digest in gathered.facts.running
    if not is_current and not (is_running and _is_bound(made, gathered.facts.contract)):
        return None
    contract_id, digest = gathered.facts.contract["id"], gathered.facts.digest
    before = offers.read(connection, instance.key, contract_id)
    is_first = not offers.is_offered(connection, deployment.id, contract_id, digest)
    offers.write(connection, _offered(before, deployment, instance, contract_id, digest, change))
    if before is None or before.digest != digest:
        change.touch()
    about = (deployment.id, contract_id)
    if is_first:
        previous = None if before is None or before.digest == digest else before.digest
        change.tell(Act("offered", instance.name, *about, digest, previous=previous))
    for ended in _ended(connection, before, deployment.id, contract_id, digest):
        change.tell(Act("withdrawn", instance.name, *about, ended))
    _remember(connection, deployment, instance, contract_id, digest, change.now)
    return Ready(
        *(deployment.id, instance.name, contract_id, digest),
        made.bindings.get(contract_id, Bindings()),
        made.settings.get(contract_id, {}),
    )


def _is_bound(made: Materialized, contract: Manifest) -> bool:
    """Whether everything that a contract asks for is bound."""
    bound = made.bindings.get(contract["id"], Bindings())
    resources = contract.get("resources", {})
    return (
        resources.get("kv", {}).keys() <= bound.kv.keys()
        and resources.get("store", {}).keys() <= bound.store.keys()
        and contract.get("eventConsumers", {}).keys() <= bound.consumers.keys()
        and contract.get("jobs", {}).keys() <= bound.jobs.keys()
        and not (contract.get("operations") and bound.operations is None)
    )


def _offered(
    before: Offer | None,
    deployment: Deployment,
    instance: Instance,
    contract_id: str,
    digest: str,
    change: Change,
) -> Offer:
    """The accepted offer; one that is there already goes on."""
    now = change.now
    if (
        before is not None
        and before.digest == digest
        and liveness(before, now) is not Liveness.EXPIRED
    ):
        expires_at = max(before.expires_at, now + GRACE)
        return dataclasses.replace(before, expires_at=expires_at)
    about = (deployment.id, instance.key, contract_id, digest)
    return Offer(*about, live=False, accepted_at=now, stale_at=now, expires_at=now + GRACE)


def _ended(
    connection: Connection, before: Offer | None, deployment: str, contract_id: str, digest: str
) -> set[str]:
    """Drop offers that a migration has ended, and say which digests the deployment offers no more.

    They go when the first instance of what takes their place is ready, not before.
    """
    gone = set() if before is None or before.digest == digest else {before.digest}
    for offer in offers.read_some(connection, deployment=deployment, contract_id=contract_id):
        if offer.digest != digest and deployments.is_superseded(
            connection, deployment, offer.digest
        ):
            offers.drop(connection, offer)
            gone.add(offer.digest)
    return {old for old in gone if not offers.is_offered(connection, deployment, contract_id, old)}


def _remember(
    connection: Connection,
    deployment: Deployment,
    instance: Instance,
    contract_id: str,
    digest: str,
    now: float,
) -> None:
    known = sessions.read(connection, instance.key)
    holder = Holder(deployment.kind.value)
    created_at = now if known is None else known.created_at
    sessions.write(
        connection,
        Session(
            *(instance.key, holder, deployment.id, contract_id, digest),
            created_at=created_at,
        ),
    )
