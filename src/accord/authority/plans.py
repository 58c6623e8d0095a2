"""Plans: recorded when a contract asks for more than was accepted, decided by an operator.

A proposal is classified by facts read as of one revision, and written only if they still hold, so
that a plan which could not be accepted changes nothing (section 14). A dependency is what is
active, else the shape that the deployment accepted, else what an enabled deployment implements.
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection

from accord.authority import revisions, store
from accord.authority.manifests import CatalogCache, Manifest, Manifests, digest_of
from accord.authority.revisions import AuditAction, AuditEvent, ChangeSet, RevisionStore, StaleError
from accord.authority.rules.catalog import Projection
from accord.authority.rules.classify import Proposal, ProposalFacts, classify_proposal
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.fields import clip_remark, is_key, storable
from accord.authority.rules.records import (
    Classification,
    Deployment,
    Desired,
    Materialized,
    MaterialState,
    Plan,
    PlanState,
)
from accord.contracts import EffectiveContract, Resolution, resolve_uses
from accord.kernel.identifiers import UlidSource


class LineageOffer(NamedTuple):
    """An active offer of the same contract id."""

    deployment: str
    instance: str
    digest: str


@dataclass(frozen=True, slots=True)
class GatheredFacts:
    """Facts, the proposal that follows from them, and what to check before writing."""

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
        """Classify what a contract means for a deployment; StaleError if something changed.

        The earlier offer of `instance` does not count as running beside it. `shapes` are reviewed
        digests of dependencies of which nothing is active.
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
            {*(*standing.values(), *running, *beside, *desired.contracts.values()), *read.elsewhere}
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


_UNREVIEWED: Final = ("findings", "shapes", "instance")


def accept_in(
    connection: Connection, change: ChangeSet, gathered: GatheredFacts, plan: Plan
) -> Deployment:
    """Accept a plan within a unit of work that checks the gathered facts."""
    deployment, facts = gathered.deployment, gathered.facts
    changed = desire_in(connection, change, deployment, gathered.proposal.desired, facts.manifests)
    store.supersede(connection, deployment.id, gathered.proposal.ends, facts.digest)
    store.write_plan(connection, plan)
    for other in store.read_plans(connection, deployment=deployment.id, state=PlanState.PENDING):
        # Other plans for this digest are out of date; requesters that need more ask again.
        if other.digest == plan.digest and other.id != plan.id:
            settled = dataclasses.replace(
                other,
                state=PlanState.EXPIRED,
                decided_at=plan.decided_at,
                decided_by=plan.decided_by,
            )
            store.write_plan(connection, settled)
    store.prune_plans(connection, deployment.id)
    previous = facts.latest if facts.latest != facts.digest else None
    change.tell(plan_event("accepted", plan, plan.decided_by or "?", previous=previous))
    return changed


def desire_in(
    connection: Connection,
    change: ChangeSet,
    deployment: Deployment,
    desired: Desired,
    manifests: Mapping[str, Manifest],
) -> Deployment:
    """Change the desired state; resources stay current if the change does not affect them."""
    if desired == deployment.desired:
        return deployment
    changed = dataclasses.replace(deployment, desired=desired, version=deployment.version + 1)
    store.write_deployment(connection, changed)
    change.wish()
    made = store.read_materialized(connection, deployment.id)
    if made is not None and _is_unaffected(made, deployment, changed, manifests):
        record = dataclasses.replace(made, version=changed.version)
        store.write_materialized(connection, record)
    return changed


def _is_unaffected(
    made: Materialized, old: Deployment, new: Deployment, manifests: Mapping[str, Manifest]
) -> bool:
    def made_of(deployment: Deployment) -> Any:
        # Operations have a bucket of their own that is not among the requests.
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


def reviewed_delta(delta: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a plan's delta that a reviewer agrees to."""
    return {name: value for name, value in delta.items() if name not in _UNREVIEWED}


def presented_event(plan: Plan, contract: Manifest) -> AuditEvent:
    """The event of presenting the contract of a plan."""
    return plan_event("presented", plan, plan.requester, manifest=contract)


def plan_event(word: AuditAction, plan: Plan, by: str, **more: Any) -> AuditEvent:
    """An event about a plan."""
    return AuditEvent(
        word, by, plan.deployment, plan.contract_id, plan.digest, plan.classification, **more
    )


MAX_PENDING: Final = 64
"""Plans of one deployment that may wait for a decision."""

PLATFORM_PREFIX: Final = "trellis."


@dataclass(frozen=True, slots=True)
class Plans:
    """Reads, proposes, accepts and rejects plans."""

    _revisions: RevisionStore
    _ids: UlidSource
    _manifests: Manifests
    _facts: FactReader

    async def get(self, plan_id: str) -> Plan:
        """One plan, pending or decided; `AuthorityError` if there is none."""
        found = await self._revisions.read(lambda c: store.read_plan(c, plan_id))
        if found is None:
            raise plan_not_pending(plan_id)
        return found

    async def all(
        self, deployment: str | None = None, state: PlanState | None = None
    ) -> Sequence[Plan]:
        """Up to 1000 plans, the newest first."""
        return await self._revisions.read(
            lambda c: store.read_plans(c, deployment=deployment, state=state, limit=1000)
        )

    async def propose(
        self, deployment: str, manifest: bytes, requester: str, shapes: Sequence[bytes] = ()
    ) -> Plan | None:
        """Record the plan that a contract needs on a deployment; None if it needs none.

        `shapes` are reviewed manifests of dependencies of which nothing is active yet.
        """
        digest = await asyncio.to_thread(digest_of, manifest)
        contract = await self._manifests.present(manifest, digest)
        dependencies: dict[str, str] = {}
        for shape in shapes:
            name = await asyncio.to_thread(digest_of, shape)
            dependencies[(await self._manifests.present(shape, name))["id"]] = name

        async def once() -> Plan | None:
            gathered = await self._facts.gather(deployment, contract, digest, shapes=dependencies)
            check_fits(gathered.deployment, contract)
            refuse_blocked(gathered.proposal)
            if gathered.proposal.classification is Classification.NONE:
                return None
            return await self.record(gathered, requester)

        plan = await self._revisions.decide(once)
        await self._manifests.describe(manifest, requester)
        return plan

    async def record(self, gathered: GatheredFacts, requester: str) -> Plan:
        """Record a pending plan; equal deltas share one. StaleError if something changed."""
        plan = self.plan_of(gathered, requester)

        def work(connection: Connection, change: ChangeSet) -> Plan | AuthorityError:
            return self.record_in(connection, change, plan, gathered.facts.contract)

        return await self._revisions.change(work, holds=gathered.holds)

    def plan_of(self, gathered: GatheredFacts, requester: str) -> Plan:
        """The plan that a proposal needs, not recorded yet."""
        facts, proposal = gathered.facts, gathered.proposal
        return Plan(
            self._ids.new(),
            gathered.deployment.id,
            proposal.classification,
            PlanState.PENDING,
            clip_remark(requester),
            facts.contract["id"],
            facts.digest,
            {**proposal.delta, "shapes": dict(facts.shapes), "instance": gathered.instance},
            gathered.deployment.version,
            self._revisions.clock.now(),
        )

    def record_in(
        self, connection: Connection, change: ChangeSet, plan: Plan, contract: Manifest
    ) -> Plan | AuthorityError:
        """Record a pending plan within a unit of work."""
        pending = store.read_plans(
            connection, deployment=plan.deployment, state=PlanState.PENDING, limit=MAX_PENDING
        )
        for each in pending:
            if each.digest == plan.digest and reviewed_delta(each.delta) == reviewed_delta(
                plan.delta
            ):
                # Equal requests share a plan; an operator's must not be deleted with a service.
                if not is_key(each.requester) or is_key(plan.requester):
                    return each
                taken = dataclasses.replace(each, requester=plan.requester)
                store.write_plan(connection, taken)
                change.touch()
                return taken
        mine = [
            each
            for each in pending
            if (each.requester, each.contract_id) == (plan.requester, plan.contract_id)
        ]
        if len(pending) - len(mine) >= MAX_PENDING:
            return AuthorityError(
                Code.RATE_LIMITED,
                f"{MAX_PENDING} plans of {plan.deployment} wait for a decision",
                mend="accept or reject some of them",
            )
        for each in mine:
            store.delete_plan(connection, each.id)
        store.write_plan(connection, plan)
        change.tell(presented_event(plan, contract))
        return plan

    async def accept(self, plan_id: str, by: str) -> Plan:
        """Accept a plan, which changes the desired state; one that is out of date expires."""

        async def once() -> Plan:
            plan = await self.pending(plan_id)
            contract = await self._manifests.present(None, plan.digest)
            gathered = await self._facts.gather(
                plan.deployment,
                contract,
                plan.digest,
                instance=plan.delta["instance"],
                shapes=plan.delta["shapes"],
            )
            proposal = gathered.proposal
            refuse_blocked(proposal)
            if proposal.classification is not plan.classification or (
                reviewed_delta(proposal.delta) != reviewed_delta(plan.delta)
            ):
                await self._expire(plan, gathered)
                raise AuthorityError(
                    Code.CONFLICT,
                    "what this plan was made for has changed",
                    where=plan_id,
                    mend="review the plan that is proposed next",
                )
            accepted = self._decided(plan, PlanState.ACCEPTED, by)

            def work(connection: Connection, change: ChangeSet) -> Plan | AuthorityError:
                if not _is_pending(connection, plan_id):
                    return plan_not_pending(plan_id)
                accept_in(connection, change, gathered, accepted)
                return accepted

            return await self._revisions.change(work, holds=gathered.holds)

        return await self._revisions.decide(once)

    async def reject(self, plan_id: str, by: str, why: str) -> Plan:
        """Reject a pending plan."""
        plan = await self.pending(plan_id)
        rejected = self._decided(plan, PlanState.REJECTED, by)

        def work(connection: Connection, change: ChangeSet) -> Plan | AuthorityError:
            if not _is_pending(connection, plan_id):
                return plan_not_pending(plan_id)
            store.write_plan(connection, rejected)
            store.prune_plans(connection, rejected.deployment)
            change.tell(plan_event("rejected", rejected, by, why=why))
            return rejected

        return await self._revisions.change(work)

    async def forget(self, requester: str) -> None:
        """Delete the pending plans of a requester that is gone."""

        def work(connection: Connection, change: ChangeSet) -> None:
            waiting = store.read_plans(
                connection, state=PlanState.PENDING, requester=clip_remark(requester)
            )
            for plan in waiting:
                store.delete_plan(connection, plan.id)
                change.touch()

        await self._revisions.change(work)

    async def pending(self, plan_id: str) -> Plan:
        """A pending plan; `AuthorityError` if there is none."""
        plan = await self._revisions.read(lambda c: store.read_plan(c, plan_id))
        if plan is None or plan.state is not PlanState.PENDING:
            raise plan_not_pending(plan_id)
        return plan

    def _decided(self, plan: Plan, state: PlanState, by: str) -> Plan:
        now = self._revisions.clock.now()
        return dataclasses.replace(plan, state=state, decided_at=now, decided_by=clip_remark(by))

    async def _expire(self, plan: Plan, gathered: GatheredFacts) -> None:
        expired = self._decided(plan, PlanState.EXPIRED, "authority")

        def work(connection: Connection, change: ChangeSet) -> None:
            if _is_pending(connection, plan.id):
                store.write_plan(connection, expired)
                store.prune_plans(connection, expired.deployment)
                change.touch()

        await self._revisions.change(work, holds=gathered.holds)


def _is_pending(connection: Connection, plan_id: str) -> bool:
    plan = store.read_plan(connection, plan_id)
    return plan is not None and plan.state is PlanState.PENDING


def check_fits(deployment: Deployment, contract: Manifest) -> None:
    """Check that a deployment may implement a contract; `AuthorityError` if not."""
    if contract["id"].startswith(PLATFORM_PREFIX):
        raise AuthorityError(
            Code.FORBIDDEN,
            f"{contract['id']} is reserved for built-in contracts",
            mend="use another id",
        )
    if contract["kind"] != deployment.kind.value:
        raise AuthorityError(
            Code.FORBIDDEN,
            f"the contract is of kind {contract['kind']}, {deployment.id} of {deployment.kind}",
            mend="use a deployment of the contract's kind",
        )


def refuse_blocked(proposal: Proposal) -> None:
    """Raise the first blocker, if any, as an `AuthorityError` with all of them as findings."""
    if proposal.blockers:
        first = proposal.blockers[0]
        raise AuthorityError(
            first.code,
            first.finding.message,
            where=first.finding.pointer or None,
            findings=[blocker.finding for blocker in proposal.blockers],
        )


def plan_not_pending(plan_id: str) -> AuthorityError:
    """The error for a plan that does not exist or is no longer pending."""
    return AuthorityError(
        Code.NOT_FOUND,
        "there is no such pending plan",
        where=storable(plan_id[:80]),
        mend="list plans",
    )
