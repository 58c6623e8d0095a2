"""The way in: what many callers bring is read, proven and settled in shared batches.

Owns the rule that nothing is stored before all its signatures are checked. While one batch waits
for the disk the next is proven. Never stores and never folds: that is what it is given `settle`
for.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from accord.community.errors import Code, CommunityError
from accord.community.log.proving import Outcome
from accord.community.log.rows import Proven

Prove: TypeAlias = Callable[[Sequence[bytes]], Awaitable[Sequence[Outcome]]]

# Stores proven events and says of each whether it was new.
Settle: TypeAlias = Callable[[Sequence[Proven]], Awaitable[Sequence[bool]]]

BATCH: Final = 512
"""About how many events are proven and settled together."""

# While one batch is on its way to the disk and one is folded, another is proven.
_UNDER_WAY: Final = 3


@dataclass(frozen=True, slots=True)
class Refused:
    """An event that was not let in, by its place among those that were brought."""

    index: int
    code: Code
    reason: str


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of the events that a caller brought.

    Attributes:
        accepted: How many are new in the log; whether they stand is the fold's to say.
        duplicates: How many were there already.
        rejected: Those that the log does not take, and why.
    """

    accepted: int = 0
    duplicates: int = 0
    rejected: tuple[Refused, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    raws: Sequence[bytes]
    receipt: asyncio.Future[Receipt]


class Intake:
    """Batches for one log; made and used on one event loop.

    Args:
        prove: Reads events and checks their signatures.
        settle: What is done with proven events.
    """

    def __init__(self, prove: Prove, settle: Settle) -> None:
        self._prove = prove
        self._settle = settle
        self._waiting: list[_Call] = []
        self._running: set[asyncio.Task[None]] = set()
        self._last = asyncio.Event()
        self._last.set()
        self._closed = False

    async def receive(self, raws: Sequence[bytes]) -> Receipt:
        """Prove and settle what a caller brings, together with what others bring."""
        if self._closed:
            raise CommunityError(Code.PARTITION, "the log is closed")
        if not raws:
            return Receipt()
        loop = asyncio.get_running_loop()
        calls = [
            _Call(raws[start : start + BATCH], loop.create_future())
            for start in range(0, len(raws), BATCH)
        ]
        if not self._waiting:
            # At the end of this turn of the loop, so that all its callers share a batch.
            loop.call_soon(self._start)
        self._waiting += calls
        outcomes = await asyncio.gather(*(call.receipt for call in calls), return_exceptions=True)
        receipts = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            receipts.append(outcome)
        return _joined(receipts)

    async def close(self) -> None:
        """Refuse new events and finish what was accepted."""
        self._closed = True
        self._start()
        while self._running:
            await asyncio.wait(self._running)

    def _start(self) -> None:
        while self._waiting and len(self._running) < _UNDER_WAY:
            task = asyncio.get_running_loop().create_task(self._run(self._take()))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()

    def _take(self) -> list[_Call]:
        size = count = 0
        for call in self._waiting:
            if count and size + len(call.raws) > BATCH:
                break
            size += len(call.raws)
            count += 1
        calls, self._waiting = self._waiting[:count], self._waiting[count:]
        return calls

    async def _run(self, calls: Sequence[_Call]) -> None:
        try:
            outcomes = await self._outcomes([raw for call in calls for raw in call.raws])
        except BaseException as error:
            for call in calls:
                if not call.receipt.done():
                    call.receipt.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        start = 0
        for call in calls:
            end = start + len(call.raws)
            if not call.receipt.done():
                call.receipt.set_result(_receipt(outcomes[start:end]))
            start = end

    async def _outcomes(self, raws: Sequence[bytes]) -> Sequence[bool | CommunityError]:
        # Settled in the order in which they came: what comes late makes the fold go back.
        before, self._last = self._last, asyncio.Event()
        last = self._last
        try:
            proven = await self._prove(raws)
            await before.wait()
        finally:
            # The next one is woken behind us, so that its settling begins after ours.
            last.set()
        fresh = iter(await self._settle([each for each in proven if isinstance(each, Proven)]))
        return [next(fresh) if isinstance(each, Proven) else each for each in proven]


def _receipt(outcomes: Sequence[bool | CommunityError]) -> Receipt:
    return Receipt(
        sum(outcome is True for outcome in outcomes),
        sum(outcome is False for outcome in outcomes),
        tuple(
            Refused(index, outcome.code, str(outcome))
            for index, outcome in enumerate(outcomes)
            if isinstance(outcome, CommunityError)
        ),
    )


def _joined(receipts: Sequence[Receipt]) -> Receipt:
    return Receipt(
        sum(each.accepted for each in receipts),
        sum(each.duplicates for each in receipts),
        tuple(
            Refused(number * BATCH + refused.index, refused.code, refused.reason)
            for number, each in enumerate(receipts)
            for refused in each.rejected
        ),
    )
