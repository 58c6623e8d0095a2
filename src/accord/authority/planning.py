"""Plans: recorded when a contract asks for more than was accepted, decided by an operator.

Owns which contract fits which deployment, how many plans may wait, and when one is out of date.
Everything is decided by facts of one revision and written only if that is still the newest, so a
plan that could not be accepted changes nothing (section 14).
"""

import asyncio
import dataclasses
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from accord.authority.accepting import accept_in, asks, presented, told
from accord.authority.decisions import Proposal
from accord.authority.errors import AuthorityError, Code
from accord.authority.forms import legible, remark
from accord.authority.gathering import Gathered, Gathering
from accord.authority.ledger import Change, Ledger
from accord.authority.manifests import Manifest, Manifests, digest_of
from accord.authority.records import Classification, Deployment, Plan, PlanState
from accord.authority.stored import plans
from accord.kernel.ulid import UlidSource

MAX_PENDING: Final = 64
"""Plans of one deployment that may wait for a decision."""

PLATFORM: Final = "trellis."


class Planning:
    """Proposes, accepts and rejects.

    Args:
        ledger: The store.
        ids: Names plans.
        manifests: The known contracts.
        gathering: Reads facts and classifies.
    """

    def __init__(
        self, ledger: Ledger, ids: UlidSource, manifests: Manifests, gathering: Gathering
    ) -> None:
        self._ledger = ledger
        self._ids = ids
        self._manifests = manifests
        self._gathering = gathering

    async def propose(
        self,
        deployment: str,
        manifest: bytes,
        requester: str,
        shapes: Sequence[bytes] = (),
    ) -> Plan | None:
        """Record the plan that a contract needs on a deployment; None if it needs none.

        Raises:
            AuthorityError: The contract is not valid or not fit, or a blocker's code.
        """
        digest = await asyncio.to_thread(digest_of, manifest)
        contract = await self._manifests.present(manifest, digest)
        given: dict[str, str] = {}
        for shape in shapes:
            name = await asyncio.to_thread(digest_of, shape)
            given[(await self._manifests.present(shape, name))["id"]] = name

        async def once() -> Plan | None:
            gathered = await self._gathering.gather(deployment, contract, digest, shapes=given)
            check_fits(gathered.deployment, contract)
            refuse_blocked(gathered.proposal)
            if gathered.proposal.classification is Classification.NONE:
                return None
            return await self.record(gathered, requester)

        return await self._ledger.decide(once)

    async def record(self, gathered: Gathered, requester: str) -> Plan:
        """Record a pending plan, once for each requester and delta.

        Raises:
            AuthorityError: Too many plans wait.
            StaleError: Something changed meanwhile.
        """
        plan = self.plan_of(gathered, requester)

        def work(connection: Connection, change: Change) -> Plan | AuthorityError:
            return self.record_in(connection, change, plan, gathered.facts.contract)

        return await self._ledger.change(work, holds=gathered.holds)

    def plan_of(self, gathered: Gathered, requester: str) -> Plan:
        """The plan that a proposal needs, not recorded yet."""
        facts, proposal = gathered.facts, gathered.proposal
        return Plan(
            self._ids.new(),
            gathered.deployment.id,
            proposal.classification,
            PlanState.PENDING,
            remark(requester),
            facts.contract["id"],
            facts.digest,
            {**proposal.delta, "shapes": dict(facts.shapes), "instance": gathered.instance},
            gathered.deployment.version,
            self._ledger.clock.now(),
        )

    def record_in(
        self, connection: Connection, change: Change, plan: Plan, contract: Manifest
    ) -> Plan | AuthorityError:
        """Record a pending plan within a unit of work."""
        pending = plans.read_some(
            connection, deployment=plan.deployment, state=PlanState.PENDING, limit=MAX_PENDING
        )
        mine = [
            each
            for each in pending
            if (each.requester, each.contract_id) == (plan.requester, plan.contract_id)
        ]
        for each in mine:
            if each.digest == plan.digest and asks(each.delta) == asks(plan.delta):
                return each
        if len(pending) - len(mine) >= MAX_PENDING:
            return AuthorityError(
                Code.RATE_LIMITED,
                f"{MAX_PENDING} plans of {plan.deployment} wait for a decision",
                mend="accept or reject some of them",
            )
        for each in mine:
            plans.drop(connection, each.id)
        plans.write(connection, plan)
        change.tell(presented(plan, contract))
        return plan

    async def accept(self, plan_id: str, by: str) -> Plan:
        """Accept a plan: what is desired changes.

        Raises:
            AuthorityError: It is not pending, what it was made for has changed, or a blocker's
                code; nothing has changed, but that a plan which is out of date expires.
        """

        async def once() -> Plan:
            plan = await self.pending(plan_id)
            contract = await self._manifests.present(None, plan.digest)
            gathered = await self._gathering.gather(
                plan.deployment,
                contract,
                plan.digest,
                instance=plan.delta["instance"],
                shapes=plan.delta["shapes"],
            )
            proposal = gathered.proposal
            refuse_blocked(proposal)
            if proposal.classification is not plan.classification or (
                asks(proposal.delta) != asks(plan.delta)
            ):
                await self._expire(plan, gathered)
                raise AuthorityError(
                    Code.CONFLICT,
                    "what this plan was made for has changed",
                    where=plan_id,
                    mend="review the plan that is proposed next",
                )
            accepted = self._decided(plan, PlanState.ACCEPTED, by)

            def work(connection: Connection, change: Change) -> Plan | AuthorityError:
                if not _is_pending(connection, plan_id):
                    return not_pending(plan_id)
                accept_in(connection, change, gathered, accepted)
                return accepted

            return await self._ledger.change(work, holds=gathered.holds)

        return await self._ledger.decide(once)

    async def reject(self, plan_id: str, by: str, why: str) -> Plan:
        """Reject a plan.

        Raises:
            AuthorityError: It is not pending.
        """
        plan = await self.pending(plan_id)
        rejected = self._decided(plan, PlanState.REJECTED, by)

        def work(connection: Connection, change: Change) -> Plan | AuthorityError:
            if not _is_pending(connection, plan_id):
                return not_pending(plan_id)
            plans.write(connection, rejected)
            change.tell(told("rejected", rejected, by, why=why))
            return rejected

        return await self._ledger.change(work)

    async def forget(self, requester: str) -> None:
        """Remove the plans that wait for a requester."""

        def work(connection: Connection, change: Change) -> None:
            waiting = plans.read_some(
                connection, state=PlanState.PENDING, requester=remark(requester)
            )
            for plan in waiting:
                plans.drop(connection, plan.id)
                change.touch()

        await self._ledger.change(work)

    async def pending(self, plan_id: str) -> Plan:
        """A plan that waits for a decision.

        Raises:
            AuthorityError: There is none, or it was decided.
        """
        plan = await self._ledger.read(lambda c: plans.read(c, plan_id))
        if plan is None or plan.state is not PlanState.PENDING:
            raise not_pending(plan_id)
        return plan

    def _decided(self, plan: Plan, state: PlanState, by: str) -> Plan:
        now = self._ledger.clock.now()
        return dataclasses.replace(plan, state=state, decided_at=now, decided_by=remark(by))

    async def _expire(self, plan: Plan, gathered: Gathered) -> None:
        expired = self._decided(plan, PlanState.EXPIRED, "authority")

        def work(connection: Connection, change: Change) -> None:
            if _is_pending(connection, plan.id):
                plans.write(connection, expired)
                change.touch()

        await self._ledger.change(work, holds=gathered.holds)


def _is_pending(connection: Connection, plan_id: str) -> bool:
    plan = plans.read(connection, plan_id)
    return plan is not None and plan.state is PlanState.PENDING


def check_fits(deployment: Deployment, contract: Manifest) -> None:
    """Make sure that a contract is one that such a deployment may implement.

    Raises:
        AuthorityError: It is not.
    """
    if contract["id"].startswith(PLATFORM):
        raise AuthorityError(
            Code.FORBIDDEN, f"{contract['id']} is the platform's own", mend="use another id"
        )
    if contract["kind"] != deployment.kind.value:
        raise AuthorityError(
            Code.FORBIDDEN,
            f"the contract is of kind {contract['kind']}, {deployment.id} of {deployment.kind}",
            mend="deploy it where it belongs",
        )


def refuse_blocked(proposal: Proposal) -> None:
    """Raise the first blocker, with all of them as findings.

    Raises:
        AuthorityError: There is one.
    """
    if proposal.blockers:
        first = proposal.blockers[0]
        raise AuthorityError(
            first.code,
            first.finding.message,
            where=first.finding.pointer or None,
            findings=[blocker.finding for blocker in proposal.blockers],
        )


def not_pending(plan_id: str) -> AuthorityError:
    """The refusal of a plan that is not there, or not pending any more."""
    return AuthorityError(
        Code.NOT_FOUND,
        "no such plan waits for a decision",
        where=legible(plan_id[:80]),
        mend="list plans",
    )
