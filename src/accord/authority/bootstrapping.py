"""Bootstrap: an instance presents a contract and becomes ready, or hears what it waits for.

Owns the order of the checks (section 14). What it changes, it changes in one transaction, decided
by facts that are still the newest.
"""

import dataclasses
from typing import Final

from sqlalchemy import Connection

from accord.authority.accepting import accept_in, desire_in, presented
from accord.authority.admitting import Ready, admit
from accord.authority.errors import AuthorityError, Code
from accord.authority.gathering import Gathered, Gathering
from accord.authority.history import Act
from accord.authority.ledger import Change, Ledger
from accord.authority.manifests import Manifests
from accord.authority.planning import Planning, check_fits, refuse_blocked
from accord.authority.records import (
    Classification,
    Compatibility,
    Deployment,
    Desired,
    Instance,
    MaterialState,
    Plan,
    PlanState,
    Session,
)
from accord.authority.stored import deployments, sessions

_REQUIRED: Final = {
    Classification.UPDATE: Code.AUTHORITY_UPDATE_REQUIRED,
    Classification.MIGRATION: Code.AUTHORITY_MIGRATION_REQUIRED,
}


class Bootstrapping:
    """Lets instances become ready.

    Args:
        ledger: The store.
        manifests: The known contracts.
        gathering: Reads facts and classifies.
        planning: Records plans.
    """

    def __init__(
        self, ledger: Ledger, manifests: Manifests, gathering: Gathering, planning: Planning
    ) -> None:
        self._ledger = ledger
        self._manifests = manifests
        self._gathering = gathering
        self._planning = planning

    async def bootstrap(
        self, key: str, digest: str, manifest: bytes | None, requester: str
    ) -> Ready:
        """See `Authority.bootstrap`."""
        instance, deployment, session = await self._ledger.read(lambda c: _who(c, key))
        instance, deployment = check_runs(instance, deployment, session)
        contract = await self._manifests.present(manifest, digest)
        check_fits(deployment, contract)

        async def once() -> Ready | AuthorityError:
            gathered = await self._gathering.gather(
                deployment.id, contract, digest, instance=instance.key
            )
            return await self._settle(gathered, instance, requester)

        result = await self._ledger.decide(once)
        if isinstance(result, AuthorityError):
            raise result
        return result

    async def _settle(
        self, gathered: Gathered, instance: Instance, requester: str
    ) -> Ready | AuthorityError:
        proposal, facts = gathered.proposal, gathered.facts
        is_mutable = gathered.deployment.compatibility is Compatibility.MUTABLE_DEV
        is_over = gathered.is_superseded and facts.digest not in (*facts.running, facts.latest)
        if is_over and not is_mutable:
            raise _changed(facts.digest)
        refuse_blocked(proposal)
        plan: Plan | None = None
        if proposal.classification is not Classification.NONE:
            plan = self._planning.plan_of(gathered, requester)
            if is_mutable:
                plan = dataclasses.replace(
                    plan,
                    state=PlanState.ACCEPTED,
                    decided_at=plan.created_at,
                    decided_by=Compatibility.MUTABLE_DEV.value,
                )
            elif not proposal.is_optional:
                recorded = await self._planning.record(gathered, requester)
                return AuthorityError(
                    _REQUIRED[plan.classification],
                    f"not all that this contract asks for was accepted for {recorded.deployment}",
                    where=recorded.id,
                    mend=f"accept the plan {recorded.id}",
                )

        def work(connection: Connection, change: Change) -> Ready | AuthorityError | None:
            refusal = _refusal(connection, instance.key)
            if refusal is not None:
                return refusal
            deployment = self._adopt(connection, change, gathered, plan, instance)
            return admit(connection, change, gathered, deployment, instance)

        ready = await self._ledger.change(work, holds=gathered.holds)
        return ready or await self._waiting(gathered.deployment.id)

    def _adopt(
        self,
        connection: Connection,
        change: Change,
        gathered: Gathered,
        plan: Plan | None,
        instance: Instance,
    ) -> Deployment:
        """Make the presented digest the latest accepted one, by a plan where one is needed."""
        facts, deployment = gathered.facts, gathered.deployment
        if plan is not None and plan.state is PlanState.ACCEPTED:
            change.tell(presented(plan, facts.contract))
            return accept_in(connection, change, gathered, plan)
        if plan is not None:
            self._planning.record_in(connection, change, plan, facts.contract)
        desired = _replaced(deployment.desired, gathered.proposal.desired)
        if desired == deployment.desired:
            return deployment
        about = (deployment.id, facts.contract["id"], facts.digest, Classification.NONE)
        change.tell(
            Act("presented", instance.name, *about, manifest=facts.contract),
            Act("accepted", "compatible", *about, previous=facts.latest),
        )
        return desire_in(connection, change, deployment, desired, facts.manifests)

    async def _waiting(self, deployment: str) -> AuthorityError:
        made = await self._ledger.read(lambda c: deployments.read_materialized(c, deployment))
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
    instance: Instance | None, deployment: Deployment | None, session: Session | None
) -> tuple[Instance, Deployment]:
    """Make sure that a key is an instance that may run.

    Raises:
        AuthorityError: It is not.
    """
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
) -> tuple[Instance | None, Deployment | None, Session | None]:
    instance = deployments.read_instance(connection, key)
    deployment = None if instance is None else deployments.read(connection, instance.deployment)
    return instance, deployment, sessions.read(connection, key)


def _refusal(connection: Connection, key: str) -> AuthorityError | None:
    """Why the instance may not run any more, if something changed meanwhile."""
    try:
        check_runs(*_who(connection, key))
    except AuthorityError as error:
        return error
    return None


def _replaced(desired: Desired, proposed: Desired) -> Desired:
    """What is desired when a compatible digest takes the place of another, and asks for nothing."""
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
