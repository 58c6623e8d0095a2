"""Resources on JetStream: names, configurations, what a deployment desires, and the steps to it.

Names follow from deployment, contract id, kind and alias alone, so that a retry adopts what it
finds and an update keeps its data. With one conflict there are no steps at all: what belongs to
somebody else, or could only be changed by deleting data, is a conflict.
"""

import base64
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from accord.authority.rules.records import Deployment
from accord.contracts.manifest import BACKOFF_MS
from accord.contracts.permissions import Bindings, ConsumerBinding, QueueBinding
from accord.kernel import canonical
from accord.kernel.errors import Finding

_NAME_LENGTH: Final = 26  # 130 bits in base32


class NamePrefix(StrEnum):
    """The kind of a resource, as its name begins."""

    KV = "acc_kv"
    STORE = "acc_obj"
    CONSUMER = "acc_ev"
    NAMESPACE = "acc_ns"
    QUEUE = "acc_q"
    KEYS = "acc_key"
    OPERATIONS = "acc_op"


def physical_name(prefix: NamePrefix, deployment: str, contract: str, alias: str = "") -> str:
    """The name of a resource; it never changes."""
    identity = canonical.encode([prefix.value, deployment, contract, alias])
    hashed = base64.b32encode(hashlib.sha256(identity).digest()).decode("ascii").lower()
    return f"{prefix}_{hashed[:_NAME_LENGTH]}"


OWNER: Final = "accord.owner"
"""The member of a resource's metadata that says whose it is."""

ATTEMPT: Final = "accord.attempt"
"""The member of a resource's metadata that says which attempt created it."""

PLATFORM_OWNER: Final = "platform"
"""The owner of what every deployment shares."""

_MILLISECOND: Final = 1_000_000
_SHORTEST_AGE_MS: Final = 100  # what the server takes
_DUPLICATES_MS: Final = 120_000
# The server counts headers (compare-and-set, message ids) as part of a message.
_HEADER_BYTES: Final = 1024


class ResourceRef(NamedTuple):
    """A stream, or a consumer on one."""

    stream: str
    consumer: str = ""

    def __str__(self) -> str:
        return f"the consumer {self.consumer} of {self.stream}" if self.consumer else self.stream


@dataclass(frozen=True, slots=True)
class Resource:
    """The desired configuration of a stream or consumer; `owner` is stored in its metadata."""

    place: ResourceRef
    owner: str
    config: Mapping[str, Any]


def define_stream(
    name: str,
    owner: str,
    subjects: Sequence[str],
    *,
    max_age_ms: int = 0,
    replicas: int = 1,
    **more: Any,
) -> Resource:
    """A stream on disk, without limits by default."""
    age = max(max_age_ms, _SHORTEST_AGE_MS) if max_age_ms else 0
    config = {
        "name": name,
        "subjects": list(subjects),
        "storage": "file",
        "retention": "limits",
        "discard": "old",
        "max_age": age * _MILLISECOND,
        "max_bytes": -1,
        "max_msgs": -1,
        "max_msg_size": -1,
        "max_msgs_per_subject": -1,
        "duplicate_window": min(age or _DUPLICATES_MS, _DUPLICATES_MS) * _MILLISECOND,
        "num_replicas": replicas,
        "sealed": False,
        **more,
    }
    return Resource(ResourceRef(name), owner, config)


def define_bucket(
    name: str,
    owner: str,
    *,
    history: int = 1,
    ttl_ms: int = 0,
    max_value_bytes: int | None = None,
    max_bytes: int | None = None,
    replicas: int = 1,
) -> Resource:
    """A key-value bucket as NATS clients expect it."""
    return define_stream(
        f"KV_{name}",
        owner,
        [f"$KV.{name}.>"],
        max_age_ms=ttl_ms,
        replicas=replicas,
        discard="new",
        max_bytes=-1 if max_bytes is None else max_bytes,
        max_msgs_per_subject=history,
        max_msg_size=-1 if max_value_bytes is None else max_value_bytes + _HEADER_BYTES,
        allow_rollup_hdrs=True,
        allow_direct=True,
        deny_delete=True,
    )


def define_object_store(
    name: str, owner: str, *, ttl_ms: int = 0, max_bytes: int | None = None, replicas: int = 1
) -> Resource:
    """An object store as NATS clients expect it."""
    return define_stream(
        f"OBJ_{name}",
        owner,
        [f"$O.{name}.C.>", f"$O.{name}.M.>"],
        max_age_ms=ttl_ms,
        replicas=replicas,
        discard="new",
        max_bytes=-1 if max_bytes is None else max_bytes,
        allow_rollup_hdrs=True,
        allow_direct=True,
    )


def define_consumer(
    place: ResourceRef,
    owner: str,
    filters: Sequence[str],
    *,
    deliver: str,
    ack_wait_ms: int,
    max_deliver: int,
    max_pending: int,
) -> Resource:
    """A durable pull consumer whose messages are acknowledged one by one.

    It has no server-side backoff, whose first pause would replace the time to acknowledge; handlers
    put a message back with a delay.
    """
    config = {
        "name": place.consumer,
        "durable_name": place.consumer,
        "deliver_policy": deliver,
        "ack_policy": "explicit",
        "replay_policy": "instant",
        "ack_wait": ack_wait_ms * _MILLISECOND,
        "max_deliver": max_deliver,
        "max_ack_pending": max_pending,
        "filter_subjects": sorted(filters),
        "filter_subject": "",
        "deliver_subject": "",
    }
    return Resource(place, owner, config)


EVENTS: Final = "trellis"
JOBS: Final = "JOBS"
JOBS_WORK: Final = "JOBS_WORK"
JOBS_ADVISORIES: Final = "JOBS_ADVISORIES"
STATE_BUCKET: Final = "acc_state"

TRANSIENT_SUBJECTS: Final[Mapping[str, int]] = {"events.v1.Health.Heartbeat": 10_000}
"""Events that soon lose their meaning, by subject: how many are kept."""

_DAY_MS: Final = 24 * 60 * 60 * 1000
_ADVISORY_MEGABYTES: Final = 32
_ADVISORY: Final = "$JS.EVENT.ADVISORY.CONSUMER"


_MEGABYTE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class StreamRetention:
    """How long and how much the shared streams keep, and how many copies.

    The oldest events and job history are deleted first. Waiting jobs and state are never deleted: a
    full stream refuses more. A limit of 0 is none.
    """

    events_days: float = 90
    events_megabytes: int = 512
    jobs_days: float = 90
    jobs_megabytes: int = 256
    work_megabytes: int = 256
    state_megabytes: int = 0
    replicas: int = 1


def platform_resources(retention: StreamRetention) -> tuple[Resource, ...]:
    """The shared streams, section 7 of the notes on the fabric."""
    copies = retention.replicas
    return (
        define_stream(
            EVENTS,
            PLATFORM_OWNER,
            ["events.>"],
            max_age_ms=_ms(retention.events_days),
            replicas=copies,
            allow_direct=True,
            max_bytes=_bytes(retention.events_megabytes),
        ),
        define_stream(
            JOBS,
            PLATFORM_OWNER,
            ["trellis.jobs.>"],
            max_age_ms=_ms(retention.jobs_days),
            replicas=copies,
            allow_direct=True,
            max_bytes=_bytes(retention.jobs_megabytes),
        ),
        define_stream(
            JOBS_WORK,
            PLATFORM_OWNER,
            ["trellis.work.>"],
            replicas=copies,
            retention="workqueue",
            discard="new",
            max_bytes=_bytes(retention.work_megabytes),
        ),
        define_stream(
            JOBS_ADVISORIES,
            PLATFORM_OWNER,
            [
                f"{_ADVISORY}.MAX_DELIVERIES.{JOBS_WORK}.>",
                f"{_ADVISORY}.MSG_TERMINATED.{JOBS_WORK}.>",
            ],
            max_age_ms=7 * _DAY_MS,
            replicas=copies,
            max_bytes=_ADVISORY_MEGABYTES * _MEGABYTE,
        ),
        define_bucket(
            STATE_BUCKET,
            PLATFORM_OWNER,
            max_bytes=retention.state_megabytes * _MEGABYTE or None,
            replicas=copies,
        ),
    )


def _ms(days: float) -> int:
    return round(days * _DAY_MS)


def _bytes(megabytes: int) -> int:
    return megabytes * _MEGABYTE or -1


_EVENT_DELIVERIES: Final = 6
_EVENT_ACK_WAIT_MS: Final = 300_000
_HEARTBEAT_MS: Final = 10_000
_MISSED_HEARTBEATS: Final = 3

Descriptor = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DesiredResources:
    """The resources of a deployment, their bindings, and their settings for the runtime."""

    resources: tuple[Resource, ...]
    bindings: Mapping[str, Bindings]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Scope:
    """One contract in one deployment."""

    deployment: str
    contract: str
    replicas: int
    has_operations: bool

    def name(self, prefix: NamePrefix, alias: str = "") -> str:
        return physical_name(prefix, self.deployment, self.contract, alias)

    def owner(self, kind: str, alias: str = "") -> str:
        return " ".join((self.deployment, self.contract, kind, alias)).rstrip()

    def bucket(self, prefix: NamePrefix, kind: str, alias: str, **limits: Any) -> Resource:
        owner = self.owner(kind, alias)
        return define_bucket(self.name(prefix, alias), owner, replicas=self.replicas, **limits)


def desired_resources(
    deployment: Deployment, *, operating: Collection[str] = (), replicas: int = 1
) -> DesiredResources:
    """What a deployment needs; `operating` are its contracts that declare operations."""
    declared: dict[str, dict[str, dict[str, Descriptor]]] = {}
    for (kind, contract, alias), descriptor in sorted(deployment.desired.resources.items()):
        declared.setdefault(contract, {}).setdefault(kind, {})[alias] = descriptor
    resources: list[Resource] = []
    bindings: dict[str, Bindings] = {}
    settings: dict[str, Any] = {}
    for contract in sorted({*declared, *operating}):
        kinds = declared.get(contract, {})
        scope = _Scope(deployment.id, contract, replicas, contract in operating)
        resources += _resources(scope, kinds)
        bindings[contract] = _bindings(scope, kinds)
        settings[contract] = _settings(scope, kinds)
    return DesiredResources(tuple(resources), bindings, settings)


Kinds = Mapping[str, Mapping[str, Descriptor]]
"""Descriptors by kind and alias."""


def _entries(kinds: Kinds, kind: str) -> Iterator[tuple[str, Descriptor]]:
    yield from kinds.get(kind, {}).items()


def _resources(scope: _Scope, kinds: Kinds) -> Iterator[Resource]:
    for alias, it in _entries(kinds, "kv"):
        yield scope.bucket(
            *(NamePrefix.KV, "kv", alias),
            history=it["history"],
            ttl_ms=it["ttlMs"],
            max_value_bytes=it.get("maxValueBytes"),
        )
    for alias, it in _entries(kinds, "store"):
        yield define_object_store(
            scope.name(NamePrefix.STORE, alias),
            scope.owner("store", alias),
            ttl_ms=it["ttlMs"],
            max_bytes=it.get("maxTotalBytes"),
            replicas=scope.replicas,
        )
    for alias, it in _entries(kinds, "consumer"):
        delivery = _event_delivery(it)
        yield define_consumer(
            ResourceRef(EVENTS, scope.name(NamePrefix.CONSUMER, alias)),
            scope.owner("consumer", alias),
            it["filters"],
            deliver=delivery["replay"],
            ack_wait_ms=delivery["ackWaitMs"],
            max_deliver=delivery["maxDeliver"],
            # Strict order: one message at a time, also while it waits to be retried.
            max_pending=delivery["concurrency"],
        )
    for alias, it in _entries(kinds, "job"):
        yield define_consumer(
            ResourceRef(JOBS_WORK, scope.name(NamePrefix.QUEUE, alias)),
            scope.owner("job", alias),
            [_work_subject(scope, alias)],
            deliver="all",
            ack_wait_ms=it["ackWaitMs"],
            # Workers count tries: waiting for other jobs of the same key is not one.
            max_deliver=-1,
            max_pending=-1,
        )
        if "keyConcurrency" in it:
            yield scope.bucket(NamePrefix.KEYS, "keys", alias)
    if scope.has_operations:
        yield scope.bucket(NamePrefix.OPERATIONS, "operations", "")


def _bindings(scope: _Scope, kinds: Kinds) -> Bindings:
    return Bindings(
        kv={alias: scope.name(NamePrefix.KV, alias) for alias, _ in _entries(kinds, "kv")},
        store={alias: scope.name(NamePrefix.STORE, alias) for alias, _ in _entries(kinds, "store")},
        consumers={
            alias: ConsumerBinding(EVENTS, scope.name(NamePrefix.CONSUMER, alias))
            for alias, _ in _entries(kinds, "consumer")
        },
        jobs={alias: _queue(scope, alias, it) for alias, it in _entries(kinds, "job")},
        operations=scope.name(NamePrefix.OPERATIONS) if scope.has_operations else None,
    )


def _settings(scope: _Scope, kinds: Kinds) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "kv": {
            alias: {
                "bucket": scope.name(NamePrefix.KV, alias),
                **_chosen(it, "history", "ttlMs", "maxValueBytes"),
            }
            for alias, it in _entries(kinds, "kv")
        },
        "store": {
            alias: {
                "name": scope.name(NamePrefix.STORE, alias),
                **_chosen(it, "ttlMs", "maxTotalBytes", "maxObjectBytes"),
            }
            for alias, it in _entries(kinds, "store")
        },
        "consumers": {
            alias: {
                "stream": EVENTS,
                "consumer": scope.name(NamePrefix.CONSUMER, alias),
                "filterSubjects": list(it["filters"]),
                **_event_delivery(it),
            }
            for alias, it in _entries(kinds, "consumer")
        },
    }
    if kinds.get("job"):
        settings["jobs"] = {
            "namespace": scope.name(NamePrefix.NAMESPACE),
            "workStream": JOBS_WORK,
            "queues": {alias: _job(scope, alias, it) for alias, it in _entries(kinds, "job")},
        }
    if scope.has_operations:
        settings["operations"] = {"bucket": scope.name(NamePrefix.OPERATIONS)}
    return {kind: entries for kind, entries in settings.items() if entries}


def _event_delivery(it: Descriptor) -> dict[str, Any]:
    deliveries = it.get("maxDeliver", _EVENT_DELIVERIES)
    return {
        "replay": it["replay"],
        "ordering": it["ordering"],
        "concurrency": it["concurrency"],
        "ackWaitMs": it.get("ackWaitMs", _EVENT_ACK_WAIT_MS),
        "maxDeliver": deliveries,
        "backoffMs": _pauses(it.get("backoffMs", BACKOFF_MS), deliveries),
    }


def _work_subject(scope: _Scope, alias: str) -> str:
    return f"trellis.work.{scope.name(NamePrefix.NAMESPACE)}.{scope.name(NamePrefix.QUEUE, alias)}"


def _queue(scope: _Scope, alias: str, it: Descriptor) -> QueueBinding:
    queue = scope.name(NamePrefix.QUEUE, alias)
    keys = scope.name(NamePrefix.KEYS, alias) if "keyConcurrency" in it else None
    return QueueBinding(scope.name(NamePrefix.NAMESPACE), queue, queue, JOBS_WORK, keys)


def _job(scope: _Scope, alias: str, it: Descriptor) -> dict[str, Any]:
    bound = _queue(scope, alias, it)
    keyed = {} if bound.key_bucket is None else {"keyBucket": bound.key_bucket, **_keyed(it)}
    return {
        "publishPrefix": f"trellis.jobs.{bound.namespace}.{bound.queue}",
        "workSubject": _work_subject(scope, alias),
        "consumerName": bound.consumer,
        **_chosen(it, "maxDeliver", "ackWaitMs", "defaultDeadlineMs"),
        **_chosen(it, "progress", "logs", "dlq", "concurrency"),
        "backoffMs": _pauses(it["backoffMs"], it["maxDeliver"]),
        **keyed,
    }


def _keyed(it: Descriptor) -> dict[str, Any]:
    """How many jobs of one key run and wait (section 10a)."""
    keys, queue = it["keyConcurrency"], it.get("queue", {})
    interval = keys.get("heartbeatIntervalMs", _HEARTBEAT_MS)
    return {
        "keyConcurrency": {
            "key": list(keys["key"]),
            "maxActive": keys.get("maxActive", 1),
            "heartbeatIntervalMs": interval,
            "heartbeatTtlMs": keys.get("heartbeatTtlMs", _MISSED_HEARTBEATS * interval),
            "stalePolicy": keys.get("stalePolicy", "fail-stale"),
        },
        "queue": {
            "maxQueuedPerKey": queue.get("maxQueuedPerKey", 0),
            "whenFull": queue.get("whenFull", "reject"),
        },
    }


def _pauses(pauses: Any, deliveries: int) -> list[int]:
    """The pauses between deliveries: one less than there are deliveries."""
    return list(pauses)[: max(0, deliveries - 1)]


def _chosen(it: Descriptor, *members: str) -> dict[str, Any]:
    return {member: it[member] for member in members if member in it}


_FIXED: Final = frozenset(
    {
        *("name", "storage", "retention", "sealed", "deny_delete"),  # of streams
        *("durable_name", "ack_policy", "replay_policy", "deliver_subject"),  # of consumers
    }
)
"""Members that the server cannot change afterwards."""

_BEGINNING: Final = "deliver_policy"
"""Where a consumer begins, which the server cannot change either."""

_SETS: Final = frozenset({"subjects", "filter_subjects"})


class StepAction(StrEnum):
    """What a step does."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class ReconcileStep:
    """One change; `config` is empty for a deletion, `why` names what differs in an update."""

    action: StepAction
    place: ResourceRef
    config: Mapping[str, Any]
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        changed = f" ({', '.join(self.why)})" if self.why else ""
        return f"{self.action} {self.place}{changed}"


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """The steps in order, or the conflicts that prevent them."""

    steps: tuple[ReconcileStep, ...] = ()
    adopted: tuple[ResourceRef, ...] = ()
    conflicts: tuple[Finding, ...] = ()


Observed = Mapping[ResourceRef, Mapping[str, Any] | None]
"""The observed configuration of each place; None if nothing is there."""


def plan_steps(
    wanted: Iterable[Resource],
    seen: Observed,
    *,
    released: Collection[ResourceRef] = (),
    captured: Mapping[ResourceRef, str] | None = None,
) -> ReconcilePlan:
    """Compare the whole set.

    Consumers that are `released` are deleted. Streams never are: they hold data, which is found
    again when the alias is declared again. `captured` are other streams that have the subjects of
    new ones.
    """
    creates: list[ReconcileStep] = []
    updates: list[ReconcileStep] = []
    anew: list[ReconcileStep] = []
    adopted: list[ResourceRef] = []
    conflicts: list[Finding] = []
    for resource in sorted(wanted, key=lambda resource: bool(resource.place.consumer)):
        place, config = resource.place, seen.get(resource.place)
        fresh = {**resource.config, "metadata": {OWNER: resource.owner}}
        if config is None:
            if other := (captured or {}).get(place):
                conflicts.append(_conflict(place, f"its subjects already go to {other}"))
            creates.append(ReconcileStep(StepAction.CREATE, place, fresh))
            continue
        differing = _differing(resource, config)
        if reason := _refusal(resource, config, differing):
            conflicts.append(_conflict(place, reason))
        elif _BEGINNING in differing:
            anew += (
                ReconcileStep(StepAction.DELETE, place, {}),
                ReconcileStep(StepAction.CREATE, place, fresh),
            )
        elif differing:
            merged = {**config, **resource.config, "metadata": config["metadata"]}
            updates.append(ReconcileStep(StepAction.UPDATE, place, merged, differing))
        else:
            adopted.append(place)
    if conflicts:
        return ReconcilePlan(conflicts=tuple(conflicts))
    deletes = [
        ReconcileStep(StepAction.DELETE, place, {})
        for place in sorted(released)
        if place.consumer and seen.get(place) is not None
    ]
    return ReconcilePlan((*creates, *updates, *anew, *deletes), tuple(adopted))


def _refusal(resource: Resource, config: Mapping[str, Any], differing: tuple[str, ...]) -> str:
    """Why an existing resource cannot be adopted or updated; empty if it can."""
    owner = (config.get("metadata") or {}).get(OWNER)
    if owner != resource.owner:
        whose = f"belongs to {owner!r}" if owner else "was not made by this authority"
        return f"it {whose}"
    fixed = [member for member in differing if member in _FIXED]
    if fixed:
        return f"it has another {', '.join(fixed)}, which cannot be changed in place"
    return ""


def _differing(resource: Resource, config: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        member
        for member, value in resource.config.items()
        if _plain(member, config.get(member)) != _plain(member, value)
    )


def _plain(member: str, value: Any) -> Any:
    """The server omits what is false, empty or zero."""
    if member in _SETS:
        return sorted(value or ())
    return value or None


def _conflict(place: ResourceRef, reason: str) -> Finding:
    return Finding("reconcile.conflict", "", f"{place} is in the way: {reason}")
