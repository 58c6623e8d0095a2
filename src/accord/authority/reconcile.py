"""Reconciliation of deployments with JetStream: changes at once, and all of them periodically.

The whole set is checked before anything is made, and only recorded resources are shown to a
runtime. A failed attempt deletes what it made itself, never what it found. Names are deterministic,
so an attempt that was killed is repeated. A deployment that fails delays no other.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import nats.errors
import orjson
import structlog
from nats.aio.client import Client

from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import Deployment, Materialized, MaterialState
from accord.authority.rules.resources import (
    ATTEMPT,
    EVENTS,
    TRANSIENT_SUBJECTS,
    ReconcilePlan,
    ReconcileStep,
    Resource,
    ResourceRef,
    StepAction,
    StreamRetention,
    desired_resources,
    plan_steps,
    platform_resources,
)
from accord.authority.service import Authority
from accord.kernel.errors import AccordError
from accord.kernel.identifiers import UlidSource

_log = structlog.stdlib.get_logger(__name__)

_API: Final = "$JS.API"
_NOT_FOUND: Final = frozenset({10014, 10059})
_TAKEN: Final = frozenset({10058, 10148, 10013})


class JetStreamError(AuthorityError):
    """JetStream refused a request; `number` is its error code."""

    def __init__(self, number: int, description: str, *, where: str) -> None:
        super().__init__(Code.RESOURCE_CONFLICT, f"JetStream refuses: {description}", where=where)
        self.number = number

    @property
    def is_taken(self) -> bool:
        """Whether something of that name was created in the meantime."""
        return self.number in _TAKEN


class JetStream:
    """Streams and consumers of one account; `seconds` is the timeout of a request."""

    def __init__(self, connection: Client, *, seconds: float = 5.0) -> None:
        self._connection = connection
        self._seconds = seconds

    async def info(self, place: ResourceRef) -> dict[str, Any] | None:
        """The `config` and state of a stream or consumer; None if it does not exist."""
        try:
            return await self.ask(f"{_kind(place)}.INFO.{_path(place)}")
        except JetStreamError as error:
            if error.number in _NOT_FOUND:
                return None
            raise

    async def captures(self, subject: str) -> list[str]:
        """The streams that capture a subject."""
        answer = await self.ask("STREAM.NAMES", {"subject": subject})
        return list(answer.get("streams") or ())

    async def create(self, place: ResourceRef, config: Mapping[str, Any]) -> None:
        """Create a stream or consumer; `JetStreamError.is_taken` if the name is in use."""
        await self._write("CREATE", "create", place, config)

    async def update(self, place: ResourceRef, config: Mapping[str, Any]) -> None:
        """Change a stream or consumer."""
        await self._write("UPDATE", "update", place, config)

    async def delete(self, place: ResourceRef) -> None:
        """Delete a stream or consumer, if it exists."""
        try:
            await self.ask(f"{_kind(place)}.DELETE.{_path(place)}")
        except JetStreamError as error:
            if error.number not in _NOT_FOUND:
                raise

    async def ask(self, subject: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send one request of the management interface; `JetStreamError` if the server refuses."""
        body = b"" if payload is None else orjson.dumps(payload)
        try:
            reply = await self._connection.request(f"{_API}.{subject}", body, timeout=self._seconds)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise AuthorityError(
                Code.UNAVAILABLE,
                f"JetStream does not answer: {str(error) or type(error).__name__}",
                mend="see that the NATS server runs, with JetStream",
            ) from error
        answer = _read(reply.data, subject)
        if refused := answer.get("error"):
            number, description = refused.get("err_code", 0), refused.get("description", "")
            raise JetStreamError(number, description, where=subject)
        return answer

    async def _write(
        self, verb: str, action: str, place: ResourceRef, config: Mapping[str, Any]
    ) -> None:
        if place.consumer:
            await self.ask(
                f"CONSUMER.CREATE.{_path(place)}",
                {"stream_name": place.stream, "config": config, "action": action},
            )
        else:
            await self.ask(f"STREAM.{verb}.{_path(place)}", config)


def _kind(place: ResourceRef) -> str:
    return "CONSUMER" if place.consumer else "STREAM"


def _path(place: ResourceRef) -> str:
    return f"{place.stream}.{place.consumer}" if place.consumer else place.stream


def _read(data: bytes, subject: str) -> dict[str, Any]:
    try:
        answer = orjson.loads(data)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise AuthorityError(Code.UNAVAILABLE, "JetStream's answer is not JSON", where=subject)
    return answer


_MAX_ROUNDS: Final = 3


class Reconciler:
    """Reconciles deployments with JetStream."""

    def __init__(
        self,
        jetstream: JetStream,
        authority: Authority,
        ids: UlidSource,
        *,
        retention: StreamRetention | None = None,
    ) -> None:
        self._jetstream = jetstream
        self._authority = authority
        self._ids = ids
        self._retention = retention or StreamRetention()

    async def prepare(self) -> None:
        """Create or update the streams that every deployment shares."""
        shared = platform_resources(self._retention)
        for _ in range(_MAX_ROUNDS):
            plan = await self._plan(shared)
            if plan.conflicts:
                raise AuthorityError(
                    Code.RESOURCE_CONFLICT,
                    plan.conflicts[0].message,
                    mend="use an account of the NATS server that nothing else uses",
                    findings=plan.conflicts,
                )
            try:
                if await self._apply(plan, self._ids.new(), []):
                    break
            except JetStreamError as error:
                raise AuthorityError(
                    Code.RESOURCE_CONFLICT,
                    error.what,
                    where=error.where,
                    mend="give JetStream more room, or set less of it: `events_megabytes`, "
                    "`jobs_megabytes` and `work_megabytes` in [authority]",
                ) from error
        for subject, keep in TRANSIENT_SUBJECTS.items():
            asked = {"filter": subject, "keep": keep}
            await self._jetstream.ask(f"STREAM.PURGE.{EVENTS}", asked)

    async def reconcile(self, deployment_id: str) -> Materialized:
        """Make the resources of one deployment; the record of them.

        Bindings that were recorded before stay if an attempt fails. If JetStream does not answer,
        AuthorityError is raised and nothing is recorded.
        """
        attempt, made = self._ids.new(), list[ResourceRef]()
        try:
            for _ in range(_MAX_ROUNDS):
                record = await self._round(deployment_id, attempt, made)
                if record is not None:
                    break
            else:
                record = await self._failed(
                    await self._authority.deployments.get(deployment_id),
                    await self._authority.deployments.materialized(deployment_id),
                    "the desired state or the resources change faster than they can be reconciled",
                )
        finally:
            # Delete what was made and not recorded.
            await self._clean_up(deployment_id, attempt, made)
        return record

    async def _round(
        self, deployment_id: str, attempt: str, made: list[ResourceRef]
    ) -> Materialized | None:
        """Check, make and record once; None if something changed in the meantime."""
        deployment = await self._authority.deployments.get(deployment_id)
        before = await self._authority.deployments.materialized(deployment_id)
        needed = desired_resources(
            deployment,
            operating=await self._with_operations(deployment, before),
            replicas=self._retention.replicas,
        )
        plan = await self._plan(needed.resources, released=_released(before, needed.resources))
        if plan.conflicts:
            why = "; ".join(finding.message for finding in plan.conflicts)
            return await self._failed(deployment, before, why)
        try:
            if not await self._apply(plan, attempt, made):
                return None
        except JetStreamError as error:
            return await self._failed(deployment, before, str(error))
        record = Materialized(
            deployment.id,
            deployment.version,
            MaterialState.CURRENT,
            needed.bindings,
            needed.settings,
        )
        if record == before or await self._authority.deployments.materialize(record):
            return record
        return None

    async def _with_operations(
        self, deployment: Deployment, before: Materialized | None
    ) -> set[str]:
        """The contracts that declare operations; an unreadable one keeps what it had."""
        bound = before.bindings if before else {}
        operating: set[str] = set()
        for contract, digest in deployment.desired.contracts.items():
            manifest = await self._authority.manifests.get(digest)
            if manifest is None:
                has_operations = contract in bound and bound[contract].operations is not None
            else:
                has_operations = bool(manifest.get("operations"))
            if has_operations:
                operating.add(contract)
        return operating

    async def _plan(
        self, resources: Sequence[Resource], released: Iterable[ResourceRef] = ()
    ) -> ReconcilePlan:
        gone = tuple(released)
        seen: dict[ResourceRef, Mapping[str, Any] | None] = {}
        captured: dict[ResourceRef, str] = {}
        for place in (*(resource.place for resource in resources), *gone):
            found = await self._jetstream.info(place)
            seen[place] = None if found is None else found["config"]
        for resource in resources:
            if seen[resource.place] is None and not resource.place.consumer:
                for subject in resource.config["subjects"]:
                    for other in await self._jetstream.captures(subject):
                        # The stream itself may have been created since it was looked for.
                        if other != resource.place.stream:
                            captured[resource.place] = other
        return plan_steps(resources, seen, released=gone, captured=captured)

    async def _apply(self, plan: ReconcilePlan, attempt: str, made: list[ResourceRef]) -> bool:
        """Take every step; False if somebody else made something first."""
        is_alone = True
        for step in plan.steps:
            match step.action:
                case StepAction.CREATE:
                    is_alone &= await self._create(step, attempt, made)
                case StepAction.UPDATE:
                    await self._jetstream.update(step.place, step.config)
                case StepAction.DELETE:
                    await self._jetstream.delete(step.place)
            _log.info("reconciled", step=str(step))
        return is_alone

    async def _create(self, step: ReconcileStep, attempt: str, made: list[ResourceRef]) -> bool:
        """Create it marked with this attempt, to tell it from what another one made."""
        metadata = {**step.config["metadata"], ATTEMPT: attempt}
        # It may be created even if the answer is lost.
        made.append(step.place)
        try:
            await self._jetstream.create(step.place, {**step.config, "metadata": metadata})
        except JetStreamError as error:
            if not error.is_taken:
                raise
            return False
        return True

    async def _clean_up(self, deployment: str, attempt: str, made: list[ResourceRef]) -> None:
        """Delete what this attempt made if it is neither recorded nor used."""
        if not made:
            return
        try:
            recorded = await self._authority.deployments.materialized(deployment)
            bound = _bound_resources(recorded)
            for place in reversed([place for place in made if place not in bound]):
                found = await self._jetstream.info(place)
                if found is not None and _made_by(attempt, found) and not _is_used(found):
                    await self._jetstream.delete(place)
        except AuthorityError as error:
            _log.warning(
                "could not delete the resources of a failed attempt",
                deployment=deployment,
                why=str(error),
            )

    async def _failed(
        self, deployment: Deployment, before: Materialized | None, why: str
    ) -> Materialized:
        bindings, settings = (before.bindings, before.settings) if before else ({}, {})
        record = Materialized(
            deployment.id, deployment.version, MaterialState.FAILED, bindings, settings, why
        )
        _log.warning("reconciliation failed", deployment=deployment.id, why=why)
        if record != before:
            await self._authority.deployments.materialize(record)
        return record


def _made_by(attempt: str, found: Mapping[str, Any]) -> bool:
    return (found["config"].get("metadata") or {}).get(ATTEMPT) == attempt


def _is_used(found: Mapping[str, Any]) -> bool:
    held = found.get("state", {}).get("messages", 0)
    return bool(held or found.get("delivered", {}).get("consumer_seq", 0))


def _released(before: Materialized | None, resources: Sequence[Resource]) -> set[ResourceRef]:
    """The consumers that were bound and are no longer wanted."""
    kept = {resource.place for resource in resources}
    return {place for place in _bound_resources(before) if place.consumer and place not in kept}


def _bound_resources(recorded: Materialized | None) -> set[ResourceRef]:
    places: set[ResourceRef] = set()
    for bound in recorded.bindings.values() if recorded else ():
        places |= {ResourceRef(f"KV_{name}") for name in bound.kv.values()}
        places |= {ResourceRef(f"OBJ_{name}") for name in bound.store.values()}
        places |= {ResourceRef(each.stream, each.consumer) for each in bound.consumers.values()}
        places |= {ResourceRef(each.stream, each.consumer) for each in bound.jobs.values()}
        keys = (each.key_bucket for each in bound.jobs.values())
        places |= {
            ResourceRef(f"KV_{name}") for name in (*keys, bound.operations) if name is not None
        }
    return places


REPAIR_SECONDS: Final = 30.0
"""How long something that was changed on the server behind our back stays so."""

_RETRY_SECONDS: Final = 2.0


class RepairLoop:
    """Reconciles what changed at once, and everything every `seconds`."""

    def __init__(
        self, reconciler: Reconciler, authority: Authority, *, seconds: float = REPAIR_SECONDS
    ) -> None:
        self._reconciler = reconciler
        self._authority = authority
        self._seconds = seconds
        self._failed: dict[str, int] = {}

    async def run(self) -> None:
        """Reconcile until cancelled."""
        is_due = True
        while True:
            count = self._authority.changes.count
            is_done = await self.look(everything=is_due)
            is_due = is_due and not is_done
            try:
                async with asyncio.timeout(self._seconds if is_done else _RETRY_SECONDS):
                    await self._authority.changes.after(count)
            except TimeoutError:
                is_due = True

    async def look(self, *, everything: bool) -> bool:
        """Reconcile what changed, or everything; whether server and store answered throughout."""
        try:
            if everything:
                await self._reconciler.prepare()
            for deployment in await self._due(everything=everything):
                await self._reconcile(deployment)
        except AccordError as error:
            _log.warning("reconciliation stopped", why=str(error))
            return False
        return True

    async def _reconcile(self, deployment: Deployment) -> None:
        try:
            record = await self._reconciler.reconcile(deployment.id)
        except AuthorityError as error:
            if error.code is Code.UNAVAILABLE:
                raise
            _log.warning("not reconciled", deployment=deployment.id, why=str(error))
            return
        if record.status is MaterialState.FAILED:
            self._failed[deployment.id] = record.version
        else:
            self._failed.pop(deployment.id, None)

    async def _due(self, *, everything: bool) -> Sequence[Deployment]:
        if everything:
            return await self._authority.deployments.all()
        changed = [
            await self._authority.deployments.get(each)
            for each in await self._authority.deployments.unreconciled()
        ]
        return [each for each in changed if self._failed.get(each.id) != each.version]
