"""What is left of an event when its body is pruned, and the form in which peers give it. Pure.

A stub keeps an event's place, so that reconciliation still counts it. It proves nothing: no
signature covers it without the body. So it never enters a state, is taken only where an anchor has
settled the past, and never stands in the way of the event itself.
"""

import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from accord.community.envelope import MAX_LAMPORT, Position, forms
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical
from accord.kernel.ulid import is_ulid

MAX_BYTES: Final = 2048
"""The longest stub, as canonical JSON."""

_HASH: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)
_WORD: Final = re.compile(r"[a-z][a-z0-9_.]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stub:
    """A pruned event: its place, its link in the author's chain, and its settled verdict."""

    lamport: int
    event_id: str
    hash: str
    author: str
    author_seq: int | None
    prev: str | None
    event_type: str
    verdict: str
    rule: str | None

    @property
    def position(self) -> Position:
        """Its place in the total order."""
        return Position(self.lamport, self.event_id, bytes.fromhex(self.hash[7:]))

    def encode(self) -> bytes:
        """The stub in canonical JSON."""
        return canonical.encode(asdict(self))


def read_stub(raw: bytes) -> Stub:
    """Read a stub strictly.

    Raises:
        CommunityError: `bad_request`.
    """
    try:
        payload = canonical.decode(raw, max_bytes=MAX_BYTES)
    except canonical.CanonicalError as error:
        raise _bad(str(error)) from None
    names = Stub.__slots__
    if not isinstance(payload, dict) or payload.keys() != set(names):
        raise _bad(f"a stub has exactly the members {', '.join(sorted(names))}")
    for name in names:
        if not _is_right(name, payload[name]):
            raise _bad("this is not a stub", where=f"/{name}")
    return Stub(**payload)


def _is_right(name: str, value: Any) -> bool:
    match name, value:
        case ("author_seq" | "prev" | "rule", None):
            return True
        case "lamport" | "author_seq", int():
            return not isinstance(value, bool) and 0 <= value <= MAX_LAMPORT
        case "event_id", str():
            return is_ulid(value)
        case "hash" | "prev", str():
            return _HASH.fullmatch(value) is not None
        case "author", str():
            return forms.is_id(value)
        case "event_type" | "verdict" | "rule", str():
            return _WORD.fullmatch(value) is not None
    return False


def _bad(what: str, *, where: str | None = None) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, what, where=where)
