"""Bootstrap: an instance presents a contract and becomes ready, or learns what it waits for.

Defines the order of the checks (section 14). All changes are made in one transaction, and only if
the facts that they were decided by still hold.
"""

import dataclasses
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from accord.authority import store
from accord.authority.audit import AuditEvent
from accord.authority.catalog import CatalogCache
from accord.authority.facts import FactReader, GatheredFacts
from accord.authority.manifests import Manifests
from accord.authority.offers import Ready, admit_offer
from accord.authority.plans import (
    Plans,
    accept_in,
    check_fits,
    desire_in,
    presented_event,
    refuse_blocked,
)
from accord.authority.revisions import ChangeSet, RevisionStore
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import (
    Classification,
    Compatibility,
    Deployment,
    Desired,
    Instance,
    MaterialState,
    Plan,
    PlanState,
    SessionRecord,
)
from accord.contracts import text_digest

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
        """Accept the offer of an instance, which is in the catalog afterwards.

        Args:
            key: The session key; the caller has verified its proof.
            digest: The contract that it presents.
            manifest: Its manifest; None if it is expected to be known.
            requester: The connection that a plan is recorded for.
            texts: The `text_digest` of its manifest, if given; `manifest_required` is raised if
                it differs from that of the stored manifest.

        Raises:
            AuthorityError: What it waits for, or why it may not run.
        """
        instance, deployment, session = await self._revisions.read(lambda c: _who(c, key))
        instance, deployment = check_runs(instance, deployment, session)
        contract = await self._manifests.present(manifest, digest)
        check_fits(deployment, contract)
        if manifest is None and texts not in (None, text_digest(contract)):
            raise AuthorityError(
                Code.MANIFEST_REQUIRED,
                "other display texts of this contract are stored",
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
                f"the resources of {deployment} cannot be made: {made.why or 'no reason given'}",
                mend="remove what is in the way, or change what the contract asks for",
            )
        return AuthorityError(
            Code.AUTHORITY_RECONCILIATION_PENDING,
            f"the resources of {deployment} are still being made",
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
