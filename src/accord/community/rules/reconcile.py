"""Range-based set reconciliation: make two logs equal in few round trips and few bytes.

First the index of a log and the form of messages (docs/concepts/sync.md), then the two sides.
Fingerprints and short ids depend on the session's salt. Statements of the other side become tasks,
and as many tasks as fit become one message. The responder keeps no state.
"""

from base64 import b32encode
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from itertools import accumulate, chain, islice
from math import ceil, log
from typing import Final, NamedTuple

from blake3 import blake3

from accord.community.errors import Code, CommunityError, bad_request

SyncItem = tuple[int, str, bytes]
"""Lamport, event id (a ULID) and digest: a `Position` of the log."""

RECORD_BYTES: Final = 56
"""Bytes of a record: 8 of lamport, 16 of event id, 32 of digest, so that bytes sort as items do."""

DIGEST_OFFSET: Final = RECORD_BYTES - 32
"""Where the digest begins."""

FIRST_BOUND: Final = b""
LAST_BOUND: Final = b"\xff" * 8
"""The bounds of everything; a bound is a lamport in 8 bytes and as much of the rest as it takes."""

_FULL: Final = 2048
_BATCH: Final = 16_384
_LAMPORT: Final = 8
_TO_BASE32: Final = str.maketrans("JKMNPQRSTVWXYZ", "IJKLMNOPQRSTUV")
_FROM_RFC4648: Final = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", b"0123456789ABCDEFGHJKMNPQRSTVWXYZ"
)


def encode_item(item: SyncItem) -> bytes:
    """The record of an item."""
    lamport, event_id, digest = item
    number = int(event_id.translate(_TO_BASE32), 32)
    return lamport.to_bytes(_LAMPORT) + number.to_bytes(16) + digest


def decode_item(record: bytes) -> SyncItem:
    """The item of a record."""
    # 20 bytes are 32 characters without padding; a ULID is the last 26 of them.
    event_id = b32encode(bytes(4) + record[_LAMPORT:DIGEST_OFFSET])[6:].translate(_FROM_RFC4648)
    return int.from_bytes(record[:_LAMPORT]), event_id.decode(), record[DIGEST_OFFSET:]


def shared_bytes(first: bytes, second: bytes) -> int:
    """The length of the common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))


class SyncIndex:
    """A sorted set of items; ranks count from 0 in the total order.

    An insert replaces only the blocks that it touches. A thread that reads while another inserts
    must use a `snapshot`.
    """

    def __init__(self, items: Iterable[SyncItem] = ()) -> None:
        self._blocks: list[bytes] = []
        self._firsts: list[bytes] = []
        self._starts: list[int] = [0]
        self.insert(items)

    def __len__(self) -> int:
        return self._starts[-1]

    def __contains__(self, item: SyncItem) -> bool:
        wanted = encode_item(item)
        at = bisect_right(self._firsts, wanted) - 1
        return at >= 0 and _holds(self._blocks[at], _rank(self._blocks[at], wanted), wanted)

    def snapshot(self) -> "SyncIndex":
        """A copy that shares the immutable blocks."""
        copy = SyncIndex()
        copy._blocks = self._blocks.copy()
        copy._firsts = self._firsts.copy()
        copy._starts = self._starts
        return copy

    def insert(self, items: Iterable[SyncItem]) -> int:
        """Add items in any order; returns how many were new. Sorted input is fastest."""
        before = len(self)
        remaining = iter(items)
        while batch := sorted({encode_item(item) for item in islice(remaining, _BATCH)}):
            self._merge(batch)
        return len(self) - before

    def rank(self, bound: bytes) -> int:
        """How many items are below a bound."""
        at = bisect_right(self._firsts, bound) - 1
        return self._starts[at] + _rank(self._blocks[at], bound) if at >= 0 else 0

    def separator(self, rank: int, slack: int = 0) -> bytes:
        """The shortest bound between the item of a rank and the one before it.

        If lamports tie the bound is longer, unless it may be below all of them: at most `slack`
        items before the rank.
        """
        if rank >= len(self):
            return LAST_BOUND
        if rank <= 0:
            return FIRST_BOUND
        above, below = self._record(rank), self._record(rank - 1)
        common = shared_bytes(above, below)
        lamport = above[:_LAMPORT]
        is_short = common < _LAMPORT or (slack > 0 and self.rank(lamport) >= rank - slack)
        return lamport if is_short else above[: common + 1]

    def slices(self, start: int, stop: int) -> Iterator[bytes]:
        """The records from one rank up to another, in blocks."""
        at = bisect_right(self._starts, start) - 1
        while start < stop:
            first, end = self._starts[at], min(stop, self._starts[at + 1])
            yield self._blocks[at][(start - first) * RECORD_BYTES : (end - first) * RECORD_BYTES]
            start, at = end, at + 1

    def records(self, start: int, stop: int) -> Iterator[bytes]:
        """The records from one rank up to another, one by one."""
        for piece in self.slices(start, stop):
            for at in range(0, len(piece), RECORD_BYTES):
                yield piece[at : at + RECORD_BYTES]

    def _record(self, rank: int) -> bytes:
        at = bisect_right(self._starts, rank) - 1
        offset = (rank - self._starts[at]) * RECORD_BYTES
        return self._blocks[at][offset : offset + RECORD_BYTES]

    def _merge(self, batch: list[bytes]) -> None:
        while batch:
            at = max(bisect_right(self._firsts, batch[-1]) - 1, 0)
            block = self._blocks[at] if self._blocks else b""
            start = bisect_left(batch, self._firsts[at]) if at else 0
            pieces = _blocks_of(_merged(block, batch[start:]))
            self._blocks[at : at + 1] = pieces
            self._firsts[at : at + 1] = [piece[:RECORD_BYTES] for piece in pieces]
            del batch[start:]
        self._starts = [0, *accumulate(len(block) // RECORD_BYTES for block in self._blocks)]


def _rank(block: bytes, bound: bytes) -> int:
    return bisect_left(
        range(len(block) // RECORD_BYTES),
        bound,
        key=lambda at: block[at * RECORD_BYTES : (at + 1) * RECORD_BYTES],
    )


def _holds(block: bytes, rank: int, wanted: bytes) -> bool:
    return block[rank * RECORD_BYTES : (rank + 1) * RECORD_BYTES] == wanted


def _merged(block: bytes, batch: list[bytes]) -> bytes:
    if not block or block[-RECORD_BYTES:] < batch[0]:
        return b"".join((block, *batch))
    parts: list[bytes] = []
    done = 0
    for wanted in batch:
        rank = _rank(block, wanted)
        if not _holds(block, rank, wanted):
            parts += (block[done * RECORD_BYTES : rank * RECORD_BYTES], wanted)
            done = rank
    return b"".join((*parts, block[done * RECORD_BYTES :]))


def _blocks_of(block: bytes) -> list[bytes]:
    step = (_FULL // 2 if len(block) > _FULL * RECORD_BYTES else _FULL) * RECORD_BYTES
    return [block[at : at + step] for at in range(0, len(block), step)]


MESSAGE_VERSION: Final = 1
SALT_BYTES: Final = 8
FINGERPRINT_BYTES: Final = 6
ID_BYTES: Final = 5
MAX_SYNC_RANGES: Final = 8192
MAX_SYNC_BODY: Final = 260 * 1024

_MAX_LAMPORT: Final = 2**53
_MAX_VARINT_BYTES: Final = 9
_TAIL: Final = 4
_SHARED: Final = RECORD_BYTES - _LAMPORT + 1


class RangeMode(IntEnum):
    """The kind of statement about a range."""

    SETTLED = 0
    """Nothing: it is equal, done, or not the subject."""
    FINGERPRINT = 1
    """This is the fingerprint of what I hold here."""
    ITEMS = 2
    """This is all that I hold here, by short ids."""
    WANT = 3
    """Of these, send me what lies here."""


class SyncRange(NamedTuple):
    """A statement about the items from `lower` up to, not including, `upper`."""

    lower: bytes
    upper: bytes
    mode: RangeMode
    fingerprint: bytes = b""
    ids: tuple[bytes, ...] = ()


class SyncBody(NamedTuple):
    """An event in canonical JSON, or the stub of a pruned one; opaque here."""

    raw: bytes
    is_stub: bool = False


class SyncMessage(NamedTuple):
    """One message.

    Attributes:
        salt: Chosen at random by the initiator for one session.
        room: How many bytes the other side's next message may have.
        ranges: In order. What is above the last one is not handled in this message.
    """

    salt: bytes
    room: int
    ranges: Sequence[SyncRange]
    bodies: Sequence[SyncBody]


@dataclass(frozen=True, slots=True)
class SyncLimits:
    """The limits of one message and one session.

    Attributes:
        message: Bytes of a message; its first body may exceed it, so that there is progress.
        looks: Items compared by short id for one message.
        rounds: Round trips in one session.
        pending: Ranges and ids that an initiator remembers at once.
    """

    message: int = 1024 * 1024
    looks: int = 32_768
    rounds: int = 10_000
    pending: int = 250_000


def encode_message(message: SyncMessage) -> bytes:
    """Encode a message."""
    out = bytearray((MESSAGE_VERSION,))
    out += message.salt
    _put(out, message.room)
    _put(out, len(message.ranges))
    writer = _BoundWriter(out)
    for each in message.ranges:
        writer.put(each)
        if each.mode is RangeMode.FINGERPRINT:
            out += each.fingerprint
        elif each.mode is not RangeMode.SETTLED:
            _put(out, len(each.ids))
            out += b"".join(each.ids)
    _put(out, len(message.bodies))
    for body in message.bodies:
        _put(out, len(body.raw) << 1 | body.is_stub)
        out += body.raw
    return bytes(out)


def decode_message(raw: bytes, limits: SyncLimits) -> SyncMessage:
    """Decode a message; raises `bad_request` if it is malformed or above the limits."""
    if len(raw) > limits.message + MAX_SYNC_BODY:
        raise bad_message(f"a message of {len(raw)} bytes is above the limit of {limits.message}")
    reader = _Reader(raw)
    if (version := reader.take(1)[0]) != MESSAGE_VERSION:
        raise bad_message(
            f"version {version} of reconciliation is not known", mend=f"use {MESSAGE_VERSION}"
        )
    salt, room = reader.take(SALT_BYTES), reader.number()
    count = reader.number()
    if count > MAX_SYNC_RANGES:
        raise bad_message(f"{count} ranges are above the limit of {MAX_SYNC_RANGES}")
    ranges: list[SyncRange] = []
    lower = FIRST_BOUND
    for _ in range(count):
        ranges.append(reader.range(lower))
        lower = ranges[-1].upper
    bodies = [reader.body() for _ in range(reader.count(1))]
    reader.finish()
    return SyncMessage(salt, room, ranges, bodies)


def bad_message(what: str, mend: str | None = None) -> CommunityError:
    """The error for a malformed message."""
    return bad_request(what, mend=mend)


def _put(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


class _BoundWriter:
    """Writes upper bounds, each relative to the previous ones."""

    def __init__(self, out: bytearray) -> None:
        self._out = out
        self._lamport = 0
        self._tail = b""

    def put(self, each: SyncRange) -> None:
        if each.upper == LAST_BOUND:
            self._out += bytes((_TAIL | each.mode, 0))
            return
        lamport, tail = int.from_bytes(each.upper[:_LAMPORT]), each.upper[_LAMPORT:]
        _put(self._out, lamport - self._lamport << 3 | (_TAIL if tail else 0) | each.mode)
        self._lamport = lamport
        if tail:
            # At least one byte is new, so that the number is never 0.
            shared = shared_bytes(self._tail, tail[:-1])
            _put(self._out, (len(tail) - shared) * _SHARED + shared)
            self._out += tail[shared:]
            self._tail = tail


class _Reader:
    """Reads a message; a missing part raises `bad_request`."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0
        self._tail = b""

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._raw):
            raise bad_message("a message ends too early")
        part = self._raw[self._at : end]
        self._at = end
        return part

    def number(self) -> int:
        value = 0
        for shift in range(0, 7 * _MAX_VARINT_BYTES, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise bad_message("a number in a message is too long")

    def count(self, width: int) -> int:
        count = self.number()
        if count * width > len(self._raw) - self._at:
            raise bad_message("a message announces more than it holds")
        return count

    def range(self, lower: bytes) -> SyncRange:
        head = self.number()
        mode = RangeMode(head & 3)
        upper = self._bound(lower, head)
        if upper <= lower:
            raise bad_message("the ranges of a message are not in order")
        if mode is RangeMode.FINGERPRINT:
            return SyncRange(lower, upper, mode, self.take(FINGERPRINT_BYTES))
        if mode is RangeMode.SETTLED:
            return SyncRange(lower, upper, mode)
        ids = tuple(self.take(ID_BYTES) for _ in range(self.count(ID_BYTES)))
        return SyncRange(lower, upper, mode, ids=ids)

    def _bound(self, lower: bytes, head: int) -> bytes:
        tail = b""
        if head & _TAIL:
            new, shared = divmod(self.number(), _SHARED)
            if head < 8 and new == shared == 0:
                return LAST_BOUND
            if new == 0 or shared > len(self._tail) or new + shared > RECORD_BYTES - _LAMPORT:
                raise bad_message("a bound in a message has no such length")
            tail = self._tail = self._tail[:shared] + self.take(new)
        lamport = int.from_bytes(lower[:_LAMPORT]) + (head >> 3)
        if lamport > _MAX_LAMPORT:
            raise bad_message("a bound in a message is above every lamport")
        return lamport.to_bytes(_LAMPORT) + tail

    def body(self) -> SyncBody:
        head = self.number()
        if head >> 1 > MAX_SYNC_BODY:
            raise bad_message(f"a body of {head >> 1} bytes is above the limit of {MAX_SYNC_BODY}")
        return SyncBody(self.take(head >> 1), bool(head & 1))

    def finish(self) -> None:
        if self._at != len(self._raw):
            raise bad_message("a message goes on after its end")


_FINGERPRINTS: Final = "accord community reconcile v1 fingerprints"
_IDS: Final = "accord community reconcile v1 short ids"


class SaltedIndex:
    """A view of an index with a salt."""

    def __init__(self, index: SyncIndex, salt: bytes) -> None:
        self._index = index
        self._fingerprints = blake3(salt, derive_key_context=_FINGERPRINTS).digest()
        self._ids = blake3(salt, derive_key_context=_IDS).digest()

    def rank(self, bound: bytes) -> int:
        """How many items are below a bound."""
        return self._index.rank(bound)

    def fingerprint(self, start: int, stop: int) -> bytes:
        """The fingerprint of the items between two ranks."""
        hasher = blake3(key=self._fingerprints)
        for piece in self._index.slices(start, stop):
            hasher.update(piece)
        return hasher.digest(FINGERPRINT_BYTES)

    def items(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
        """Short id and record of the items between two ranks."""
        for record in self._index.records(start, stop):
            yield blake3(record[DIGEST_OFFSET:], key=self._ids).digest(ID_BYTES), record

    def separator(self, rank: int, slack: int = 0) -> bytes:
        """The shortest bound below the item of a rank, or of one at most `slack` before it."""
        return self._index.separator(rank, slack)


LEAF: Final = 12
"""A range of so many items is listed, not split."""

_AIM: Final = 8
_FIRST_PARTS: Final = 16
_WIDEST: Final = 128
_NARROWEST: Final = 4
_SPLITS: Final = 256


class RangeAction(Enum):
    """What to do with a range."""

    PROBE = "send the fingerprint"
    LIST = "list the items"
    SETTLE = "they listed theirs: send what they lack, want what we lack"
    SEND = "send what they want"
    WANT = "want what we lack"


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A range to handle, with the short ids concerned."""

    lower: bytes
    upper: bytes
    do: RangeAction
    ids: tuple[bytes, ...] = ()


def first_tasks(salted: SaltedIndex) -> Iterator[RangeTask]:
    """The first tasks of a session: few ranges, so that equal logs cost little."""
    count = salted.rank(LAST_BOUND)
    if count <= LEAF:
        yield RangeTask(FIRST_BOUND, LAST_BOUND, RangeAction.LIST)
    else:
        parts = min(_FIRST_PARTS, ceil(count / _AIM))
        yield from _split(salted, FIRST_BOUND, LAST_BOUND, (0, count), parts)


def tasks_from(salted: SaltedIndex, ranges: Iterable[SyncRange]) -> Iterator[RangeTask]:
    """The tasks that follow from the other side's statements."""
    relevant: list[tuple[SyncRange, int, int]] = []
    differing = stop = 0
    for each in ranges:
        start, stop = stop, salted.rank(each.upper)
        if each.mode is RangeMode.FINGERPRINT:
            if each.fingerprint == salted.fingerprint(start, stop):
                continue
            differing += 1
        if each.mode is not RangeMode.SETTLED:
            relevant.append((each, start, stop))
    widest = max(_NARROWEST, min(_WIDEST, _SPLITS // max(differing, 1)))
    for (lower, upper, mode, _, ids), start, stop in relevant:
        if mode is not RangeMode.FINGERPRINT:
            yield RangeTask(
                lower,
                upper,
                RangeAction.SETTLE if mode is RangeMode.ITEMS else RangeAction.SEND,
                ids,
            )
        elif stop - start <= LEAF:
            yield RangeTask(lower, upper, RangeAction.LIST)
        else:
            parts = _parts(stop - start, widest)
            yield from _split(salted, lower, upper, (start, stop), parts)


def _parts(count: int, widest: int) -> int:
    """Into how many even parts to split a range, so that few steps lead to a short list."""
    lists = max(count / _AIM, 2)
    steps = ceil(log(lists, widest))
    parts: float = lists ** (1 / steps)
    return ceil(parts)


def _split(
    salted: SaltedIndex, lower: bytes, upper: bytes, ranks: tuple[int, int], parts: int
) -> Iterator[RangeTask]:
    start, count = ranks[0], ranks[1] - ranks[0]
    for part in range(1, parts):
        bound = salted.separator(start + count * part // parts, count // parts // 4)
        yield RangeTask(lower, bound, RangeAction.PROBE)
        lower = bound
    yield RangeTask(lower, upper, RangeAction.PROBE)


FetchBodies = Callable[[Sequence[SyncItem]], Iterable[SyncBody | None]]
"""Gives the bodies of items in order, None for what is gone; read as far as there is room."""

TYPICAL_BODY: Final = 700
MOST_TASKS: Final = MAX_SYNC_RANGES // 2 - 1
"""In one message: between two ranges there may be a settled one."""

_RANGE_BYTES: Final = 12
_BODY_BYTES: Final = 4
_ANSWER_BYTES: Final = 40


@dataclass(frozen=True, slots=True)
class MessageRoom:
    """The limits of one message.

    Attributes:
        message: Its bytes.
        looks: Items compared by short id for it.
        answer: Bytes of the answer that it may cause; None if there is no answer.
        typical: The usual length of a body.
    """

    message: int
    looks: int
    answer: int | None = None
    typical: int = TYPICAL_BODY


@dataclass(slots=True)
class Turn:
    """The contents of one message (without settled ranges), and the remaining tasks."""

    ranges: list[SyncRange] = field(default_factory=list)
    bodies: list[SyncBody] = field(default_factory=list)
    rest: list[RangeTask] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The statements of a task in this message, and the bodies for it.

    `said` holds if all bodies fit; `sent` has each record with the bound that it reaches.
    """

    task: RangeTask
    said: SyncRange
    sent: list[tuple[bytes, bytes]] = field(default_factory=list)
    looks: int = 0

    @property
    def size(self) -> int:
        return _RANGE_BYTES + len(self.said.upper) + len(self.said.ids) * ID_BYTES


def compose_turn(
    salted: SaltedIndex, tasks: Sequence[RangeTask], fetch: FetchBodies, room: MessageRoom
) -> Turn:
    """Put as many tasks as fit into one message; at least a part of the first."""
    plans = _plans(salted, tasks, room)
    wanted = [decode_item(record) for plan in plans for record, _ in plan.sent]
    bodies = iter(fetch(wanted) if wanted else ())
    turn = Turn()
    size = 0
    for at, plan in enumerate(plans):
        reached, size = _load(turn, plan, bodies, size + plan.size, room.message)
        if reached == plan.task.upper:
            if plan.said.mode is not RangeMode.SETTLED:
                turn.ranges.append(plan.said)
            continue
        turn.rest = [_cut(salted, turn, plan.task, reached), *tasks[at + 1 :]]
        return turn
    turn.rest = list(tasks[len(plans) :])
    return turn


def _plans(salted: SaltedIndex, tasks: Sequence[RangeTask], room: MessageRoom) -> list[_Plan]:
    plans: list[_Plan] = []
    size = answer = looks = 0
    for task in tasks:
        plan = _plan(salted, task, room.looks - looks, (room.message - size) // room.typical)
        plans.append(plan)
        size += plan.size + len(plan.sent) * room.typical
        answer += _answer(plan.said, room.typical)
        looks += plan.looks
        if (
            plan.said.upper != task.upper
            or size >= room.message
            or looks >= room.looks
            or (room.answer is not None and answer >= room.answer)
            or len(plans) >= MOST_TASKS
        ):
            break
    return plans


def _plan(salted: SaltedIndex, task: RangeTask, looks: int, bodies: int) -> _Plan:
    lower, upper = task.lower, task.upper
    if task.do is RangeAction.WANT:
        return _Plan(task, SyncRange(lower, upper, RangeMode.WANT, ids=task.ids))
    start, stop = salted.rank(lower), salted.rank(upper)
    if task.do is RangeAction.LIST and stop - start <= LEAF:
        ids = tuple(short for short, _ in salted.items(start, stop))
        return _Plan(task, SyncRange(lower, upper, RangeMode.ITEMS, ids=ids))
    if task.do in (RangeAction.LIST, RangeAction.PROBE):
        mark = salted.fingerprint(start, stop)
        return _Plan(task, SyncRange(lower, upper, RangeMode.FINGERPRINT, mark))
    theirs = set(task.ids)
    sent: list[tuple[bytes, bytes]] = []
    rank = start
    for short, record in salted.items(start, stop):
        rank += 1
        if (short in theirs) is (task.do is RangeAction.SEND):
            sent.append((record, upper if rank == stop else salted.separator(rank)))
        theirs.discard(short)
        if rank - start >= looks or len(sent) >= bodies:
            break
    end = upper if rank == stop else salted.separator(rank)
    return _Plan(task, _said(task, end, theirs), sent, rank - start)


def _said(task: RangeTask, upper: bytes, unmatched: set[bytes]) -> SyncRange:
    """The statement about a task up to a bound; wanting ids of items above it has no effect."""
    ids = tuple(short for short in task.ids if short in unmatched)
    if task.do is RangeAction.SETTLE and ids:
        return SyncRange(task.lower, upper, RangeMode.WANT, ids=ids)
    return SyncRange(task.lower, upper, RangeMode.SETTLED)


def _answer(said: SyncRange, typical: int) -> int:
    bodies = {RangeMode.ITEMS: 1, RangeMode.WANT: len(said.ids)}.get(said.mode, 0)
    return _ANSWER_BYTES + bodies * typical


def _load(
    turn: Turn, plan: _Plan, bodies: Iterator[SyncBody | None], size: int, most: int
) -> tuple[bytes, int]:
    """Put the bodies of a plan into the message; returns the bound reached and the size."""
    reached = plan.task.lower
    if size > most and (turn.ranges or turn.bodies):
        return reached, size
    for _, bound in plan.sent:
        body = next(bodies, None)
        if body is not None and len(body.raw) <= MAX_SYNC_BODY:
            size += len(body.raw) + _BODY_BYTES
            if size > most and turn.bodies:
                return reached, size
            turn.bodies.append(body)
        reached = bound
    return plan.said.upper, size


def _cut(salted: SaltedIndex, turn: Turn, task: RangeTask, reached: bytes) -> RangeTask:
    """Split a task at the bound that was reached; returns the rest."""
    if reached == task.lower:
        return task
    done = salted.items(salted.rank(task.lower), salted.rank(reached))
    unmatched = set(task.ids) - {short for short, _ in done}
    said = _said(task, reached, unmatched)
    if said.mode is not RangeMode.SETTLED:
        turn.ranges.append(said)
    return replace(task, lower=reached, ids=tuple(each for each in task.ids if each in unmatched))


_ASKED_ACTIONS = {
    RangeMode.FINGERPRINT: RangeAction.PROBE,
    RangeMode.ITEMS: RangeAction.LIST,
    RangeMode.WANT: RangeAction.WANT,
}
_ALLOWED_ANSWERS = {
    RangeMode.FINGERPRINT: (RangeMode.FINGERPRINT,),
    RangeMode.ITEMS: (RangeMode.FINGERPRINT,),
    RangeMode.WANT: (RangeMode.ITEMS,),
}


@dataclass(frozen=True, slots=True)
class SyncReply:
    """The reply of a responder, and the bodies that came with the request."""

    reply: bytes
    received: tuple[SyncBody, ...]


def respond_sync(
    index: SyncIndex, request: bytes, fetch: FetchBodies, limits: SyncLimits | None = None
) -> SyncReply:
    """Answer one request of any initiator; raises `bad_request` if it is malformed."""
    limits = limits or SyncLimits()
    asked = decode_message(request, limits)
    salted = SaltedIndex(index, asked.salt)
    # One task more than a message can hold shows where the reply ends.
    tasks = list(islice(tasks_from(salted, asked.ranges), MOST_TASKS + 1))
    turn = compose_turn(
        salted, tasks, fetch, MessageRoom(min(asked.room, limits.message), limits.looks)
    )
    end = turn.rest[0].lower if turn.rest else LAST_BOUND
    ranges = [*_with_gaps(turn.ranges, end)]
    reply = encode_message(SyncMessage(asked.salt, limits.message, ranges, turn.bodies))
    return SyncReply(reply, tuple(asked.bodies))


class SyncInitiator:
    """One session with one node.

    While `request()` returns bytes, send them and pass the reply to `receive`. After a loss the
    request is simply sent again. The index may grow meanwhile; `salt` must be unpredictable.
    """

    def __init__(
        self, index: SyncIndex, salt: bytes, fetch: FetchBodies, limits: SyncLimits | None = None
    ) -> None:
        if len(salt) != SALT_BYTES:
            raise ValueError(f"a salt has {SALT_BYTES} bytes")
        self._salted = SaltedIndex(index, salt)
        self._salt = salt
        self._fetch = fetch
        self._limits = limits or SyncLimits()
        self._room = self._limits.message
        self._tasks = list(first_tasks(self._salted))
        self._asked: list[SyncRange] = []
        self._waiting: bytes | None = None
        self._bodies = 1
        self._body_bytes = TYPICAL_BODY
        self.rounds = 0

    def request(self) -> bytes | None:
        """The next request, the same until it is answered; None when the logs are equal.

        Raises `capacity_exceeded` after too many round trips.
        """
        if self._waiting is None and self._tasks:
            if self.rounds >= self._limits.rounds:
                raise CommunityError(
                    Code.CAPACITY_EXCEEDED,
                    f"after {self.rounds} round trips the logs still differ",
                    mend="begin another session",
                )
            room = MessageRoom(
                self._room,
                self._limits.looks,
                self._limits.message,
                max(1, self._body_bytes // self._bodies),
            )
            turn = compose_turn(self._salted, self._tasks, self._fetch, room)
            self._tasks, self._asked = turn.rest, turn.ranges
            ranges = [*_with_gaps(turn.ranges, None)]
            self._waiting = encode_message(
                SyncMessage(self._salt, self._limits.message, ranges, turn.bodies)
            )
        return self._waiting

    def receive(self, reply: bytes) -> tuple[SyncBody, ...]:
        """Process the reply and return its bodies; a bad one raises and changes nothing."""
        if self._waiting is None:
            raise bad_message("there is no request that this could answer")
        answer = decode_message(reply, self._limits)
        if answer.salt != self._salt:
            raise bad_message("the reply belongs to another session")
        _check_reply(self._asked, answer.ranges)
        end = answer.ranges[-1].upper if answer.ranges else FIRST_BOUND
        if self._asked and end <= self._asked[0].lower:
            raise bad_message("the reply handles nothing of what was asked")
        tasks = [
            *tasks_from(self._salted, answer.ranges),
            *_unanswered(self._asked, end),
            *self._tasks,
        ]
        if sum(1 + len(task.ids) for task in tasks) > self._limits.pending:
            raise bad_message("the reply leaves more open than a session may remember")
        tasks.sort(key=lambda task: task.lower)
        self._tasks, self._waiting = tasks, None
        self._room = min(self._limits.message, answer.room)
        self._bodies += len(answer.bodies)
        self._body_bytes += sum(len(body.raw) for body in answer.bodies)
        self.rounds += 1
        return tuple(answer.bodies)


def _with_gaps(ranges: Sequence[SyncRange], end: bytes | None) -> Iterable[SyncRange]:
    """The ranges of a message, with the settled ranges between them and up to the end."""
    closing = () if end is None else (SyncRange(end, end, RangeMode.SETTLED),)
    lower = FIRST_BOUND
    for each in chain(ranges, closing):
        if lower < each.lower:
            yield SyncRange(lower, each.lower, RangeMode.SETTLED)
        if each.lower < each.upper:
            yield each
        lower = each.upper


def _unanswered(asked: Iterable[SyncRange], end: bytes) -> Iterable[RangeTask]:
    for each in asked:
        if each.upper > end:
            yield RangeTask(max(each.lower, end), each.upper, _ASKED_ACTIONS[each.mode], each.ids)


def _check_reply(asked: Sequence[SyncRange], answers: Iterable[SyncRange]) -> None:
    """Refuse what was not asked for, so that ranges shrink in each round and a session ends."""
    at = 0
    for each in answers:
        if each.mode is RangeMode.SETTLED:
            continue
        while at < len(asked) and asked[at].upper <= each.lower:
            at += 1
        if (
            at == len(asked)
            or each.lower < asked[at].lower
            or each.upper > asked[at].upper
            or asked[at].mode not in _ALLOWED_ANSWERS[each.mode]
        ):
            raise bad_message("the reply speaks of what was not asked")
