"""Makes what is desired so: one deployment at a time, again and again.

Owns the order in which things happen: the whole set is judged before anything is made, everything
is made before it is recorded, and only what is recorded is shown to a runtime. An attempt that
fails takes back what it made itself, never what it found. Names are deterministic, so an attempt
that was killed is simply made again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

import structlog

from accord.authority.errors import AuthorityError, Code
from accord.authority.reconcile.desired import wanted
from accord.authority.reconcile.jetstream import JetStream, RefusedError
from accord.authority.reconcile.platform import EVENTS, PASSING, Keeping, platform
from accord.authority.reconcile.resources import ATTEMPT, Place, Resource
from accord.authority.reconcile.steps import Doing, Plan, Step, plan
from accord.authority.records import Deployment, Materialized, MaterialState
from accord.kernel.ulid import UlidSource

_log = structlog.stdlib.get_logger(__name__)

_ROUNDS: Final = 3


class Ledger(Protocol):
    """What reconciliation needs of the authority's records."""

    async def deployment(self, deployment: str) -> Deployment:
        """One deployment, as it is now."""
        ...

    async def materialized(self, deployment: str) -> Materialized | None:
        """What was made of a deployment the last time."""
        ...

    async def materialize(self, record: Materialized) -> bool:
        """Record what was made, unless what is desired has changed meanwhile."""
        ...

    async def contract(self, digest: str) -> Mapping[str, Any] | None:
        """A known manifest."""
        ...


class Reconciler:
    """Reconciles deployments with JetStream.

    Args:
        jetstream: Where things are made.
        ledger: What is desired, and where it is recorded.
        ids: Names attempts.
        keeping: How long shared streams keep things, and how often.
    """

    def __init__(
        self,
        jetstream: JetStream,
        ledger: Ledger,
        ids: UlidSource,
        *,
        keeping: Keeping | None = None,
    ) -> None:
        self._jetstream = jetstream
        self._ledger = ledger
        self._ids = ids
        self._keeping = keeping or Keeping()

    async def prepare(self) -> None:
        """Make, or set right, what every deployment shares.

        Raises:
            AuthorityError: Something is in the way, or JetStream does not answer.
        """
        shared = platform(self._keeping)
        for _ in range(_ROUNDS):
            judged = await self._judge(shared)
            if judged.conflicts:
                raise AuthorityError(
                    Code.RESOURCE_CONFLICT,
                    judged.conflicts[0].message,
                    mend="use an account of the NATS server that nothing else uses",
                    findings=judged.conflicts,
                )
            if await self._carry_out(judged, self._ids.new(), []):
                break
        for subject, keep in PASSING.items():
            asked = {"filter": subject, "keep": keep}
            await self._jetstream.ask(f"STREAM.PURGE.{EVENTS}", asked)

    async def reconcile(self, deployment_id: str) -> Materialized:
        """Make what one deployment desires, and record it.

        Returns:
            What is recorded now. Bindings that were recorded before stay while an attempt fails.

        Raises:
            AuthorityError: JetStream does not answer, or there is no such deployment; nothing is
                recorded.
        """
        attempt, made = self._ids.new(), list[Place]()
        try:
            for _ in range(_ROUNDS):
                record = await self._round(deployment_id, attempt, made)
                if record is not None:
                    break
            else:
                record = await self._failed(
                    await self._ledger.deployment(deployment_id),
                    await self._ledger.materialized(deployment_id),
                    "what is desired, or what is there, changes faster than it is made",
                )
        finally:
            # What is recorded stays; the rest was made for nothing.
            await self._take_back(deployment_id, attempt, made)
        return record

    async def _round(
        self, deployment_id: str, attempt: str, made: list[Place]
    ) -> Materialized | None:
        """Judge, make and record once; nothing if someone else changed something meanwhile."""
        deployment = await self._ledger.deployment(deployment_id)
        before = await self._ledger.materialized(deployment_id)
        needed = wanted(
            deployment,
            operating=await self._operating(deployment, before),
            replicas=self._keeping.replicas,
        )
        judged = await self._judge(needed.resources, let_go=_let_go(before, needed.resources))
        if judged.conflicts:
            why = "; ".join(finding.message for finding in judged.conflicts)
            return await self._failed(deployment, before, why)
        try:
            if not await self._carry_out(judged, attempt, made):
                return None
        except RefusedError as error:
            return await self._failed(deployment, before, str(error))
        record = Materialized(
            deployment.id,
            deployment.version,
            MaterialState.CURRENT,
            needed.bindings,
            needed.settings,
        )
        if record == before or await self._ledger.materialize(record):
            return record
        return None

    async def _operating(self, deployment: Deployment, before: Materialized | None) -> set[str]:
        """The contracts that declare operations; one that cannot be read keeps what it had."""
        bound = before.bindings if before else {}
        operating: set[str] = set()
        for contract, digest in deployment.desired.contracts.items():
            manifest = await self._ledger.contract(digest)
            if manifest is None:
                has_operations = contract in bound and bound[contract].operations is not None
            else:
                has_operations = bool(manifest.get("operations"))
            if has_operations:
                operating.add(contract)
        return operating

    async def _judge(self, resources: Sequence[Resource], let_go: Iterable[Place] = ()) -> Plan:
        gone = tuple(let_go)
        seen: dict[Place, Mapping[str, Any] | None] = {}
        captured: dict[Place, str] = {}
        for place in (*(resource.place for resource in resources), *gone):
            found = await self._jetstream.see(place)
            seen[place] = None if found is None else found["config"]
        for resource in resources:
            if seen[resource.place] is None and not resource.place.consumer:
                for subject in resource.config["subjects"]:
                    for other in await self._jetstream.captures(subject):
                        # It may have come to be itself, a moment after it was looked for.
                        if other != resource.place.stream:
                            captured[resource.place] = other
        return plan(resources, seen, let_go=gone, captured=captured)

    async def _carry_out(self, judged: Plan, attempt: str, made: list[Place]) -> bool:
        """Take every step; false if someone else made something first, which is to be judged."""
        is_alone = True
        for step in judged.steps:
            match step.doing:
                case Doing.CREATE:
                    is_alone &= await self._create(step, attempt, made)
                case Doing.UPDATE:
                    await self._jetstream.update(step.place, step.config)
                case Doing.DELETE:
                    await self._jetstream.delete(step.place)
            _log.info("reconciled", step=str(step))
        return is_alone

    async def _create(self, step: Step, attempt: str, made: list[Place]) -> bool:
        """Create it under the name of this attempt, which tells it from what another one made."""
        metadata = {**step.config["metadata"], ATTEMPT: attempt}
        # Whether the answer arrives or not, it may have been made.
        made.append(step.place)
        try:
            await self._jetstream.create(step.place, {**step.config, "metadata": metadata})
        except RefusedError as error:
            if not error.is_taken:
                raise
            return False
        return True

    async def _take_back(self, deployment: str, attempt: str, made: list[Place]) -> None:
        """Delete what this attempt made, is not recorded and not used; the rest, a retry adopts."""
        if not made:
            return
        try:
            recorded = await self._ledger.materialized(deployment)
            bound = _places(recorded)
            for place in reversed([place for place in made if place not in bound]):
                found = await self._jetstream.see(place)
                if found is not None and _made_by(attempt, found) and not _is_used(found):
                    await self._jetstream.delete(place)
        except AuthorityError as error:
            _log.warning("could not take back an attempt", deployment=deployment, why=str(error))

    async def _failed(
        self, deployment: Deployment, before: Materialized | None, why: str
    ) -> Materialized:
        bindings, settings = (before.bindings, before.settings) if before else ({}, {})
        record = Materialized(
            deployment.id, deployment.version, MaterialState.FAILED, bindings, settings, why
        )
        _log.warning("reconciliation failed", deployment=deployment.id, why=why)
        if record != before:
            await self._ledger.materialize(record)
        return record


def _made_by(attempt: str, found: Mapping[str, Any]) -> bool:
    return (found["config"].get("metadata") or {}).get(ATTEMPT) == attempt


def _is_used(found: Mapping[str, Any]) -> bool:
    """Whether a stream holds something, or a consumer has delivered something."""
    held = found.get("state", {}).get("messages", 0)
    return bool(held or found.get("delivered", {}).get("consumer_seq", 0))


def _let_go(before: Materialized | None, resources: Sequence[Resource]) -> set[Place]:
    """The consumers that were bound and are wanted no longer."""
    kept = {resource.place for resource in resources}
    return {place for place in _places(before) if place.consumer and place not in kept}


def _places(recorded: Materialized | None) -> set[Place]:
    """Where everything is that was recorded as bound."""
    places: set[Place] = set()
    for bound in recorded.bindings.values() if recorded else ():
        places |= {Place(f"KV_{name}") for name in bound.kv.values()}
        places |= {Place(f"OBJ_{name}") for name in bound.store.values()}
        places |= {Place(each.stream, each.consumer) for each in bound.consumers.values()}
        places |= {Place(each.stream, each.consumer) for each in bound.jobs.values()}
        keys = (each.key_bucket for each in bound.jobs.values())
        places |= {Place(f"KV_{name}") for name in (*keys, bound.operations) if name is not None}
    return places
