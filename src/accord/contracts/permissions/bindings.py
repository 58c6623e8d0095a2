"""Bindings: the physical resources behind a contract's aliases, and the subjects they come to.

Reconciliation fills `Bindings` in; a binding gives something only where the contract declares its
alias. The subjects are those of one bucket, store, consumer or queue, never of management: no
session may create a consumer, because the server would deliver its messages to any subject that
the session names, permitted or not. Keys are listed by the stream's own information, and values,
history and chunks are read by gets. Where an instance must notice what another one did, it hears
the subjects themselves.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from accord.contracts.errors import ContractError
from accord.kernel.finding import pointer

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,255}")


@dataclass(frozen=True, slots=True)
class Consumer:
    """The durable consumer of an event consumer group.

    Attributes:
        stream: The stream of events.
        consumer: The consumer's physical name.
    """

    stream: str
    consumer: str

    def __post_init__(self) -> None:
        _check_names(self.stream, self.consumer)


@dataclass(frozen=True, slots=True)
class Queue:
    """A job queue.

    Attributes:
        namespace: The service's namespace among jobs.
        queue: The queue's physical name in the namespace.
        consumer: The physical name of the queue's consumer on the work stream.
        stream: The work stream.
        key_bucket: The KV bucket that counts active jobs by key, for a keyed queue.
    """

    namespace: str
    queue: str
    consumer: str
    stream: str = "JOBS_WORK"
    key_bucket: str | None = None

    def __post_init__(self) -> None:
        _check_names(self.namespace, self.queue, self.consumer, self.stream)
        if self.key_bucket is not None:
            _check_names(self.key_bucket)


@dataclass(frozen=True, slots=True)
class Bindings:
    """What is bound to the aliases of one contract in one deployment.

    Attributes:
        kv: KV buckets by the alias in `resources.kv`.
        store: Object stores by the alias in `resources.store`.
        consumers: Durable consumers by the group in `eventConsumers`.
        jobs: Queues by the name in `jobs`.
        operations: The KV bucket that keeps the records of the contract's operations.
    """

    kv: Mapping[str, str] = field(default_factory=dict)
    store: Mapping[str, str] = field(default_factory=dict)
    consumers: Mapping[str, Consumer] = field(default_factory=dict)
    jobs: Mapping[str, Queue] = field(default_factory=dict)
    operations: str | None = None

    def __post_init__(self) -> None:
        _check_names(*self.kv.values(), *self.store.values())
        if self.operations is not None:
            _check_names(self.operations)


def _check_names(*names: str) -> None:
    """A name with a dot or a wildcard would stand for more than one resource."""
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise ContractError(
                f"{name[:80]!r} cannot be the name of a bound resource",
                mend="use letters, digits, - and _, at most 255 of them",
            )


Names = Mapping[str, Mapping[str, str]]
"""By alias, the physical names that fill in the templates of a rule."""


@dataclass(frozen=True, slots=True)
class BoundRule:
    """What a binding gives to the service: to publish on some subjects, and to hear some.

    Attributes:
        id: Stable, and what a reason names.
        category: The kind of permission, as an analysis names it.
        purpose: What it is for, as the middle of a sentence.
        path: The map of the manifest that declares the aliases.
        names: The physical names of each alias, from what is bound and the aliases declared.
        subjects: The subjects to publish on, with braces where a physical name stands.
        heard: The subjects to subscribe to, likewise.
        member: The member of the entry that declares it, where the entry alone does not.
        relies_on: The events of uses, by alias and name, that an entry needs to be subscribed to.
    """

    id: str
    category: str
    purpose: str
    path: tuple[str, ...]
    names: Callable[[Bindings, Iterable[str]], Names]
    subjects: tuple[str, ...]
    heard: tuple[str, ...] = ()
    member: str | None = None
    relies_on: Callable[[Mapping[str, Any]], Iterable[tuple[str, str]]] = lambda _: ()

    def declared(self, contract: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
        """The entries of a valid contract that the rule speaks of, by alias."""
        entries: Mapping[str, Any] = contract
        for step in self.path:
            entries = entries.get(step, {})
        return {
            alias: entry
            for alias, entry in entries.items()
            if self.member is None or self.member in entry
        }

    def pointer(self, alias: str) -> str:
        """Where an entry is declared."""
        return pointer(*self.path, alias, *(() if self.member is None else (self.member,)))


def _consumed(group: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for alias, events in group.get("uses", {}).items():
        for event in events:
            yield alias, event


def _buckets(bindings: Bindings, _: Iterable[str]) -> Names:
    return {alias: {"bucket": name} for alias, name in bindings.kv.items()}


def _stores(bindings: Bindings, _: Iterable[str]) -> Names:
    return {alias: {"store": name} for alias, name in bindings.store.items()}


def _consumers(bindings: Bindings, _: Iterable[str]) -> Names:
    return {
        group: {"stream": bound.stream, "consumer": bound.consumer}
        for group, bound in bindings.consumers.items()
    }


def _queues(bindings: Bindings, _: Iterable[str]) -> Names:
    return {
        name: {
            "namespace": bound.namespace,
            "queue": bound.queue,
            "stream": bound.stream,
            "consumer": bound.consumer,
        }
        for name, bound in bindings.jobs.items()
    }


def _operation_records(bindings: Bindings, declared: Iterable[str]) -> Names:
    """One bucket keeps the records of all operations."""
    if bindings.operations is None:
        return {}
    return {name: {"bucket": bindings.operations} for name in declared}


def _key_buckets(bindings: Bindings, _: Iterable[str]) -> Names:
    return {
        name: {"bucket": bound.key_bucket}
        for name, bound in bindings.jobs.items()
        if bound.key_bucket is not None
    }


_READING: Final = (
    "$JS.API.STREAM.INFO.{stream}",
    "$JS.API.STREAM.MSG.GET.{stream}",
    "$JS.API.DIRECT.GET.{stream}",
    "$JS.API.DIRECT.GET.{stream}.>",
)
_BUCKET: Final = (
    "$KV.{bucket}.>",
    *(subject.replace("{stream}", "KV_{bucket}") for subject in _READING),
)
_RECORDS: Final = (
    *_BUCKET,
    "$JS.API.STREAM.PURGE.KV_{bucket}",  # what has ended leaves nothing behind
)
_STORE: Final = (
    "$O.{store}.>",
    *(subject.replace("{stream}", "OBJ_{store}") for subject in _READING),
    "$JS.API.STREAM.PURGE.OBJ_{store}",  # the chunks of what is replaced or deleted
)
_PULLING: Final = (
    "$JS.API.CONSUMER.INFO.{stream}.{consumer}",
    "$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}",
    "$JS.ACK.{stream}.{consumer}.>",
)
_QUEUE: Final = (
    *_PULLING,
    "trellis.jobs.{namespace}.{queue}.>",
    "trellis.work.{namespace}.{queue}",
    "$JS.API.DIRECT.GET.JOBS.trellis.jobs.{namespace}.{queue}.>",  # was it cancelled?
)

# fmt: off
BOUND: Final = (
    BoundRule("bound.kv", "resource:kv", "uses the bucket", ("resources", "kv"),
              _buckets, _BUCKET),
    BoundRule("bound.store", "resource:store", "uses the store", ("resources", "store"),
              _stores, _STORE),
    BoundRule("bound.consumer", "resource:consumer", "pulls events for the group",
              ("eventConsumers",), _consumers, _PULLING, relies_on=_consumed),
    BoundRule("bound.queue", "jobs:queue", "works on the queue", ("jobs",), _queues, _QUEUE,
              ("trellis.jobs.{namespace}.{queue}.>",)),
    BoundRule("bound.queue-keys", "jobs:keys", "counts active jobs by key for the queue",
              ("jobs",), _key_buckets, _RECORDS, member="keyConcurrency"),
    BoundRule("bound.operations", "operation:records", "keeps the records of the operation",
              ("operations",), _operation_records, _RECORDS, ("$KV.{bucket}.>",)),
)
# fmt: on
"""What each kind of binding gives to the service."""
