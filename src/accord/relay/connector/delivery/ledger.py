"""Collects everything that waits to be written and writes it as one unit of work.

Owns the promise that whoever awaited `admit`, `flip` or `settle` is answered after the commit, and
that what sockets told is not forgotten when the store fails: it goes into the next batch. One batch
is under way at a time, so answers come in the order of commits. Never touches a socket.
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

import structlog
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
from accord.relay.connector.control.directory import Vault
from accord.relay.connector.delivery.entries import (
    Admission,
    Admitted,
    Batch,
    Claim,
    Posted,
    Queue,
)
from accord.relay.connector.delivery.limits import Limits
from accord.relay.connector.delivery.posting import post
from accord.relay.connector.storing import Storage
from accord.relay.errors import Code, RelayError
from accord.storage import StoreError

_AGAIN_SECONDS = 1.0
_log = structlog.stdlib.get_logger(__name__)


Answer = asyncio.Future[Any]
# Of admissions, opens, flips and settles.
Answers = tuple[list[Answer], list[Answer], list[Answer], list[Answer]]


class Ledger:
    """The one writer of queues and buffer in this process.

    Args:
        store: The relay's store.
        vault: Where capabilities go, in the same transaction.
        clock: Where the time comes from.
        source: The name of this process in the journal.
        limits: How much a batch may hold.
        committed: Called after each commit, before anyone is answered, with the events that were
            taken and how their queues stand.
    """

    def __init__(
        self,
        store: Storage,
        vault: Vault,
        clock: Clock,
        source: str,
        limits: Limits,
        committed: Callable[[list[Admitted], dict[str, Queue]], None],
    ) -> None:
        self._store = store
        self._vault = vault
        self._clock = clock
        self._ids = UlidSource(clock)
        self._source = source
        self._limits = limits
        self._committed = committed
        self._waiting = Batch()
        self._answers = _nobody()
        self._lately: dict[Claim, set[int]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._work = asyncio.Event()
        self._closed = False

    def admit(self, admission: Admission) -> "asyncio.Future[Admitted]":
        """Store an event and what it becomes; events are numbered in the order of these calls.

        Raises:
            RelayError: When awaited: it came over a socket that is no longer ours.
            StoreError: When awaited: the store failed.
        """
        return self._ask(self._waiting.admissions, admission, 0)

    async def open(self, instance: str, tenant: str) -> Queue:
        """Let a new socket take over the queue; from then on older ones are not believed."""
        self._keep_sent()
        queue: Queue = await self._ask(self._waiting.opens, (instance, tenant), 1)
        return queue

    async def flip(self, claim: Claim) -> bool:
        """Let everything be buffered from now on; False when a newer socket took over."""
        done: bool = await self._ask(self._waiting.flips, claim, 2)
        return done

    async def settle(self, claim: Claim) -> bool:
        """Go live again, in the transaction that finds the queue empty; False when it is not."""
        done: bool = await self._ask(self._waiting.settles, claim, 3)
        return done

    def sent(self, claim: Claim, seqs: list[int]) -> None:
        """Note that rows were written to the socket; most are acknowledged before that is kept."""
        self._lately.setdefault(claim, set()).update(seqs)
        self._soon(self._limits.note_seconds)

    def acked(self, claim: Claim, seqs: list[int]) -> None:
        """Note that rows are done with."""
        self._waiting.acked.setdefault(claim, set()).update(seqs)
        if claim in self._lately:
            self._lately[claim].difference_update(seqs)
        self._soon(self._limits.ack_batch_seconds)

    async def run(self) -> None:
        """Write until closed and nothing is left."""
        try:
            while not self._closed or self._waiting:
                await self._work.wait()
                if not await self._write_next() and self._closed:
                    return  # what sockets told is told again on their next connection
        finally:
            self._closed = True
            _answer_all(self._answers, _stopping())

    def close(self) -> None:
        """Take nothing more, and let `run` end after what was taken."""
        self._closed = True
        self._keep_sent()
        if self._alarm is not None:
            self._alarm.cancel()
        self._work.set()

    def _ask(self, items: list[Any], item: Any, kind: int) -> Answer:
        if self._closed:
            raise _stopping()
        answer: Answer = asyncio.get_running_loop().create_future()
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
        answers, self._answers = self._answers, _nobody()
        self._work.clear()
        limit = self._limits.batch
        if len(batch.admissions) > limit:
            self._waiting.admissions = batch.admissions[limit:]
            self._answers[0].extend(answers[0][limit:])
            del batch.admissions[limit:], answers[0][limit:]
            self._work.set()
        batch.id = self._ids.new()
        batch.series = secrets.token_hex(4)
        batch.now = int(self._clock.now() * 1000)
        try:
            posted = await self._post(batch)
        except (StoreError, IntegrityError) as error:
            await self._fail(batch, answers, error)
            return False
        except Exception as error:  # noqa: BLE001 - whatever it is, the callers must hear of it
            _log.error("a batch could not be written", exc_info=error)
            await self._fail(batch, answers, error)
            return False
        taken = [a for a in posted.admitted if isinstance(a, Admitted) and a.is_new]
        self._committed(taken, posted.queues)
        given: tuple[list[Any], ...] = (
            posted.admitted,
            posted.opened,
            posted.flipped,
            posted.settled,
        )
        for futures, results in zip(answers, given, strict=True):
            for future, result in zip(futures, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, RelayError):
                    future.set_exception(result)
                else:
                    future.set_result(result)
        return True

    async def _post(self, batch: Batch) -> Posted:
        def unit(connection: Connection) -> Posted:
            return post(connection, batch, self._vault, self._source)

        try:
            return await self._store.write(unit)
        except IntegrityError:
            # Another process took one of these events at the same moment: now it can be seen.
            return await self._store.write(unit)

    async def _fail(self, batch: Batch, answers: Answers, error: Exception) -> None:
        _answer_all(answers, error)
        # What a gateway acknowledged must not come back only because the disk was full.
        for name in ("sent", "acked"):
            told: dict[Claim, set[int]] = getattr(self._waiting, name)
            for claim, seqs in getattr(batch, name).items():
                told.setdefault(claim, set()).update(seqs)
        if not self._closed and (self._waiting.sent or self._waiting.acked):
            self._soon(_AGAIN_SECONDS)


def _nobody() -> Answers:
    return [], [], [], []


def _answer_all(answers: Answers, error: Exception) -> None:
    for future in (future for futures in answers for future in futures):
        if not future.done():
            future.set_exception(error)


def _stopping() -> RelayError:
    return RelayError(Code.UNAVAILABLE, "the connector is stopping", mend="try again")
