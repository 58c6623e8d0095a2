"""A deployment's accepted resources on JetStream: configurations, bindings and settings."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.authority.rules.records import Deployment
from accord.authority.rules.resources import (
    EVENTS,
    JOBS_WORK,
    NamePrefix,
    Resource,
    ResourceRef,
    define_bucket,
    define_consumer,
    define_object_store,
    physical_name,
)
from accord.contracts.permissions import Bindings, ConsumerBinding, QueueBinding

_EVENT_DELIVERIES: Final = 6
_EVENT_ACK_WAIT_MS: Final = 300_000
_EVENT_BACKOFF_MS: Final = (5000, 30000, 120000, 600000, 1800000)
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
        "backoffMs": _pauses(it.get("backoffMs", _EVENT_BACKOFF_MS), deliveries),
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
