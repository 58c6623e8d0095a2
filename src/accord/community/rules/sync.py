"""Items, fingerprints and messages of log reconciliation (docs/concepts/sync.md)."""

from base64 import b32encode
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import accumulate, islice
from typing import Final, NamedTuple

from accord.community.errors import CommunityError, bad_request

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
            pieces = _cut(_merged(block, batch[start:]))
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


def _cut(block: bytes) -> list[bytes]:
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
