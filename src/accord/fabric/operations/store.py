"""The operation store: one bucket per deployment, shared by all instances.

Keys: `r.<id>` record, `l.<id>` lease, `s.<id>.<n>` n-th signal, `k.<hash>` the id that an
idempotency key stands for. Writes of other instances are heard
on the bucket's subjects, but only as hints to look: a message may be heard and then refused.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from accord.fabric import streams
from accord.fabric.kv import Bucket, Lease, is_lease_held, take_lease
from accord.fabric.link import Link, subscribe_published
from accord.fabric.rules.errors import ConflictError, FabricError, ValidationError
from accord.fabric.rules.operations import (
    OperationRecord,
    OperationState,
    read_record,
    write_record,
)
from accord.kernel import canonical

MAX_SIGNALS: Final = 1000
"""Signals per operation."""

MAX_SIGNAL_BYTES: Final = 65_536
"""Bytes per signal."""

_CANCELLED: Final = b'"state":"cancelled"'
_RECHECKS: Final = (0.02, 0.2, 1.0)
"""Seconds after a hint at which to look again: it may come before the write is stored."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A stored signal; `sequence` counts from 1, `session` is the sender."""

    sequence: int
    name: str
    input: Any
    session: str


WakeReason = Literal["step", "signal", "cancel"]
"""What to wait for: any visible step, a signal, or cancellation."""

RecordChange = Callable[[OperationRecord], OperationRecord | None]
"""Maps a record to its replacement; None leaves it unchanged."""


class OperationStore:
    """The operations of one deployment, in a bucket given by its physical name."""

    def __init__(self, link: Link, bucket: str) -> None:
        self._link = link
        self._bucket = Bucket(link.inbox, bucket)
        self._stem = f"$KV.{bucket}."
        self._wakeups: defaultdict[tuple[WakeReason, str], set[asyncio.Event]] = defaultdict(set)
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """Subscribe to the writes of other instances."""
        self._subscription = await subscribe_published(
            self._link.nats, f"{self._stem}*.>", self._on_write
        )

    async def close(self) -> None:
        """End the subscription."""
        if self._subscription is not None and not self._link.nats.is_closed:
            await self._subscription.unsubscribe()
        self._subscription = None

    async def create(self, record: OperationRecord) -> OperationRecord:
        """Store a record or return that of the same request; ConflictError if the id is taken."""
        try:
            await self._bucket.create(_record(record.id), write_record(record))
        except ConflictError:
            found = await self.load(record.id)
            same = (record.session, record.operation, record.input)
            if found is None or (found.session, found.operation, found.input) != same:
                raise ConflictError("another operation has this id") from None
            return found
        return record

    async def named(self, name: str, identity: str) -> str:
        """The id of the operation that a name stands for: `identity`, if the name is new."""
        try:
            await self._bucket.create(f"k.{name}", identity.encode())
        except ConflictError:
            found = await self._bucket.get(f"k.{name}")
            return identity if found is None else found.value.decode()
        return identity

    async def names(self) -> AsyncIterator[tuple[str, str]]:
        """The names with the ids of their operations."""
        async for key in self._bucket.keys("k.*"):
            found = await self._bucket.get(key)
            if found is not None:
                yield key.removeprefix("k."), found.value.decode()

    async def forget_name(self, name: str) -> None:
        """Delete a name."""
        await streams.purge(self._link.inbox, f"KV_{self._bucket.name}", f"{self._stem}k.{name}")

    async def load(self, identity: str) -> OperationRecord | None:
        """The record of an operation."""
        found = await self._bucket.get(_record(identity))
        return None if found is None else read_record(found.value)

    async def change(self, identity: str, change: RecordChange) -> OperationRecord | None:
        """Change a record and return the result; None if there is no record."""
        left: OperationRecord | None = None

        def decide(entry: Any) -> bytes | None:
            nonlocal left
            left = None if entry is None else read_record(entry.value)
            stepped = None if left is None else change(left)
            if stepped is None:
                return None
            left = stepped
            return write_record(stepped)

        await self._bucket.change(_record(identity), decide)
        self._wake("step", identity)
        if left is not None and left.state is OperationState.CANCELLED:
            self._wake("cancel", identity)
        return left

    async def signal(self, identity: str, name: str, payload: Any, session: str) -> int:
        """Store a signal and return its sequence; FabricError if it is too large or too many."""
        kept = canonical.encode({"name": name, "input": payload, "session": session})
        if len(kept) > MAX_SIGNAL_BYTES:
            raise ValidationError(f"a signal has at most {MAX_SIGNAL_BYTES} bytes")
        last = await streams.last_on(
            self._link.inbox, f"KV_{self._bucket.name}", f"{self._stem}s.{identity}.*"
        )
        sequence = 1 if last is None else int(last.subject.rpartition(".")[2]) + 1
        while sequence <= MAX_SIGNALS:
            try:
                await self._bucket.create(_signal(identity, sequence), kept)
            except ConflictError:
                sequence += 1
            else:
                self._wake("signal", identity)
                return sequence
        raise FabricError(f"the operation has had its {MAX_SIGNALS} signals")

    async def signals(self, identity: str, after: int) -> AsyncIterator[Signal]:
        """The signals after a sequence, in order."""
        while True:
            after += 1
            found = await self._bucket.get(_signal(identity, after))
            if found is None:
                return
            yield _read_signal(after, found.value)

    async def lease(self, identity: str, ttl: float, now: float | None = None) -> Lease | None:
        """The lease to run an operation; None if another instance holds it."""
        return await take_lease(self._bucket, _lease(identity), self._link.ids.new(), ttl, now)

    async def is_running(self, identity: str, ttl: float, now: float) -> bool:
        """Whether an instance runs an operation."""
        return await is_lease_held(self._bucket, _lease(identity), ttl, now)

    async def leased_ids(self) -> list[str]:
        """The ids of operations with a lease, expired ones included."""
        return [key.removeprefix("l.") async for key in self._bucket.keys("l.*")]

    async def ids(self) -> list[str]:
        """The ids of all stored operations."""
        return [key.removeprefix("r.") async for key in self._bucket.keys("r.*")]

    async def forget(self, identity: str, *, record: bool = True) -> None:
        """Delete an operation that has ended, or only its signals."""
        stream = f"KV_{self._bucket.name}"
        await streams.purge(self._link.inbox, stream, f"{self._stem}s.{identity}.*")
        if record:
            await streams.purge(self._link.inbox, stream, f"{self._stem}r.{identity}")

    async def server_time(self) -> float:
        """The time of the clock by which leases expire."""
        return await self._bucket.server_time()

    @contextmanager
    def wakeup(self, what: WakeReason, identity: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever an operation may have changed."""
        event = asyncio.Event()
        events = self._wakeups[what, identity]
        events.add(event)
        try:
            yield event
        finally:
            events.discard(event)
            if not events:
                self._wakeups.pop((what, identity), None)

    def _wake(self, what: WakeReason, identity: str) -> None:
        for event in self._wakeups.get((what, identity), ()):
            event.set()

    async def _on_write(self, msg: Msg) -> None:
        kind, _, rest = msg.subject.removeprefix(self._stem).partition(".")
        identity = rest.partition(".")[0]
        loop = asyncio.get_running_loop()
        for what in _reasons(kind, msg.data):
            if (what, identity) in self._wakeups:
                self._wake(what, identity)
                for pause in _RECHECKS:
                    loop.call_later(pause, self._wake, what, identity)


def _read_signal(sequence: int, data: bytes) -> Signal:
    try:
        kept = canonical.decode(data, max_bytes=len(data))
        return Signal(sequence, kept["name"], kept["input"], kept["session"])
    except (canonical.CanonicalError, KeyError, TypeError):
        raise FabricError("the stored signal is malformed") from None


def _reasons(kind: str, data: bytes) -> Iterator[WakeReason]:
    if kind == "s":
        yield "signal"
    elif kind == "r":
        yield "step"
        if _CANCELLED in data:  # or the same text in a payload; the waiter checks
            yield "cancel"


def _record(identity: str) -> str:
    return f"r.{identity}"


def _lease(identity: str) -> str:
    return f"l.{identity}"


def _signal(identity: str, sequence: int) -> str:
    return f"s.{identity}.{sequence}"
