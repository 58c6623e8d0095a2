"""One attempt at one operation: its handler, what reaches the handler, and what it comes to.

Owns the handler's task. Every step that it takes is kept only while the attempt is the latest one
and its lease holds; so an instance that comes back too late can change nothing.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from accord.fabric import payloads
from accord.fabric.errors import (
    ConflictError,
    DeadlineError,
    FabricError,
    UnavailableError,
    ValidationError,
    write_error,
)
from accord.fabric.kv import Lease
from accord.fabric.link import Link
from accord.fabric.operations.context import OperationContext
from accord.fabric.operations.ledger import Ledger, Signal
from accord.fabric.operations.record import Record, State
from accord.kernel import canonical
from accord.kernel.schema import Schema

_LONGEST_PAUSE: Final = 2.0

Handler = Callable[[OperationContext, Any], Awaitable[Any]]
SignalHandler = Callable[[OperationContext, Any], Awaitable[None]]
CancelHandler = Callable[[OperationContext], Awaitable[None]]
Upload = Callable[[], Awaitable[Mapping[str, Any]]]
"""Waits until what an operation needs was uploaded, and says what it is."""

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Served:
    """An operation of the contract, with what runs it.

    Attributes:
        handler: Runs it to its end.
        signals: What is called with each signal, by its name; the context has them anyway.
        cancel: What is called when somebody cancels it, before the handler is.
    """

    name: str
    output: Schema
    progress: Schema | None
    handler: Handler
    signals: Mapping[str, SignalHandler] = field(default_factory=dict)
    cancel: CancelHandler | None = None


class LostError(ConflictError):
    """Somebody else runs it, or it has ended: nothing may be written any more."""


class Attempt:
    """One attempt at one operation."""

    def __init__(
        self, link: Link, ledger: Ledger, served: Served, record: Record, lease: Lease
    ) -> None:
        self.has_ended = False
        self._link = link
        self._ledger = ledger
        self._served = served
        self._record = record
        self._lease = lease
        self._context = OperationContext(
            record.id,
            record.session,
            record.attempt,
            record.progress,
            record.transfer,
            self._tell,
        )

    async def to_its_end(self, upload: Upload | None) -> None:
        """Run the handler, and keep what it came to.

        Raises:
            LostError: Somebody else has ended it, or may run it.
        """
        async with self._attended() as stop:
            work = asyncio.create_task(self._work(upload))
            stopped = asyncio.create_task(stop.wait())
            try:
                await asyncio.wait((work, stopped), return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    raise _lost()
                output, error = work.result()
            finally:
                for task in (work, stopped):
                    task.cancel()
                await asyncio.gather(work, stopped, return_exceptions=True)
        if error is None:
            try:
                await self._step(lambda record, now: record.completed(output, now))
            except ValidationError as refusal:  # larger than the server carries
                error = refusal
        if error is not None:
            said = travelling(self._link, error)
            await self._step(lambda record, now: record.failed(said, now))

    async def _work(self, upload: Upload | None) -> tuple[Any, FabricError | None]:
        """What the handler comes to: its output, or the error that callers are told."""
        try:
            if upload is not None:
                info = await upload()
                await self._step(lambda record, now: record.uploaded(info, now))
                self._context.transfer = info
            elif self._record.state is State.PENDING:
                return None, UnavailableError("the upload was interrupted", mend="start again")
            output = await self._served.handler(self._context, self._record.input)
            payloads.write(self._served.output, output, "the output")
        except FabricError as error:
            return None, error
        except Exception as error:  # noqa: BLE001 - a handler's fault ends its operation only
            _log.exception("an operation failed", operation=self._record.id, exc_info=error)
            return None, FabricError("the service failed to run it")
        return output, None

    async def _tell(self, payload: Any) -> None:
        if self._served.progress is not None:
            payloads.write(self._served.progress, payload, "the progress")
        await self._step(lambda record, now: record.with_progress(payload, now))

    async def _step(self, step: Callable[[Record, float], Record]) -> None:
        """Take a step for this attempt, however long the network is away while the lease holds.

        Raises:
            LostError: Somebody else has ended it, or runs it.
        """
        now, attempt = self._link.clock.now(), self._record.attempt
        target = step(self._record, now)

        def change(found: Record) -> Record | None:
            if found.attempt != attempt or self._lease.lost.is_set():
                raise _lost()
            if found == target:  # written before, although no answer came
                return None
            if found.state.has_ended:
                self.has_ended = True
                raise _lost()
            return step(found, now)

        kept = await self._persistently(change)
        if kept is None:
            raise _lost()
        self._record = kept

    async def _persistently(self, change: Callable[[Record], Record | None]) -> Record | None:
        pause = 0.05
        while True:
            try:
                return await self._ledger.change(self._record.id, change)
            except (DeadlineError, UnavailableError):
                if self._lease.lost.is_set():
                    raise _lost() from None
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)

    @asynccontextmanager
    async def _attended(self) -> AsyncIterator[asyncio.Event]:
        """Hand signals over, and set the event when the handler must stop."""
        stop = asyncio.Event()
        tasks = [
            asyncio.create_task(watch)
            for watch in (self._hand_signals(), self._heed_cancel(stop), self._heed_loss(stop))
        ]
        try:
            yield stop
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _heed_loss(self, stop: asyncio.Event) -> None:
        await self._lease.lost.wait()
        stop.set()

    async def _heed_cancel(self, stop: asyncio.Event) -> None:
        with self._ledger.bell("cancel", self._record.id) as bell:
            bell.set()  # it may have been cancelled before anybody listened
            while True:
                await bell.wait()
                bell.clear()
                with suppress(FabricError):
                    found = await self._ledger.load(self._record.id)
                    if found is None or found.state.has_ended:
                        break
        self.has_ended = True
        if self._served.cancel is not None:
            await self._told(self._served.cancel(self._context), "cancel")
        stop.set()

    async def _hand_signals(self) -> None:
        after = 0
        with self._ledger.bell("signal", self._record.id) as bell:
            while True:
                try:
                    async for signal in self._ledger.signals(self._record.id, after):
                        after = signal.sequence
                        await self._hand(signal)
                except FabricError as error:
                    _log.warning("signals could not be read", why=str(error))
                    await asyncio.sleep(_LONGEST_PAUSE)
                    continue
                await bell.wait()
                bell.clear()

    async def _hand(self, signal: Signal) -> None:
        self._context.take(signal)
        handler = self._served.signals.get(signal.name)
        if handler is not None:
            await self._told(handler(self._context, signal.input), signal.name)

    async def _told(self, told: Awaitable[None], what: str) -> None:
        """Await a service's own handler; its fault is logged, and the operation goes on."""
        try:
            await told
        except Exception as error:  # noqa: BLE001 - the handler is the service's, not ours
            _log.exception("a handler failed", what=what, exc_info=error)


def _lost() -> LostError:
    return LostError("it has ended, or another instance runs it")


def travelling(link: Link, error: FabricError) -> dict[str, Any]:
    """An error as it is kept, and as it travels."""
    said: dict[str, Any] = canonical.decode(write_error(error, link.ids.new()))
    return said
