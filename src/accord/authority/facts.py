"""The facts by which a presented contract is classified, read as of one revision.

A dependency is what is active, else the shape that the deployment accepted, else what an enabled
deployment was accepted to implement; older manifests are never searched.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection

from accord.authority import revisions, store
from accord.authority.catalog import CatalogCache
from accord.authority.manifests import Manifest, Manifests
from accord.authority.revisions import RevisionStore, StaleError
from accord.authority.rules.catalog import Projection
from accord.authority.rules.classify import Proposal, ProposalFacts, classify_proposal
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.fields import storable
from accord.authority.rules.records import Deployment
from accord.contracts import EffectiveContract, Resolution, resolve_uses


class LineageOffer(NamedTuple):
    """An active offer of the same contract id."""

    deployment: str
    instance: str
    digest: str


@dataclass(frozen=True, slots=True)
class GatheredFacts:
    """Facts, the proposal that follows from them, and what to check before writing.

    Attributes:
        wishes: How often the desired state of any deployment had changed.
        lineage: The active offers of the contract id.
        now: When they were read.
    """

    deployment: Deployment
    facts: ProposalFacts
    proposal: Proposal
    is_superseded: bool
    instance: str | None
    wishes: int
    lineage: frozenset[LineageOffer]
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
    lineage: frozenset[LineageOffer]
    shapes: Mapping[str, str]
    known: frozenset[str]
    is_superseded: bool
    elsewhere: frozenset[str]


@dataclass(frozen=True, slots=True)
class FactReader:
    """Reads facts and classifies proposals by them."""

    _revisions: RevisionStore
    _manifests: Manifests
    _catalog: CatalogCache

    async def gather(
        self,
        deployment: str,
        contract: Manifest,
        digest: str,
        *,
        instance: str | None = None,
        shapes: Mapping[str, str] | None = None,
    ) -> GatheredFacts:
        """Classify what a contract means for a deployment.

        Args:
            contract: The normalised manifest.
            instance: The key that presents it; its earlier offer does not count as running beside.
            shapes: Reviewed digests of dependencies of which nothing is active.

        Raises:
            AuthorityError: There is no such deployment.
            StaleError: Something changed in the meantime.
        """
        arguments = (deployment, contract, digest, instance, shapes or {})
        projection = self._catalog.projection
        gathered, revision = await self._gather(projection, *arguments)
        if gathered is None or (gathered.proposal.blockers and revision != projection.revision):
            # The projection may miss contracts that have just become active.
            gathered, _ = await self._gather(await self._catalog.current(), *arguments)
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
    ) -> tuple[GatheredFacts | None, int]:
        """The facts, or None if the projection is out of date; and the revision."""
        used, now = used_contracts(contract), self._revisions.clock.now()
        read = await self._revisions.read(
            lambda c: _read(c, deployment, contract, digest, used, now)
        )
        if read.deployment is None:
            raise unknown_deployment(deployment)
        if read.wishes != projection.wishes:
            return None, read.revision
        desired = read.deployment.desired
        away = used - projection.effective.keys()
        counted = {**read.shapes, **desired.shapes, **shapes}
        standing = {identity: counted[identity] for identity in away if identity in counted}
        running = {offer.digest for offer in read.lineage if offer.deployment == deployment}
        beside = {offer.digest for offer in read.lineage if offer.instance != instance}
        manifests = await self._manifests.get_all(
            {
                *(*standing.values(), *running, *beside, *desired.contracts.values()),
                *read.elsewhere,
            }
        )
        known = {**manifests, digest: contract}
        facts = ProposalFacts(
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
            elsewhere=read.elsewhere,
        )
        proposal = await asyncio.to_thread(
            classify_proposal,
            facts,
            lambda old, new, how: self._manifests.compare(old, new, how, known),
        )
        gathered = GatheredFacts(
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
        """Resolve the uses of a contract against active contracts and shapes."""
        accepted: dict[str, EffectiveContract] = {
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
        store.read_deployment(connection, deployment),
        _lineage(connection, now, contract["id"]),
        store.read_shapes(connection, used),
        store.known_contract_ids(connection, used),
        store.is_superseded(connection, deployment, digest),
        store.accepted_elsewhere(connection, deployment, contract["id"]),
    )


def _lineage(connection: Connection, now: float, contract_id: str) -> frozenset[LineageOffer]:
    return frozenset(
        LineageOffer(offer.deployment, offer.instance, offer.digest)
        for offer in store.read_active_offers(connection, now, contract_id)
    )


def used_contracts(contract: Mapping[str, Any]) -> set[str]:
    """The ids of the contracts that a contract uses."""
    return {
        use["contract"] for aliases in contract.get("uses", {}).values() for use in aliases.values()
    }


def unknown_deployment(deployment: str) -> AuthorityError:
    """The error for a name that no deployment has."""
    return AuthorityError(
        Code.NOT_FOUND,
        f"there is no deployment {storable(deployment[:80])!r}",
        mend="create it first, or check its name",
    )
