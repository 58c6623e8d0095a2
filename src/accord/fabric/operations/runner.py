"""The operation runner: runs handlers under a lease and takes over from instances that ended.

A step is stored only while its attempt is the latest and holds the lease, so an instance that comes
back too late changes nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import structlog

from accord.fabric.kv import Lease
from accord.fabric.link import Link
from accord.fabric.operations.store import OperationStore, Signal
from accord.fabric.rules.errors import (
    ConflictError,
    DeadlineError,
    FabricError,
    UnavailableError,
    ValidationError,
    write_error,
)
from accord.fabric.rules.models import Model
from accord.fabric.rules.operations import MAX_ATTEMPTS, OperationRecord, OperationState
from accord.fabric.rules.terms import write_payload
from accord.kernel import canonical
from accord.kernel.errors import AccordError
from accord.kernel.identifiers import milliseconds
from accord.kernel.schema import Schema

_log = structlog.stdlib.get_logger(__name__)


class OperationContext:
    """A running operation, as its handler sees it.

    `attempt` is above 1 if an earlier instance ended in between. The handler then starts again,
    gets all signals again, and finds the last stored progress in `resumed_from`. `transfer`
    describes the uploaded file, if the contract declares one.
    """

    def __init__(self, record: OperationRecord, running: "Attempt") -> None:
        self.id = record.id
        self.caller = record.session
        self.attempt = record.attempt
        self.resumed_from = record.progress
        self.transfer = record.transfer
        self._running = running
        self._signals: list[Signal] = []
        self._more = asyncio.Event()

    async def progress(self, payload: Any) -> None:
        """Store progress, durably, for observers; raises ValidationError or FabricError."""
        await self._running.progress(payload)

    async def signals(self) -> AsyncIterator[Signal]:
        """All signals in order, from the first one, without end."""
        at = 0
        while True:
            while at < len(self._signals):
                at += 1
                yield self._signals[at - 1]
            self._more.clear()
            await self._more.wait()

    async def signal(self, name: str) -> Any:
        """Wait for the first signal of a name and return its payload."""
        async for signal in self.signals():
            if signal.name == name:
                return signal.input
        raise AssertionError  # signals do not end

    def take(self, signal: Signal) -> None:
        """Deliver a signal to the handler."""
        self._signals.append(signal)
        self._more.set()


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Progress(Generic[T]):
    """The progress of a running operation, as a model."""

    context: OperationContext
    model: Model[T]

    async def __call__(self, payload: T) -> None:
        """Store progress, durably, for observers."""
        await self.context.progress(self.model.write(payload, "the progress"))

    @property
    def last(self) -> T | None:
        """What an earlier attempt stored last; None in the first attempt."""
        found = self.context.resumed_from
        return None if found is None else self.model.read(found, "the stored progress")


@dataclass(frozen=True, slots=True)
class Signals(Generic[T]):
    """The signals of one name that a running operation receives, as models."""

    context: OperationContext
    name: str
    model: Model[T]

    async def first(self) -> T:
        """Wait for the first one."""
        return await anext(aiter(self))

    async def __aiter__(self) -> AsyncIterator[T]:
        """All in order, from the first one, without end."""
        async for signal in self.context.signals():
            if signal.name == self.name:
                yield self.model.read(signal.input, f"the signal {self.name}")


_LONGEST_PAUSE: Final = 2.0

OperationHandler = Callable[[OperationContext, Any], Awaitable[Any]]
SignalHandler = Callable[[OperationContext, Any], Awaitable[None]]
CancelHandler = Callable[[OperationContext], Awaitable[None]]
Upload = Callable[[], Awaitable[Mapping[str, Any]]]
"""Waits for an operation's upload and returns its description."""


@dataclass(frozen=True, slots=True)
class ServedOperation:
    """An operation with its handlers."""

    name: str
    output: Schema
    progress: Schema | None
    handler: OperationHandler
    # Called with each signal, by name, in addition to the context's own.
    signals: Mapping[str, SignalHandler] = field(default_factory=dict)
    cancel: CancelHandler | None = None  # called before the handler is cancelled


class LeaseLostError(ConflictError):
    """The operation ended or another instance runs it: nothing more may be written."""


@dataclass(slots=True, eq=False)
class Attempt:
    """One attempt at one operation."""

    _link: Link
    _store: OperationStore
    _served: ServedOperation
    _record: OperationRecord
    _lease: Lease
    _context: OperationContext = field(init=False)
    has_ended: bool = False

    def __post_init__(self) -> None:
        self._context = OperationContext(self._record, self)

    async def run(self, upload: Upload | None) -> None:
        """Run the handler and store the outcome; raises LeaseLostError."""
        async with self._watched() as stop:
            work = asyncio.create_task(self._work(upload))
            stopped = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    raise _lease_lost()
                output, error = work.result()
            finally:
                for task in (work, stopped):
                    task.cancel()
                await asyncio.gather(work, stopped, return_exceptions=True)
        if error is None:
            try:
                await self._step(lambda record, now: record.completed(output, now))
            except ValidationError as refusal:  # larger than the server's maximum
                error = refusal
        if error is not None:
            described = error_json(self._link, error)
            await self._step(lambda record, now: record.failed(described, now))

    async def _work(self, upload: Upload | None) -> tuple[Any, FabricError | None]:
        """Run the handler: its output, or the error for callers."""
        try:
            if upload is not None:
                info = await upload()
                await self._step(lambda record, now: record.uploaded(info, now))
                self._context.transfer = info
            elif self._record.state is OperationState.PENDING:
                return None, UnavailableError("the upload was interrupted", mend="start again")
            output = await self._served.handler(self._context, self._record.input)
            write_payload(self._served.output, output, "the output")
        except FabricError as error:
            return None, error
        except Exception as error:  # noqa: BLE001 - a handler's fault ends its operation only
            _log.exception("an operation failed", operation=self._record.id, exc_info=error)
            return None, FabricError("the service failed to run it")
        return output, None

    async def progress(self, payload: Any) -> None:
        """Validate and store progress; raises like `OperationContext.progress`."""
        if self._served.progress is not None:
            write_payload(self._served.progress, payload, "the progress")
        await self._step(lambda record, now: record.with_progress(payload, now))

    async def _step(self, step: Callable[[OperationRecord, float], OperationRecord]) -> None:
        """Store a step, retrying while the lease holds; raises LeaseLostError."""
        now, attempt = self._link.clock.now(), self._record.attempt
        target = step(self._record, now)

        def change(found: OperationRecord) -> OperationRecord | None:
            if found.attempt != attempt or self._lease.lost.is_set():
                raise _lease_lost()
            if found == target:  # stored before, although the answer was lost
                return None
            if found.state.has_ended:
                self.has_ended = True
                raise _lease_lost()
            return step(found, now)

        kept = await self._change(change)
        if kept is None:
            raise _lease_lost()
        self._record = kept

    async def _change(
        self, change: Callable[[OperationRecord], OperationRecord | None]
    ) -> OperationRecord | None:
        pause = 0.05
        while True:
            try:
                return await self._store.change(self._record.id, change)
            except (DeadlineError, UnavailableError):
                if self._lease.lost.is_set():
                    raise _lease_lost() from None
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[asyncio.Event]:
        """Deliver signals, and set the event when the handler must stop."""
        stop = asyncio.Event()
        tasks = [
            asyncio.create_task(watch)
            for watch in (self._deliver_signals(), self._on_cancel(stop), self._on_lease_lost(stop))
        ]
        try:
            yield stop
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _on_lease_lost(self, stop: asyncio.Event) -> None:
        await self._lease.lost.wait()
        stop.set()

    async def _on_cancel(self, stop: asyncio.Event) -> None:
        with self._store.wakeup("cancel", self._record.id) as wakeup:
            wakeup.set()  # it may have been cancelled before anybody listened
            while True:
                await wakeup.wait()
                wakeup.clear()
                with suppress(FabricError):
                    found = await self._store.load(self._record.id)
                    if found is None or found.state.has_ended:
                        break
        self.has_ended = True
        if self._served.cancel is not None:
            await self._call(self._served.cancel(self._context), "cancel")
        stop.set()

    async def _deliver_signals(self) -> None:
        after = 0
        with self._store.wakeup("signal", self._record.id) as wakeup:
            while True:
                try:
                    async for signal in self._store.signals(self._record.id, after):
                        after = signal.sequence
                        await self._deliver(signal)
                except FabricError as error:
                    _log.warning("signals could not be read", why=str(error))
                    await asyncio.sleep(_LONGEST_PAUSE)
                    continue
                await wakeup.wait()
                wakeup.clear()

    async def _deliver(self, signal: Signal) -> None:
        self._context.take(signal)
        handler = self._served.signals.get(signal.name)
        if handler is not None:
            await self._call(handler(self._context, signal.input), signal.name)

    async def _call(self, callback: Awaitable[None], what: str) -> None:
        """Await a user's callback; errors are logged and do not end the operation."""
        try:
            await callback
        except Exception as error:  # noqa: BLE001 - the handler is the service's, not ours
            _log.exception("a handler failed", what=what, exc_info=error)


def _lease_lost() -> LeaseLostError:
    return LeaseLostError("it has ended, or another instance runs it")


def error_json(link: Link, error: FabricError) -> dict[str, Any]:
    """An error as stored and sent."""
    described: dict[str, Any] = canonical.decode(write_error(error, link.ids.new()))
    return described


LEASE_SECONDS: Final = 15.0
"""Seconds without renewal until another instance takes over."""

KEEP_SECONDS: Final = 7 * 24 * 3600.0
"""How long records are kept, counted from the start of the operation."""

_FORGET_EVERY: Final = 3600.0


class Runner:
    """Runs the operations of one instance, at most `most` at once, each under a lease."""

    def __init__(
        self, link: Link, store: OperationStore, *, lease: float = LEASE_SECONDS, most: int = 1000
    ) -> None:
        self._link = link
        self._store = store
        self._lease = lease
        self._most = most
        self._served: dict[str, ServedOperation] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._sweeping: asyncio.Task[None] | None = None

    def serve(self, served: ServedOperation) -> None:
        """Run operations of this kind from now on."""
        self._served[served.name] = served

    def open(self) -> None:
        """Start taking over operations that nobody runs."""
        self._sweeping = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        """Stop all operations here; other instances take them over at once."""
        tasks = [*self._running.values()]
        if self._sweeping is not None:
            tasks.append(self._sweeping)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def start(self, record: OperationRecord, upload: Upload | None = None) -> OperationRecord:
        """Store and run a new operation; one that was started before is returned as it is.

        Raises UnavailableError if too many run, ConflictError if another operation has this id.
        """
        if len(self._running) >= self._most:
            raise UnavailableError(f"{self._most} operations run here already", mend="try later")
        # The lease comes first, so that no instance sees the record as abandoned.
        lease = await self._store.lease(record.id, self._lease)
        if lease is None:
            found = await self._store.load(record.id)
            if found is None:
                raise UnavailableError("it is being started", mend="ask again")
            if found.session != record.session:
                raise ConflictError("another operation has this id")
            return found
        try:
            kept = await self._store.create(record)
        except FabricError:
            await lease.release()
            raise
        if kept is not record:
            await lease.hand_over()
        else:
            self._spawn(record, lease, upload)
        return kept

    def _spawn(self, record: OperationRecord, lease: Lease, upload: Upload | None = None) -> None:
        task = asyncio.create_task(self._run(record, lease, upload))
        self._running[record.id] = task
        task.add_done_callback(lambda _: self._running.pop(record.id, None))

    async def _run(self, record: OperationRecord, lease: Lease, upload: Upload | None) -> None:
        """Run one attempt; raises nothing but CancelledError."""
        served = self._served[record.operation]
        attempt = Attempt(self._link, self._store, served, record, lease)
        try:
            async with lease.renewed():
                await attempt.run(upload)
            await self._store.forget(record.id, record=False)
            await lease.release()
        except LeaseLostError:
            if attempt.has_ended:
                with suppress(FabricError):
                    await self._store.forget(record.id, record=False)
                    await lease.release()
        except asyncio.CancelledError:
            with suppress(FabricError):
                await lease.hand_over()
            raise
        except FabricError as error:
            _log.warning(
                "an operation was left to other instances", operation=record.id, why=str(error)
            )

    async def _sweep(self) -> None:
        """Periodically take over abandoned operations and delete old ones."""
        loop = asyncio.get_running_loop()
        forgotten = loop.time() - _FORGET_EVERY
        while True:
            try:
                await self._take_over()
                if loop.time() - forgotten >= _FORGET_EVERY:
                    forgotten = loop.time()
                    await self._forget_old()
            except AccordError as error:
                _log.warning("abandoned operations could not be checked", why=str(error))
            await asyncio.sleep(self._lease / 3)

    async def _take_over(self) -> None:
        now = await self._store.server_time()
        for identity in await self._store.leased_ids():
            if identity in self._running or len(self._running) >= self._most:
                continue
            if await self._store.is_running(identity, self._lease, now):
                continue
            record = await self._store.load(identity)
            if record is not None and record.operation not in self._served:
                continue
            lease = await self._store.lease(identity, self._lease, now)
            if lease is not None:
                await self._resume(identity, lease)

    async def _resume(self, identity: str, lease: Lease) -> None:
        at = self._link.clock.now()

        def again(record: OperationRecord) -> OperationRecord | None:
            if record.state.has_ended:
                return None
            if record.attempt >= MAX_ATTEMPTS:
                why = f"its instance ended {record.attempt} times in the middle of it"
                return record.failed(error_json(self._link, UnavailableError(why)), at)
            return record.begun_again()

        record = await self._store.change(identity, again)
        if record is None or record.state.has_ended:
            await lease.release()
        else:
            _log.info("an operation is taken over", operation=identity, attempt=record.attempt)
            self._spawn(record, lease)

    async def _forget_old(self) -> None:
        oldest = (self._link.clock.now() - KEEP_SECONDS) * 1000
        leased = set(await self._store.leased_ids())
        for identity in await self._store.ids():
            if identity not in leased and milliseconds(identity) < oldest:
                await self._store.forget(identity)
        for name, identity in [each async for each in self._store.names()]:
            if milliseconds(identity) < oldest:
                await self._store.forget_name(name)
