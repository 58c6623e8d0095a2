"""The message of the reconciliation protocol: statements about ranges, and event bodies."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from accord.community.errors import Code, CommunityError
from accord.community.rules.sync_index import FIRST_BOUND, LAST_BOUND, RECORD_BYTES, shared_bytes

MESSAGE_VERSION: Final = 1
SALT_BYTES: Final = 8
FINGERPRINT_BYTES: Final = 6
ID_BYTES: Final = 5
MAX_SYNC_RANGES: Final = 8192
MAX_SYNC_BODY: Final = 260 * 1024

_LAMPORT: Final = 8
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
    return CommunityError(Code.BAD_REQUEST, what, mend=mend)


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
