"""Received events: proven, within their author's quota, and stored in shared batches.

Proving is strict parsing, the right community and every signature. `ProverPool` does it in child
processes; the work of a lost process is done in this one.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, TYPE_CHECKING, Any, Final, TypeAlias

import ormsgpack
import structlog

from accord.community import store
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules.chains import MEMBERSHIP_TYPES
from accord.community.rules.event import (
    MAX_AHEAD_SECONDS,
    Position,
    parse_signed_event,
    read_stored_event,
    verify_event,
)
from accord.community.settings import LogLimits
from accord.community.store import ProvenEvent
from accord.kernel.clock import Clock, parse_time

if TYPE_CHECKING:
    from accord.community.log import EventLog
    from accord.community.log_state import LogState

ProofOutcome: TypeAlias = ProvenEvent | CommunityError

_LENGTH: Final = 4


def prove_event(raw: bytes, community_id: str) -> ProvenEvent:
    """Parse an event strictly and verify all its signatures.

    Raises `bad_request` if it is malformed or of another community, else `invalid_signature`.
    """
    event, signed = parse_signed_event(raw)
    if event.community_id != community_id:
        raise bad_request("the event is of another community", where="/community_id")
    verify_event(event, signed)
    return ProvenEvent(event, _with_signature(signed, event.signature))


def prove_events(raws: Sequence[bytes], community_id: str) -> list[ProofOutcome]:
    """Prove many events independently."""
    found: list[ProofOutcome] = []
    for raw in raws:
        try:
            found.append(prove_event(raw, community_id))
        except CommunityError as error:
            found.append(error)
    return found


def too_early(outcome: ProofOutcome, now: float) -> CommunityError | None:
    """The refusal of an event that is dated in the future; None if it is not.

    A future date would extend what expires by its date, such as a post. The event is not lost:
    nodes that have it offer it again. A past date cannot be told from a long journey.
    """
    if isinstance(outcome, CommunityError) or (
        parse_time(outcome.event.wall_clock) <= now + MAX_AHEAD_SECONDS
    ):
        return None
    return CommunityError(
        Code.EXPIRED,
        "the event is dated in the future and is refused until then",
        where="/wall_clock",
        mend="set the clock of its author's machine",
    )


def serve_proofs(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Prove batches until there are no more: the main loop of a prover process."""
    while (request := _receive(requests)) is not None:
        community_id, raws = ormsgpack.unpackb(request)
        _send(
            answers, ormsgpack.packb([_packed(each) for each in prove_events(raws, community_id)])
        )


def ask_prover(
    requests: IO[bytes], answers: IO[bytes], raws: Sequence[bytes], community_id: str
) -> list[ProofOutcome] | None:
    """Have a prover process prove events; None if the process is gone."""
    try:
        _send(requests, ormsgpack.packb((community_id, list(raws))))
        answer = _receive(answers)
    except BrokenPipeError:
        return None
    return None if answer is None else [_unpacked(each) for each in ormsgpack.unpackb(answer)]


def _packed(outcome: ProofOutcome) -> tuple[str | bytes | None, ...]:
    if isinstance(outcome, ProvenEvent):
        return outcome.event.digest, outcome.body
    return outcome.code.value, outcome.what, outcome.where


def _unpacked(parts: Sequence[Any]) -> ProofOutcome:
    match parts:
        case [digest, body]:
            return ProvenEvent(read_stored_event(body, digest), body)
        case [code, what, where]:
            return CommunityError(Code(code), what, where=where)
    raise AssertionError(parts)


def _send(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(len(message).to_bytes(_LENGTH))
    pipe.write(message)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes | None:
    length = int.from_bytes(pipe.read(_LENGTH))
    message = pipe.read(length)
    return message if length and len(message) == length else None


def _with_signature(signed: bytes, signature: str) -> str:
    """The event's canonical JSON: only `wall_clock` sorts after `signature`."""
    before, last, clock = signed.rpartition(b'"wall_clock":')
    return b"".join((before, b'"signature":"', signature.encode(), b'",', last, clock)).decode()


_log = structlog.stdlib.get_logger(__name__)

# Fewer are proven faster in this process than by messages to another.
_WORTHWHILE: Final = 8


class ProverPool:
    """A pool of prover processes, by default one per processor."""

    def __init__(self, count: int | None = None) -> None:
        self.count = count or os.cpu_count() or 1
        self._threads = ThreadPoolExecutor(self.count, thread_name_prefix="prover")
        self._idle: SimpleQueue[_ProverProcess] = SimpleQueue()
        for _ in range(self.count):
            self._idle.put(_ProverProcess())

    async def prove(self, raws: Sequence[bytes], community_id: str) -> list[ProofOutcome]:
        """Prove events, split among the processes."""
        if len(raws) < _WORTHWHILE:
            return prove_events(raws, community_id)
        loop = asyncio.get_running_loop()
        size = max(_WORTHWHILE, -(-len(raws) // self.count))
        parts = await asyncio.gather(
            *(
                loop.run_in_executor(
                    self._threads, self._ask, raws[start : start + size], community_id
                )
                for start in range(0, len(raws), size)
            )
        )
        return [outcome for part in parts for outcome in part]

    def close(self) -> None:
        """End the processes after their current work."""
        self._threads.shutdown()
        for _ in range(self.count):
            self._idle.get().end()

    def _ask(self, raws: Sequence[bytes], community_id: str) -> list[ProofOutcome]:
        prover = self._idle.get()
        try:
            outcomes = prover.ask(raws, community_id)
        finally:
            self._idle.put(prover)
        return prove_events(raws, community_id) if outcomes is None else outcomes


class _ProverProcess:
    """One process. If it is lost, this process does its work and it is not restarted."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_lost = False

    def ask(self, raws: Sequence[bytes], community_id: str) -> list[ProofOutcome] | None:
        if self._is_lost:
            return None
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "accord.community.intake"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,  # Ctrl-C reaches only this process, which then ends it
            )
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        outcomes = ask_prover(requests, answers, raws, community_id)
        if outcomes is None:
            self._is_lost = True
            _log.warning(
                "a signature worker process ended unexpectedly; its events are verified in "
                "the node's process"
            )
            self.end()
        return outcomes

    def end(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            # Leaving its block closes both pipes and waits for it.
            with contextlib.suppress(BrokenPipeError), process:
                pass


DAY_SECONDS: Final = 86_400

QUOTA: Final = "quota"
DISK: Final = "disk"
EARLY: Final = "early"
"""Why events are not taken for now, as figures name it."""


_Key = tuple[str, bool]
"""An author, or nobody where it is no member, and whether its membership events are meant."""


class Quota:
    """Counts what a log has accepted today.

    Authors that neither are nor were members share one budget.
    """

    def __init__(self, limits: LogLimits, clock: Clock, folder: Path, folding: "LogState") -> None:
        self.refused: Counter[str] = Counter()
        self._limits = limits
        self._clock = clock
        self._folder = folder
        self._folding = folding
        self._used: Counter[_Key] = Counter()
        self._reserved: dict[bytes, _Key] = {}
        self._day = self._today()
        self._lifts = 0

    @property
    def begin_of_day(self) -> float:
        """When the counted day began, in seconds since the epoch."""
        return float(self._today() * DAY_SECONDS)

    @property
    def largest_share(self) -> float:
        """The largest used fraction of any author's budget."""
        most = self._limits.author_bytes_per_day
        self._turn()
        return max(self._used.values(), default=0) / most if most else 0.0

    def load(self, taken: Iterable[tuple[str, str, int]]) -> None:
        """Count what was accepted today before the log was opened: author, stage and size."""
        for author, stage, size in taken:
            self._used[self._key(author, is_membership=stage == "membership")] += size

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Accept any amount meanwhile, for imports by the owner."""
        self._lifts += 1
        try:
            yield
        finally:
            self._lifts -= 1

    def has_room(self, outcomes: Sequence[ProofOutcome]) -> bool:
        """Whether all events fit, even if none of them is a duplicate."""
        self._turn()
        wanted: Counter[_Key] = Counter()
        for each in outcomes:
            if isinstance(each, ProvenEvent):
                wanted[self._key_of(each)] += len(each.body)
        return not self._is_full() and not any(
            self._exceeds(key, size) for key, size in wanted.items()
        )

    def admit(
        self, outcomes: Sequence[ProofOutcome], known: Container[Position], *, unlimited: bool
    ) -> list[ProofOutcome]:
        """Refuse events that exceed the quota; the rest counts until `settle` releases it.

        Positions in `known` are stored already and cost nothing. While this node catches up
        (`unlimited`), only the disk is checked.
        """
        self._turn()
        is_full = self._is_full()
        unlimited = unlimited or self._lifts > 0
        return [
            each
            if isinstance(each, CommunityError) or each.event.position in known
            else self._judge(each, is_full=is_full, unlimited=unlimited) or each
            for each in outcomes
        ]

    def check(self, author: str, event_type: str) -> None:
        """Raise `capacity_exceeded` if an author may not add another event."""
        self._turn()
        is_membership = event_type in MEMBERSHIP_TYPES
        if not is_membership and self._is_full():
            raise self._no_room()
        if self._exceeds(self._key(author, is_membership=is_membership), 1):
            raise self._too_much()

    def take(self, proven: Iterable[ProvenEvent]) -> None:
        """Count events of this node, which were not admitted."""
        for each in proven:
            self._used[self._key_of(each)] += len(each.body)

    def settle(self, proven: ProvenEvent, *, stored: bool) -> None:
        """Release an admitted event unless it was new and stored."""
        reserved = self._reserved.pop(proven.event.digest, None)
        if reserved is not None and not stored:
            self._used[reserved] = max(0, self._used[reserved] - len(proven.body))

    def _judge(
        self, proven: ProvenEvent, *, is_full: bool, unlimited: bool
    ) -> CommunityError | None:
        key = self._key_of(proven)
        if is_full and not key[1]:
            self.refused[DISK] += 1
            return self._no_room()
        if not unlimited and self._exceeds(key, len(proven.body)):
            self.refused[QUOTA] += 1
            return self._too_much()
        if proven.event.digest not in self._reserved:
            self._reserved[proven.event.digest] = key
            self._used[key] += len(proven.body)
        return None

    def _exceeds(self, key: _Key, size: int) -> bool:
        most = self._limits.author_bytes_per_day
        return bool(most) and self._used[key] + size > most

    def _key_of(self, proven: ProvenEvent) -> _Key:
        event = proven.event
        return self._key(event.author, is_membership=event.event_type in MEMBERSHIP_TYPES)

    def _key(self, author: str, *, is_membership: bool) -> _Key:
        is_known = self._folding.state.roster.is_known(author)
        return (author if is_known else "", is_membership)

    def _is_full(self) -> bool:
        if not self._limits.min_free_bytes:
            return False
        try:
            return shutil.disk_usage(self._folder).free < self._limits.min_free_bytes
        except OSError:
            return False  # the store reports the error of the disk

    def _today(self) -> int:
        return int(self._clock.now() // DAY_SECONDS)

    def _turn(self) -> None:
        today = self._today()
        if today != self._day:
            self._day = today
            self._used.clear()

    def _too_much(self) -> CommunityError:
        left = (self._day + 1) * DAY_SECONDS - self._clock.now()
        return CommunityError(
            Code.CAPACITY_EXCEEDED,
            f"this node has accepted {self._limits.author_bytes_per_day} bytes from that author "
            "today, and accepts no more until tomorrow",
            mend="raise [community] author_bytes_per_day where that is too little",
            details={"retry_after_ms": int(left * 1000) + 1},
        )

    def _no_room(self) -> CommunityError:
        return CommunityError(
            Code.CAPACITY_EXCEEDED,
            "this node's disk is nearly full, and it accepts no content until there is space",
            mend="free some space, or lower [community] min_free_bytes",
            details={"retry_after_ms": 60_000},
        )


INTAKE_BATCH: Final = 512
"""About how many events are proven and settled together."""

# One batch is proven while another is stored and a third is folded.
_UNDER_WAY: Final = 3


@dataclass(frozen=True, slots=True)
class RefusedEvent:
    """A rejected event, by its index among the received ones."""

    index: int
    code: Code
    reason: str


@dataclass(frozen=True, slots=True)
class IntakeReceipt:
    """Counts of new events (whatever their verdict) and duplicates, and the rejected events."""

    accepted: int = 0
    duplicates: int = 0
    rejected: tuple[RefusedEvent, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class _IntakeCall:
    raws: Sequence[bytes]
    receipt: asyncio.Future[IntakeReceipt]


class Intake:
    """Proves and stores received events in batches; used on one event loop."""

    def __init__(self, log: "EventLog", provers: ProverPool | None) -> None:
        self._log = log
        self._provers = provers
        self._waiting: list[_IntakeCall] = []
        self._running: set[asyncio.Task[None]] = set()
        self._last = asyncio.Event()
        self._last.set()
        self._closed = False

    async def receive(self, raws: Sequence[bytes]) -> IntakeReceipt:
        """See `EventLog.receive`."""
        if self._closed:
            raise CommunityError(Code.PARTITION, "the log is closed")
        if not raws:
            return IntakeReceipt()
        loop = asyncio.get_running_loop()
        calls = [
            _IntakeCall(raws[start : start + INTAKE_BATCH], loop.create_future())
            for start in range(0, len(raws), INTAKE_BATCH)
        ]
        if not self._waiting:
            # Later in this iteration of the loop, so that all its callers share a batch.
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
        """Refuse new events and finish those that were received."""
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

    def _take(self) -> list[_IntakeCall]:
        size = count = 0
        for call in self._waiting:
            if count and size + len(call.raws) > INTAKE_BATCH:
                break
            size += len(call.raws)
            count += 1
        calls, self._waiting = self._waiting[:count], self._waiting[count:]
        return calls

    async def _run(self, calls: Sequence[_IntakeCall]) -> None:
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
        # Stored in the order of arrival, because a late event makes the fold rewind.
        before, self._last = self._last, asyncio.Event()
        last = self._last
        try:
            proven = await self._prove(raws)
            await before.wait()
        finally:
            # The next batch is woken after this one, so that it is stored after it.
            last.set()
        fresh = iter(await self._settle([each for each in proven if isinstance(each, ProvenEvent)]))
        return [next(fresh) if isinstance(each, ProvenEvent) else each for each in proven]

    async def _prove(self, raws: Sequence[bytes]) -> Sequence[ProofOutcome]:
        log, quota = self._log, self._log.quota
        if self._provers is not None:
            proven = await self._provers.prove(raws, log.community_id)
        else:
            proven = await asyncio.to_thread(prove_events, raws, log.community_id)
        now = log.clock.now()
        timely: list[ProofOutcome] = [too_early(each, now) or each for each in proven]
        quota.refused[EARLY] += sum(old is not new for old, new in zip(proven, timely, strict=True))
        known: set[Position] = set()
        if not quota.has_room(timely):
            places = [each.event.position for each in timely if isinstance(each, ProvenEvent)]
            known = await log.store.read(lambda c: store.present_positions(c, log.number, places))
        return quota.admit(timely, known, unlimited=log.is_catching_up)

    async def _settle(self, proven: Sequence[ProvenEvent]) -> Sequence[bool]:
        stored: Sequence[bool] = [False] * len(proven)
        try:
            stored = await self._log.store_proven(proven)
        finally:
            for each, is_new in zip(proven, stored, strict=True):
                self._log.quota.settle(each, stored=is_new)
        return stored


def _receipt(outcomes: Sequence[bool | CommunityError]) -> IntakeReceipt:
    return IntakeReceipt(
        sum(outcome is True for outcome in outcomes),
        sum(outcome is False for outcome in outcomes),
        tuple(
            RefusedEvent(index, outcome.code, str(outcome))
            for index, outcome in enumerate(outcomes)
            if isinstance(outcome, CommunityError)
        ),
    )


def _joined(receipts: Sequence[IntakeReceipt]) -> IntakeReceipt:
    return IntakeReceipt(
        sum(each.accepted for each in receipts),
        sum(each.duplicates for each in receipts),
        tuple(
            RefusedEvent(number * INTAKE_BATCH + refused.index, refused.code, refused.reason)
            for number, each in enumerate(receipts)
            for refused in each.rejected
        ),
    )


if __name__ == "__main__":
    serve_proofs(sys.stdin.buffer, sys.stdout.buffer)
