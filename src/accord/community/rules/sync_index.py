"""The items of one log in total order, compact in memory and quick to split."""

from base64 import b32encode
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from typing import Final

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
