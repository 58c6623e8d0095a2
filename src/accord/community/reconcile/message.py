"""The one message of reconciliation, in bytes: what a node says about ranges, and bodies it gives.

Owns the wire form and the limits. Reading refuses whatever is not exactly a message; what the
ranges mean for one's own log is said elsewhere.

    message = version, salt (8), room, count, count * range, count, count * body
    range   = step * 8 + tail * 4 + mode, [tail bound], [fingerprint | count, count * short id]
    body    = length * 2 + stub, bytes

Numbers are varints (7 bits a byte, least first). A range begins where the one before ends. Its
upper bound is given by the step of its lamport and, where lamports tie, by a tail of event id and
digest: a number that says how many bytes it shares with the tail before it and how many are new,
and the new ones. The number 0 means the end of everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from accord.community.errors import Code, CommunityError
from accord.community.reconcile.index import END, START, WIDTH, shared_bytes

VERSION: Final = 1
SALT_BYTES: Final = 8
FINGERPRINT_BYTES: Final = 6
ID_BYTES: Final = 5
MAX_RANGES: Final = 8192
MAX_BODY: Final = 260 * 1024

_LAMPORT: Final = 8
_MAX_LAMPORT: Final = 2**53
_MAX_VARINT_BYTES: Final = 9
_TAIL: Final = 4
_SHARED: Final = WIDTH - _LAMPORT + 1


class Mode(IntEnum):
    """What is said about a range."""

    SETTLED = 0
    """Nothing: it is equal, done, or not the subject."""
    FINGERPRINT = 1
    """This is the fingerprint of what I hold here."""
    ITEMS = 2
    """This is all that I hold here, by short ids."""
    WANT = 3
    """Of these, send me what lies here."""


class Range(NamedTuple):
    """Something said about the items from `lower` up to, not including, `upper`."""

    lower: bytes
    upper: bytes
    mode: Mode
    fingerprint: bytes = b""
    ids: tuple[bytes, ...] = ()


class Body(NamedTuple):
    """An event in canonical JSON, or the stub of one that was pruned; opaque here."""

    raw: bytes
    is_stub: bool = False


class Message(NamedTuple):
    """What one side says in one turn.

    Attributes:
        salt: Chosen at random by the initiator for one session.
        room: How many bytes the other side's next message may have.
        ranges: In order. What lies above the last one is not handled in this message.
        bodies: What the other side was found to lack.
    """

    salt: bytes
    room: int
    ranges: Sequence[Range]
    bodies: Sequence[Body]


@dataclass(frozen=True, slots=True)
class Limits:
    """What one message and one session may cost.

    Attributes:
        message: Bytes of a message; its first body may go beyond, so that there is always progress.
        looks: Items that are compared by short id for one message.
        rounds: Round trips in one session.
        pending: Ranges and ids that an initiator remembers at once.
    """

    message: int = 1024 * 1024
    looks: int = 32_768
    rounds: int = 10_000
    pending: int = 250_000


def encode(message: Message) -> bytes:
    """Write a message."""
    out = bytearray((VERSION,))
    out += message.salt
    _put(out, message.room)
    _put(out, len(message.ranges))
    writer = _BoundWriter(out)
    for each in message.ranges:
        writer.put(each)
        if each.mode is Mode.FINGERPRINT:
            out += each.fingerprint
        elif each.mode is not Mode.SETTLED:
            _put(out, len(each.ids))
            out += b"".join(each.ids)
    _put(out, len(message.bodies))
    for body in message.bodies:
        _put(out, len(body.raw) << 1 | body.is_stub)
        out += body.raw
    return bytes(out)


def decode(raw: bytes, limits: Limits) -> Message:
    """Read a message.

    Raises:
        CommunityError: It is not one, or is above the limits: `bad_request`.
    """
    if len(raw) > limits.message + MAX_BODY:
        raise bad(f"a message of {len(raw)} bytes is above the limit of {limits.message}")
    reader = _Reader(raw)
    if (version := reader.take(1)[0]) != VERSION:
        raise bad(f"version {version} of reconciliation is not known", mend=f"use {VERSION}")
    salt, room = reader.take(SALT_BYTES), reader.number()
    count = reader.number()
    if count > MAX_RANGES:
        raise bad(f"{count} ranges are above the limit of {MAX_RANGES}")
    ranges: list[Range] = []
    lower = START
    for _ in range(count):
        ranges.append(reader.range(lower))
        lower = ranges[-1].upper
    bodies = [reader.body() for _ in range(reader.count(1))]
    reader.finish()
    return Message(salt, room, ranges, bodies)


def bad(what: str, mend: str | None = None) -> CommunityError:
    """The refusal of a message."""
    return CommunityError(Code.BAD_REQUEST, what, mend=mend)


def _put(out: bytearray, number: int) -> None:
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)


class _BoundWriter:
    """Writes upper bounds, each in terms of those before it."""

    def __init__(self, out: bytearray) -> None:
        self._out = out
        self._lamport = 0
        self._tail = b""

    def put(self, each: Range) -> None:
        if each.upper == END:
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
    """Takes a message apart; anything that is not there is a refusal."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0
        self._tail = b""

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._raw):
            raise bad("a message ends too early")
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
        raise bad("a number in a message is too long")

    def count(self, width: int) -> int:
        count = self.number()
        if count * width > len(self._raw) - self._at:
            raise bad("a message announces more than it holds")
        return count

    def range(self, lower: bytes) -> Range:
        head = self.number()
        mode = Mode(head & 3)
        upper = self._bound(lower, head)
        if upper <= lower:
            raise bad("the ranges of a message are not in order")
        if mode is Mode.FINGERPRINT:
            return Range(lower, upper, mode, self.take(FINGERPRINT_BYTES))
        if mode is Mode.SETTLED:
            return Range(lower, upper, mode)
        ids = tuple(self.take(ID_BYTES) for _ in range(self.count(ID_BYTES)))
        return Range(lower, upper, mode, ids=ids)

    def _bound(self, lower: bytes, head: int) -> bytes:
        tail = b""
        if head & _TAIL:
            new, shared = divmod(self.number(), _SHARED)
            if head < 8 and new == shared == 0:
                return END
            if new == 0 or shared > len(self._tail) or new + shared > WIDTH - _LAMPORT:
                raise bad("a bound in a message has no such length")
            tail = self._tail = self._tail[:shared] + self.take(new)
        lamport = int.from_bytes(lower[:_LAMPORT]) + (head >> 3)
        if lamport > _MAX_LAMPORT:
            raise bad("a bound in a message is above every lamport")
        return lamport.to_bytes(_LAMPORT) + tail

    def body(self) -> Body:
        head = self.number()
        if head >> 1 > MAX_BODY:
            raise bad(f"a body of {head >> 1} bytes is above the limit of {MAX_BODY}")
        return Body(self.take(head >> 1), bool(head & 1))

    def finish(self) -> None:
        if self._at != len(self._raw):
            raise bad("a message goes on after its end")
