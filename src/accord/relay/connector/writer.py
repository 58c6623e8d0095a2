"""Collects everything that waits to be written to the queues and commits it in batches.

`admit`, `open`, `flip` and `settle` return after the commit. What sockets reported goes into the
next batch when the store fails. One batch is written at a time.
"""

import asyncio
import secrets
from typing import TYPE_CHECKING, Any

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from accord.relay.connector.context import DeliveryContext
from accord.relay.connector.queue import (
    AdmissionResult,
    Batch,
    BatchResult,
    EventAdmission,
    QueueState,
    SocketClaim,
    write_batch,
)
from accord.relay.errors import Code, RelayError
from accord.storage import StoreError

if TYPE_CHECKING:
    from accord.relay.connector.connections import ConnectionHub

_AGAIN_SECONDS = 1.0
_log = structlog.stdlib.get_logger(__name__)


ResultFuture = asyncio.Future[Any]
# Of admissions, opens, flips and settles.
ResultFutures = tuple[
    list[ResultFuture], list[ResultFuture], list[ResultFuture], list[ResultFuture]
]


class QueueWriter:
    """The one writer of queues and buffer in this process.

    After each commit, and before any caller is answered, the hub gets the rows that were added.
    """

    def __init__(self, context: DeliveryContext, hub: "ConnectionHub") -> None:
        self._context = context
        self._hub = hub
        self._waiting = Batch()
        self._answers = _no_futures()
        self._lately: dict[SocketClaim, set[int]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._work = asyncio.Event()
        self._closed = False

    def admit(self, admission: EventAdmission) -> "asyncio.Future[AdmissionResult]":
        """Store an event and what it becomes; events are numbered in the order of these calls.

        Raises:
            RelayError: When awaited: it came over a socket that is no longer ours.
            StoreError: When awaited: the store failed.
        """
        return self._ask(self._waiting.admissions, admission, 0)

    async def open(self, instance: str, tenant: str) -> QueueState:
        """Let a new socket take over the queue; reports of older sockets are ignored from then."""
        self._keep_sent()
        queue: QueueState = await self._ask(self._waiting.opens, (instance, tenant), 1)
        return queue

    async def flip(self, claim: SocketClaim) -> bool:
        """Buffer everything from now on; False when a newer socket took over."""
        done: bool = await self._ask(self._waiting.flips, claim, 2)
        return done

    async def settle(self, claim: SocketClaim) -> bool:
        """Go live again if the queue is empty, in one transaction; False when it is not."""
        done: bool = await self._ask(self._waiting.settles, claim, 3)
        return done

    def sent(self, claim: SocketClaim, seqs: list[int]) -> None:
        """Report rows as sent. It is stored late: most rows are acknowledged before."""
        self._lately.setdefault(claim, set()).update(seqs)
        self._soon(self._context.limits.note_seconds)

    def acked(self, claim: SocketClaim, seqs: list[int]) -> None:
        """Report rows as acknowledged."""
        self._waiting.acked.setdefault(claim, set()).update(seqs)
        if claim in self._lately:
            self._lately[claim].difference_update(seqs)
        self._soon(self._context.limits.ack_batch_seconds)

    async def run(self) -> None:
        """Write until closed and nothing is left."""
        try:
            while not self._closed or self._waiting:
                await self._work.wait()
                if not await self._write_next() and self._closed:
                    return  # what sockets reported is reported again on their next connection
        finally:
            self._closed = True
            _answer_all(self._answers, _stopping())

    def close(self) -> None:
        """Accept nothing more, and let `run` end after the last batch."""
        self._closed = True
        self._keep_sent()
        if self._alarm is not None:
            self._alarm.cancel()
        self._work.set()

    def _ask(self, items: list[Any], item: Any, kind: int) -> ResultFuture:
        if self._closed:
            raise _stopping()
        answer: ResultFuture = asyncio.get_running_loop().create_future()
        items.append(item)
        self._answers[kind].append(answer)
        self._work.set()
        return answer

    def _soon(self, seconds: float) -> None:
        """Write within a time, with whatever else waits by then."""
        loop = asyncio.get_running_loop()
        if self._alarm is not None:
            if self._alarm.when() <= loop.time() + seconds:
                return
            self._alarm.cancel()
        self._alarm = loop.call_later(seconds, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._keep_sent()
        self._work.set()

    def _keep_sent(self) -> None:
        for claim, seqs in self._lately.items():
            if seqs:
                self._waiting.sent.setdefault(claim, set()).update(seqs)
        self._lately.clear()

    async def _write_next(self) -> bool:
        batch, self._waiting = self._waiting, Batch()
        answers, self._answers = self._answers, _no_futures()
        self._work.clear()
        limit = self._context.limits.batch
        if len(batch.admissions) > limit:
            self._waiting.admissions = batch.admissions[limit:]
            self._answers[0].extend(answers[0][limit:])
            del batch.admissions[limit:], answers[0][limit:]
            self._work.set()
        batch.id = self._context.ids.new()
        batch.series = secrets.token_hex(4)
        batch.now = self._context.now()
        try:
            result = await self._post(batch)
        except (StoreError, IntegrityError) as error:
            await self._fail(batch, answers, error)
            return False
        except Exception as error:  # noqa: BLE001 - the callers get it
            _log.error("a batch could not be written", exc_info=error)
            await self._fail(batch, answers, error)
            return False
        added = [a for a in result.admitted if isinstance(a, AdmissionResult) and a.is_new]
        self._hub.committed(added, result.queues)
        outcomes: tuple[list[Any], ...] = (
            result.admitted,
            result.opened,
            result.flipped,
            result.settled,
        )
        for futures, values in zip(answers, outcomes, strict=True):
            for future, value in zip(futures, values, strict=True):
                if future.done():
                    continue
                if isinstance(value, RelayError):
                    future.set_exception(value)
                else:
                    future.set_result(value)
        return True

    async def _post(self, batch: Batch) -> BatchResult:
        context = self._context

        def unit(connection: Connection) -> BatchResult:
            return write_batch(connection, batch, context.directory.vault, context.name)

        try:
            return await context.store.write(unit)
        except IntegrityError:
            # Another process took one of these events at the same time; its receipt is visible now.
            return await context.store.write(unit)

    async def _fail(self, batch: Batch, answers: ResultFutures, error: Exception) -> None:
        _answer_all(answers, error)
        # What a gateway acknowledged must not come back only because the disk was full.
        for name in ("sent", "acked"):
            waiting: dict[SocketClaim, set[int]] = getattr(self._waiting, name)
            for claim, seqs in getattr(batch, name).items():
                waiting.setdefault(claim, set()).update(seqs)
        if not self._closed and (self._waiting.sent or self._waiting.acked):
            self._soon(_AGAIN_SECONDS)


def _no_futures() -> ResultFutures:
    return [], [], [], []


def _answer_all(answers: ResultFutures, error: Exception) -> None:
    for future in (future for futures in answers for future in futures):
        if not future.done():
            future.set_exception(error)


def _stopping() -> RelayError:
    return RelayError(Code.UNAVAILABLE, "the connector is stopping", mend="try again")
