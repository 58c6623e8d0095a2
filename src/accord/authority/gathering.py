"""What must be known before a presented contract can be classified, read as of one moment.

Owns which dependency counts: what is active first, then the shape that the deployment accepted,
then what an enabled deployment was accepted to implement; history is never searched.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection

from accord.authority.catalogs import Catalogs
from accord.authority.decisions import Facts, Projection, Proposal, classify
from accord.authority.errors import AuthorityError, Code
from accord.authority.forms import legible
from accord.authority.ledger import Ledger, StaleError
from accord.authority.manifests import Manifest, Manifests
from accord.authority.records import Deployment
from accord.authority.stored import deployments, offers, revisions
from accord.authority.stored import manifests as stored_manifests
from accord.contracts import Effective, Resolution, resolve_uses


class Seat(NamedTuple):
    """An active offer, as far as others of its lineage must stand beside it."""

    deployment: str
    instance: str
    digest: str


@dataclass(frozen=True, slots=True)
class Gathered:
    """Facts, what follows from them, and by what to tell that they still hold.

    Attributes:
        wishes: How often what is desired had changed.
        lineage: Who offered what of the contract's lineage.
        now: When they were gathered.
    """

    deployment: Deployment
    facts: Facts
    proposal: Proposal
    is_superseded: bool
    instance: str | None
    wishes: int
    lineage: frozenset[Seat]
    now: float

    def holds(self, connection: Connection) -> bool:
        """Whether nothing that the decision relies on has changed."""
        return (
            revisions.wishes(connection) == self.wishes
            and _lineage(connection, self.now, self.facts.contract["id"]) == self.lineage
        )


@dataclass(frozen=True, slots=True)
class _Read:
    revision: int
    wishes: int
    deployment: Deployment | None
    lineage: frozenset[Seat]
    shapes: Mapping[str, str]
    known: frozenset[str]
    is_superseded: bool


class Gathering:
    """Reads facts and classifies.

    Args:
        ledger: The store.
        manifests: The known contracts.
        catalogs: What is active.
    """

    def __init__(self, ledger: Ledger, manifests: Manifests, catalogs: Catalogs) -> None:
        self._ledger = ledger
        self._manifests = manifests
        self._catalogs = catalogs

    async def gather(
        self,
        deployment: str,
        contract: Manifest,
        digest: str,
        *,
        instance: str | None = None,
        shapes: Mapping[str, str] | None = None,
    ) -> Gathered:
        """Classify what a contract means for a deployment.

        Args:
            deployment: Where it is presented.
            contract: The normalised manifest.
            digest: Its digest.
            instance: Who presents it; what it offered before is replaced, and does not run beside.
            shapes: Digests that a reviewer gave for dependencies of which nothing is active.

        Raises:
            AuthorityError: There is no such deployment.
            StaleError: Something changed meanwhile.
        """
        arguments = (deployment, contract, digest, instance, shapes or {})
        projection = self._catalogs.projection
        gathered, revision = await self._gather(projection, *arguments)
        if gathered is None or (gathered.proposal.blockers and revision != projection.revision):
            # What has just come to life would be missed.
            gathered, _ = await self._gather(await self._catalogs.current(), *arguments)
        if gathered is None:
            raise StaleError
        return gathered

    async def _gather(
        self,
        projection: Projection,
        deployment: str,
        contract: Manifest,
        digest: str,
        instance: str | None,
        shapes: Mapping[str, str],
    ) -> tuple[Gathered | None, int]:
        """What was gathered, or None if the projection is of older wishes; and the revision."""
        used, now = used_contracts(contract), self._ledger.clock.now()
        read = await self._ledger.read(lambda c: _read(c, deployment, contract, digest, used, now))
        if read.deployment is None:
            raise no_deployment(deployment)
        if read.wishes != projection.wishes:
            return None, read.revision
        desired = read.deployment.desired
        away = used - projection.effective.keys()
        counted = {**read.shapes, **desired.shapes, **shapes}
        standing = {identity: counted[identity] for identity in away if identity in counted}
        running = {seat.digest for seat in read.lineage if seat.deployment == deployment}
        beside = {seat.digest for seat in read.lineage if seat.instance != instance}
        manifests = await self._manifests.get_all(
            {*standing.values(), *running, *beside, *desired.contracts.values()}
        )
        known = {**manifests, digest: contract}
        facts = Facts(
            deployment=read.deployment,
            contract=contract,
            digest=digest,
            resolution=self.resolve(contract, projection, standing, known, read.known),
            effective=projection.effective,
            manifests=known,
            running=frozenset(running),
            beside=frozenset(beside),
            collisions=tuple(projection.ownership.collisions(contract)),
            shapes=standing,
        )
        proposal = await asyncio.to_thread(
            classify, facts, lambda old, new, how: self._manifests.compare(old, new, how, known)
        )
        gathered = Gathered(
            *(read.deployment, facts, proposal, read.is_superseded, instance),
            *(read.wishes, read.lineage, now),
        )
        return gathered, read.revision

    def resolve(
        self,
        contract: Manifest,
        projection: Projection,
        shapes: Mapping[str, str],
        manifests: Mapping[str, Manifest],
        known: frozenset[str] | None = None,
    ) -> Resolution:
        """What the uses of a contract lead to."""
        accepted: dict[str, Effective] = {
            identity: self._manifests.union((digest,), manifests)
            for identity, digest in shapes.items()
            if digest in manifests and manifests[digest]["id"] == identity
        }
        if known is not None:
            known |= frozenset(self._manifests.builtins) | accepted.keys()
        effective = projection.effective
        active = {
            identity: effective[identity]
            for identity in used_contracts(contract)
            if identity in effective
        }
        return resolve_uses(contract, active, accepted=accepted, known=known)


def _read(
    connection: Connection,
    deployment: str,
    contract: Manifest,
    digest: str,
    used: set[str],
    now: float,
) -> _Read:
    return _Read(
        revisions.current(connection),
        revisions.wishes(connection),
        deployments.read(connection, deployment),
        _lineage(connection, now, contract["id"]),
        deployments.shapes_of(connection, used),
        stored_manifests.known_ids(connection, used),
        deployments.is_superseded(connection, deployment, digest),
    )


def _lineage(connection: Connection, now: float, contract_id: str) -> frozenset[Seat]:
    return frozenset(
        Seat(offer.deployment, offer.instance, offer.digest)
        for offer in offers.active(connection, now, contract_id)
    )


def used_contracts(contract: Mapping[str, Any]) -> set[str]:
    """The ids of the contracts that a contract uses."""
    return {
        use["contract"] for aliases in contract.get("uses", {}).values() for use in aliases.values()
    }


def no_deployment(deployment: str) -> AuthorityError:
    """The refusal of a name that no deployment has."""
    return AuthorityError(
        Code.NOT_FOUND,
        f"there is no deployment {legible(deployment[:80])!r}",
        mend="create it first, or check its name",
    )
