"""Offers: accepted at bootstrap, kept alive by connections and heartbeats, ended when they expire.

Only a bootstrap creates an offer or changes what it offers (section 6.2): an instance presents a
contract and becomes ready, or learns what it waits for. All changes of a bootstrap are made in one
transaction, and only if the facts that they were decided by still hold.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Connection

from accord.authority import store
from accord.authority.manifests import CatalogCache, Manifest, Manifests
from accord.authority.plans import (
    FactReader,
    GatheredFacts,
    Plans,
    accept_in,
    check_fits,
    desire_in,
    presented_event,
    refuse_blocked,
)
from accord.authority.revisions import AuditEvent, ChangeSet, RevisionStore
from accord.authority.rules.catalog import (
    GRACE_SECONDS,
    HEARTBEAT_SECONDS,
    LEASE_SECONDS,
    Liveness,
    mark_heard,
    mark_lost,
    offer_liveness,
)
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import (
    Classification,
    Compatibility,
    Deployment,
    Desired,
    Instance,
    Materialized,
    MaterialState,
    Offer,
    Plan,
    PlanState,
    SessionHolder,
    SessionRecord,
)
from accord.contracts import Bindings, text_digest


@dataclass(frozen=True, slots=True)
class Ready:
    """What an instance needs to run; `settings` are for its runtime, by kind and alias."""

    deployment: str
    instance: str
    contract_id: str
    digest: str
    bindings: Bindings
    settings: Mapping[str, Any]


def admit_offer(
    connection: Connection,
    change: ChangeSet,
    gathered: GatheredFacts,
    deployment: Deployment,
    instance: Instance,
) -> Ready | None:
    """Accept the offer if the deployment's resources are ready; else None.

    A digest that runs already continues with its bindings, whatever becomes of a newer one.
    """
    made = store.read_materialized(connection, deployment.id)
    if made is None:
        return None
    is_current = made.status is MaterialState.CURRENT and made.version >= deployment.version
    is_running = gathered.facts.digest in gathered.facts.running
    if not is_current and not (is_running and _is_bound(made, gathered.facts.contract)):
        return None
    contract_id, digest = gathered.facts.contract["id"], gathered.facts.digest
    before = store.read_offer(connection, instance.key, contract_id)
    is_first = not store.is_offered(connection, deployment.id, contract_id, digest)
    store.write_offer(
        connection, _offered(before, deployment, instance, contract_id, digest, change)
    )
    if before is None or before.digest != digest:
        change.touch()
    about = (deployment.id, contract_id)
    if is_first:
        previous = None if before is None or before.digest == digest else before.digest
        change.tell(AuditEvent("offered", instance.name, *about, digest, previous=previous))
    for ended in _ended(connection, before, deployment.id, contract_id, digest):
        change.tell(AuditEvent("withdrawn", instance.name, *about, ended))
    _write_session(connection, deployment, instance, contract_id, digest, change.now)
    return Ready(
        *(deployment.id, instance.name, contract_id, digest),
        made.bindings.get(contract_id, Bindings()),
        made.settings.get(contract_id, {}),
    )


def _is_bound(made: Materialized, contract: Manifest) -> bool:
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
    change: ChangeSet,
) -> Offer:
    """The accepted offer; an existing one is extended."""
    now = change.now
    if (
        before is not None
        and before.digest == digest
        and offer_liveness(before, now) is not Liveness.EXPIRED
    ):
        expires_at = max(before.expires_at, now + GRACE_SECONDS)
        return dataclasses.replace(before, expires_at=expires_at)
    about = (deployment.id, instance.key, contract_id, digest)
    return Offer(*about, live=False, accepted_at=now, stale_at=now, expires_at=now + GRACE_SECONDS)


def _ended(
    connection: Connection, before: Offer | None, deployment: str, contract_id: str, digest: str
) -> set[str]:
    """Delete offers that a migration ended; the digests that the deployment no longer offers.

    They end when the first instance of their replacement is ready, not before.
    """
    gone = set() if before is None or before.digest == digest else {before.digest}
    for offer in store.read_offers(connection, deployment=deployment, contract_id=contract_id):
        if offer.digest != digest and store.is_superseded(connection, deployment, offer.digest):
            store.delete_offer(connection, offer)
            gone.add(offer.digest)
    return {old for old in gone if not store.is_offered(connection, deployment, contract_id, old)}


def _write_session(
    connection: Connection,
    deployment: Deployment,
    instance: Instance,
    contract_id: str,
    digest: str,
    now: float,
) -> None:
    known = store.read_session(connection, instance.key)
    holder = SessionHolder(deployment.kind.value)
    created_at = now if known is None else known.created_at
    store.write_session(
        connection,
        SessionRecord(
            *(instance.key, holder, deployment.id, contract_id, digest), created_at=created_at
        ),
    )


@dataclass(frozen=True, slots=True)
class Offers:
    """Reads offers, and updates them when connections and heartbeats come and go."""

    _revisions: RevisionStore

    async def all(
        self, deployment: str | None = None, contract_id: str | None = None
    ) -> Sequence[Offer]:
        """Every offer on record, including expired ones that were not dropped yet."""
        return await self._revisions.read(
            lambda c: store.read_offers(c, deployment=deployment, contract_id=contract_id)
        )

    async def heartbeat(self, key: str, contract_id: str, digest: str) -> bool:
        """Refresh an accepted offer of this digest; whether there is one."""

        def fits(offer: Offer) -> bool:
            return (offer.contract_id, offer.digest) == (contract_id, digest)

        return await self._hear(key, fits)

    async def connected(self, key: str, digest: str | None = None) -> bool:
        """Record that a session has connected; whether it offers anything."""
        return await self._hear(key, lambda offer: digest in (None, offer.digest))

    async def disconnected(self, key: str, digest: str | None = None) -> None:
        """Record that a connection ended; the grace window of its offers begins."""

        def work(connection: Connection, change: ChangeSet) -> None:
            for offer in store.read_offers(connection, instance=key):
                if offer.live and digest in (None, offer.digest):
                    store.write_offer(connection, mark_lost(offer, change.now))

        await self._revisions.change(work)

    async def expire(self, now: float) -> int:
        """Delete expired offers; how many there were."""
        if not await self._revisions.read(lambda c: store.read_offers(c, expired_by=now)):
            return 0

        def work(connection: Connection, change: ChangeSet) -> int:
            # Read again: a heartbeat may have come meanwhile.
            gone = store.read_offers(connection, expired_by=now)
            end_offers(connection, change, gone, "authority", "expired")
            return len(gone)

        return await self._revisions.change(work)

    async def _hear(self, key: str, fits: Callable[[Offer], bool]) -> bool:
        now = self._revisions.clock.now()

        def fitting(connection: Connection) -> list[Offer]:
            return [
                offer
                for offer in store.read_offers(connection, instance=key)
                if fits(offer) and offer_liveness(offer, now) is not Liveness.EXPIRED
            ]

        found = await self._revisions.read(fitting)
        # Skip the write if the offers were refreshed a moment ago.
        if all(
            offer.live and offer.expires_at > now + LEASE_SECONDS - HEARTBEAT_SECONDS / 2
            for offer in found
        ):
            return bool(found)

        def work(connection: Connection, _change: ChangeSet) -> bool:
            current = fitting(connection)
            for offer in current:
                store.write_offer(connection, mark_heard(offer, now))
            return bool(current)

        return await self._revisions.change(work)


def end_offers(
    connection: Connection,
    change: ChangeSet,
    gone: Iterable[Offer],
    by: str,
    how: Literal["withdrawn", "expired"] = "withdrawn",
) -> None:
    """Delete offers within a unit of work, and record digests that nobody offers any more."""
    ended = list(gone)
    for offer in ended:
        store.delete_offer(connection, offer)
    for deployment, contract_id, digest in sorted(
        {(offer.deployment, offer.contract_id, offer.digest) for offer in ended}
    ):
        if not store.is_offered(connection, deployment, contract_id, digest):
            change.tell(AuditEvent(how, by, deployment, contract_id, digest))
    if ended:
        change.touch()


_REQUIRED: Final = {
    Classification.UPDATE: Code.AUTHORITY_UPDATE_REQUIRED,
    Classification.MIGRATION: Code.AUTHORITY_MIGRATION_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Accepts the offers of instances that present a contract."""

    _revisions: RevisionStore
    _manifests: Manifests
    _catalog: CatalogCache
    _facts: FactReader
    _plans: Plans

    async def run(
        self,
        key: str,
        digest: str,
        manifest: bytes | None,
        requester: str,
        texts: str | None = None,
    ) -> Ready:
        """Accept the offer of an instance, whose proof the caller has verified.

        Raises AuthorityError with what it waits for, or why it may not run. `manifest_required` is
        raised, too, if `texts`, the `text_digest` of its manifest, differs from that of the stored
        one.
        """
        instance, deployment, session = await self._revisions.read(lambda c: _who(c, key))
        instance, deployment = check_runs(instance, deployment, session)
        contract = await self._manifests.present(manifest, digest)
        check_fits(deployment, contract)
        if manifest is None and texts not in (None, text_digest(contract)):
            raise AuthorityError(
                Code.MANIFEST_REQUIRED,
                "the stored display texts of this contract differ",
                where=digest,
                mend="present its manifest",
            )

        async def once() -> Ready | AuthorityError:
            gathered = await self._facts.gather(
                deployment.id, contract, digest, instance=instance.key
            )
            return await self._settle(gathered, instance, requester)

        result = await self._revisions.decide(once)
        if isinstance(result, AuthorityError):
            raise result
        if manifest is not None:
            await self._manifests.describe(manifest, instance.name)
        await self._catalog.current()
        return result

    async def _settle(
        self, gathered: GatheredFacts, instance: Instance, requester: str
    ) -> Ready | AuthorityError:
        proposal, facts = gathered.proposal, gathered.facts
        is_mutable = gathered.deployment.compatibility is Compatibility.MUTABLE_DEV
        is_over = gathered.is_superseded and facts.digest not in (*facts.running, facts.latest)
        if is_over and not is_mutable:
            raise _changed(facts.digest)
        refuse_blocked(proposal)
        plan: Plan | None = None
        if proposal.classification is not Classification.NONE:
            plan = self._plans.plan_of(gathered, requester)
            if proposal.accepted_by is not None:
                plan = dataclasses.replace(
                    plan,
                    state=PlanState.ACCEPTED,
                    decided_at=plan.created_at,
                    decided_by=proposal.accepted_by,
                )
            elif not proposal.is_optional:
                recorded = await self._plans.record(gathered, requester)
                return AuthorityError(
                    _REQUIRED[plan.classification],
                    f"not all that this contract asks for was accepted for {recorded.deployment}",
                    where=recorded.id,
                    mend=f"accept the plan {recorded.id}",
                )

        def work(connection: Connection, change: ChangeSet) -> Ready | AuthorityError | None:
            refusal = _refusal(connection, instance.key)
            if refusal is not None:
                return refusal
            deployment = self._adopt(connection, change, gathered, plan, instance)
            return admit_offer(connection, change, gathered, deployment, instance)

        ready = await self._revisions.change(work, holds=gathered.holds)
        return ready or await self._waiting(gathered.deployment.id)

    def _adopt(
        self,
        connection: Connection,
        change: ChangeSet,
        gathered: GatheredFacts,
        plan: Plan | None,
        instance: Instance,
    ) -> Deployment:
        """Make the presented digest the latest accepted one, by a plan if one is needed."""
        facts, deployment = gathered.facts, gathered.deployment
        if plan is not None and plan.state is PlanState.ACCEPTED:
            change.tell(presented_event(plan, facts.contract))
            return accept_in(connection, change, gathered, plan)
        if plan is not None:
            self._plans.record_in(connection, change, plan, facts.contract)
        desired = _replaced(deployment.desired, gathered.proposal.desired)
        if desired == deployment.desired:
            return deployment
        about = (deployment.id, facts.contract["id"], facts.digest, Classification.NONE)
        change.tell(
            AuditEvent("presented", instance.name, *about, manifest=facts.contract),
            AuditEvent("accepted", "compatible", *about, previous=facts.latest),
        )
        return desire_in(connection, change, deployment, desired, facts.manifests)

    async def _waiting(self, deployment: str) -> AuthorityError:
        made = await self._revisions.read(lambda c: store.read_materialized(c, deployment))
        if made is not None and made.status is MaterialState.FAILED:
            return AuthorityError(
                Code.RESOURCE_CONFLICT,
                f"the resources of {deployment} cannot be created: {made.why or 'no reason given'}",
                mend="remove what is in the way, or change what the contract asks for",
            )
        return AuthorityError(
            Code.AUTHORITY_RECONCILIATION_PENDING,
            f"the resources of {deployment} are still being created",
            mend="wait and ask again",
        )


def check_runs(
    instance: Instance | None, deployment: Deployment | None, session: SessionRecord | None
) -> tuple[Instance, Deployment]:
    """The instance and its deployment; `AuthorityError` if it may not run."""
    if instance is None or deployment is None:
        raise AuthorityError(
            Code.UNKNOWN_SESSION,
            "no instance has this session key",
            mend="add the key to a deployment with `accord authority instance add`",
        )
    if session is not None and session.revoked_at is not None:
        raise AuthorityError(
            Code.REVOKED, "this session key was revoked", mend="give the instance a new key"
        )
    if deployment.disabled or instance.disabled:
        which = deployment.id if deployment.disabled else f"the instance {instance.name}"
        raise AuthorityError(Code.DISABLED, f"{which} is disabled", mend="enable it")
    return instance, deployment


def _who(
    connection: Connection, key: str
) -> tuple[Instance | None, Deployment | None, SessionRecord | None]:
    instance = store.read_instance(connection, key)
    deployment = (
        None if instance is None else store.read_deployment(connection, instance.deployment)
    )
    return instance, deployment, store.read_session(connection, key)


def _refusal(connection: Connection, key: str) -> AuthorityError | None:
    """Why the instance may no longer run, if something changed in the meantime."""
    try:
        check_runs(*_who(connection, key))
    except AuthorityError as error:
        return error
    return None


def _replaced(desired: Desired, proposed: Desired) -> Desired:
    """The desired state after a compatible digest that asks for nothing new."""
    if desired.contracts == proposed.contracts:
        return desired
    return dataclasses.replace(desired, contracts=proposed.contracts, shapes=proposed.shapes)


def _changed(digest: str) -> AuthorityError:
    return AuthorityError(
        Code.CONTRACT_CHANGED,
        "an accepted migration has ended this contract",
        where=digest,
        mend="restart with the contract that was accepted",
    )
