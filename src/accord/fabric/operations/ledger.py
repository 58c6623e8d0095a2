"""Where a deployment keeps its operations, so that any instance answers for any of them.

One bucket: `r.<id>` is the record, `l.<id>` the lease of whoever runs it, `s.<id>.<n>` its n-th
signal. Instances hear each other's writes on the bucket's own subjects: a hint to look, no more,
because what is heard may yet be refused.
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
from accord.fabric.errors import ConflictError, FabricError, ValidationError
from accord.fabric.kv import Bucket, Lease, is_held, take
from accord.fabric.link import Link
from accord.fabric.operations import record as records
from accord.fabric.operations.record import Record, State
from accord.fabric.wire import hear
from accord.kernel import canonical

MAX_SIGNALS: Final = 1000
"""How many signals one operation takes."""

MAX_SIGNAL_BYTES: Final = 65_536
"""How large one signal may be."""

_CANCELLED: Final = b'"state":"cancelled"'
_ECHOES: Final = (0.02, 0.2, 1.0)
"""When to look again after a hint, which may come before what it hints at is stored."""


@dataclass(frozen=True, slots=True)
class Signal:
    """A signal that was taken.

    Attributes:
        sequence: Which of the operation's signals it is, from 1.
        session: Who sent it.
    """

    sequence: int
    name: str
    input: Any
    session: str


Happening = Literal["step", "signal", "cancel"]
"""What one may wait for: any step that callers see, a signal, or the step that cancels."""

Change = Callable[[Record], Record | None]
"""From a record to the one in its place; None leaves it."""


class Ledger:
    """The operations of one deployment.

    Args:
        link: The instance's link.
        bucket: The bucket's physical name.
    """

    def __init__(self, link: Link, bucket: str) -> None:
        self._link = link
        self._bucket = Bucket(link.inbox, bucket)
        self._stem = f"$KV.{bucket}."
        self._bells: defaultdict[tuple[Happening, str], set[asyncio.Event]] = defaultdict(set)
        self._hearing: Subscription | None = None

    async def open(self) -> None:
        """Begin to hear what other instances write."""
        self._hearing = await hear(self._link.nats, f"{self._stem}*.>", self._heard)

    async def close(self) -> None:
        """Hear no more."""
        if self._hearing is not None and not self._link.nats.is_closed:
            await self._hearing.unsubscribe()
        self._hearing = None

    async def create(self, record: Record) -> Record:
        """Keep a new record; where one of the id is there already, that one counts.

        Raises:
            ConflictError: The id is somebody else's operation.
        """
        try:
            await self._bucket.create(_record(record.id), records.write(record))
        except ConflictError:
            found = await self.load(record.id)
            same = (record.session, record.operation, record.input)
            if found is None or (found.session, found.operation, found.input) != same:
                raise ConflictError("another operation has this id") from None
            return found
        return record

    async def load(self, identity: str) -> Record | None:
        """The record of an operation."""
        found = await self._bucket.get(_record(identity))
        return None if found is None else records.read(found.value)

    async def change(self, identity: str, change: Change) -> Record | None:
        """Take a step, and return the record as it is then; None where there is none."""
        left: Record | None = None

        def decide(entry: Any) -> bytes | None:
            nonlocal left
            left = None if entry is None else records.read(entry.value)
            stepped = None if left is None else change(left)
            if stepped is None:
                return None
            left = stepped
            return records.write(stepped)

        await self._bucket.change(_record(identity), decide)
        self._ring("step", identity)
        if left is not None and left.state is State.CANCELLED:
            self._ring("cancel", identity)
        return left

    async def signal(self, identity: str, name: str, payload: Any, session: str) -> int:
        """Keep a signal, and return its sequence.

        Raises:
            FabricError: It is too large, or the operation has had as many as it takes.
        """
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
                self._ring("signal", identity)
                return sequence
        raise FabricError(f"the operation has had its {MAX_SIGNALS} signals")

    async def signals(self, identity: str, after: int) -> AsyncIterator[Signal]:
        """The signals of an operation behind one of them, in order."""
        while True:
            after += 1
            found = await self._bucket.get(_signal(identity, after))
            if found is None:
                return
            yield _read_signal(after, found.value)

    async def lease(self, identity: str, ttl: float, now: float | None = None) -> Lease | None:
        """The right to run an operation, unless another instance has it."""
        return await take(self._bucket, _lease(identity), self._link.ids.new(), ttl, now)

    async def is_run(self, identity: str, ttl: float, now: float) -> bool:
        """Whether an instance runs an operation."""
        return await is_held(self._bucket, _lease(identity), ttl, now)

    async def leased(self) -> list[str]:
        """The operations that somebody runs, or ran when it ended."""
        return [key.removeprefix("l.") async for key in self._bucket.keys("l.*")]

    async def kept(self) -> list[str]:
        """Every operation that there is a record of."""
        return [key.removeprefix("r.") async for key in self._bucket.keys("r.*")]

    async def forget(self, identity: str, *, record: bool = True) -> None:
        """Remove an operation that has ended; only its signals where the record shall stay."""
        stream = f"KV_{self._bucket.name}"
        await streams.purge(self._link.inbox, stream, f"{self._stem}s.{identity}.*")
        if record:
            await streams.purge(self._link.inbox, stream, f"{self._stem}r.{identity}")

    async def server_time(self) -> float:
        """The clock by which leases run out."""
        return await self._bucket.server_time()

    @contextmanager
    def bell(self, what: Happening, identity: str) -> Iterator[asyncio.Event]:
        """An event that is set whenever something may have happened to an operation."""
        event = asyncio.Event()
        bells = self._bells[what, identity]
        bells.add(event)
        try:
            yield event
        finally:
            bells.discard(event)
            if not bells:
                self._bells.pop((what, identity), None)

    def _ring(self, what: Happening, identity: str) -> None:
        for event in self._bells.get((what, identity), ()):
            event.set()

    async def _heard(self, msg: Msg) -> None:
        kind, _, rest = msg.subject.removeprefix(self._stem).partition(".")
        identity = rest.partition(".")[0]
        loop = asyncio.get_running_loop()
        for what in _happened(kind, msg.data):
            if (what, identity) in self._bells:
                self._ring(what, identity)
                for pause in _ECHOES:
                    loop.call_later(pause, self._ring, what, identity)


def _read_signal(sequence: int, data: bytes) -> Signal:
    try:
        kept = canonical.decode(data, max_bytes=len(data))
        return Signal(sequence, kept["name"], kept["input"], kept["session"])
    except (canonical.CanonicalError, KeyError, TypeError):
        raise FabricError("what is kept here is no signal") from None


def _happened(kind: str, data: bytes) -> Iterator[Happening]:
    if kind == "s":
        yield "signal"
    elif kind == "r":
        yield "step"
        if _CANCELLED in data:  # or something of the same form within: whoever hears it looks
            yield "cancel"


def _record(identity: str) -> str:
    return f"r.{identity}"


def _lease(identity: str) -> str:
    return f"l.{identity}"


def _signal(identity: str, sequence: int) -> str:
    return f"s.{identity}.{sequence}"
