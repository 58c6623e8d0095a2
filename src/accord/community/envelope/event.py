"""An event of a community's log: reading, checking, signing.

An event is named by its digest, the BLAKE3 of the bytes that its signature covers; its `event_id`
is only a name that its author chose. Whether an event may stand is the fold's to say, not ours.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson
from blake3 import blake3

from accord.community.envelope import forms, kinds
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical, signing
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import is_ulid

MAX_BYTES: Final = 256 * 1024
"""The largest event, as canonical JSON."""

MAX_LAMPORT: Final = 2**53 - 1

_BLAKE3: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)
_TYPE: Final = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*){1,7}", re.ASCII)
_CHAIN: Final = frozenset({"author_seq", "prev"})
_REQUIRED: Final = frozenset(
    {
        "schema_version",
        "event_id",
        "lamport",
        "wall_clock",
        "community_id",
        "author",
        "event_type",
        "data",
        "signature",
    }
)


class Position(NamedTuple):
    """A place in the total order of a log."""

    lamport: int
    event_id: str
    digest: bytes


@dataclass(frozen=True, slots=True)
class Event:
    """An event as it was signed.

    Attributes:
        digest: BLAKE3 of the signed bytes; two events with one digest are one event.
        author_seq: Its number in the author's chain; None in an unchained event.
        prev: The digest (as text) of the author's previous event; None for the first.
    """

    digest: bytes
    schema_version: int
    event_id: str
    lamport: int
    wall_clock: str
    community_id: str
    author: str
    author_seq: int | None
    prev: str | None
    event_type: str
    data: Mapping[str, Any]
    signature: str

    @property
    def position(self) -> Position:
        """Its place in the total order."""
        return Position(self.lamport, self.event_id, self.digest)

    @property
    def hash(self) -> str:
        """Its digest as text, which is how other events name it."""
        return "blake3:" + self.digest.hex()

    def payload(self) -> dict[str, Any]:
        """The event as a JSON object, signature included."""
        members = {
            "schema_version": self.schema_version,
            "event_id": self.event_id,
            "lamport": self.lamport,
            "wall_clock": self.wall_clock,
            "community_id": self.community_id,
            "author": self.author,
            "event_type": self.event_type,
            "data": self.data,
            "signature": self.signature,
        }
        if self.author_seq is not None:
            members |= {"author_seq": self.author_seq, "prev": self.prev}
        return members

    def encode(self) -> bytes:
        """The event in canonical JSON, signature included."""
        return canonical.encode(self.payload())


class Parsed(NamedTuple):
    """An event that was read, beside the bytes that its signature covers.

    The bytes are needed once, to verify it (`verification.verify`), and not kept in the event.
    """

    event: Event
    signed: bytes


def parse(raw: bytes) -> Event:
    """Read an event strictly: form, types and the schema of its data, not yet its signatures.

    Raises:
        CommunityError: `bad_request`, with what is wrong and where.
    """
    return parse_signed(raw).event


def read(payload: Any) -> Event:
    """Read an event that is JSON already; see `parse`."""
    return read_signed(payload).event


def parse_signed(raw: bytes) -> Parsed:
    """Read an event, and keep the bytes that were signed; see `parse`."""
    try:
        payload = canonical.decode(raw, max_bytes=MAX_BYTES)
    except canonical.CanonicalError as error:
        raise _bad(str(error)) from None
    return read_signed(payload)


def read_signed(payload: Any) -> Parsed:
    """Read an event that is JSON already, and keep the bytes that were signed; see `parse`."""
    if not isinstance(payload, dict):
        raise _bad("an event is a JSON object")
    _check_members(payload)
    signed = forms.signed_bytes(payload)
    if len(signed) > MAX_BYTES:
        raise _bad(f"an event is at most {MAX_BYTES} bytes")
    kinds.check(payload["event_type"], payload["schema_version"], payload["data"])
    return Parsed(_event(payload, blake3(signed).digest()), signed)


def stored(raw: bytes | str, digest: bytes) -> Event:
    """Read an event that this node checked before it stored it; nothing is checked again."""
    return _event(orjson.loads(raw), digest)


def compose(
    key: SigningKey,
    event_type: str,
    data: Mapping[str, Any],
    *,
    event_id: str,
    lamport: int,
    wall_clock: str,
    community_id: str,
    author_seq: int,
    prev: str | None,
) -> Event:
    """Write and sign an event.

    Raises:
        CommunityError: It would not be read back: `bad_request`.
    """
    members = {
        "schema_version": kinds.version(event_type),
        "event_id": event_id,
        "lamport": lamport,
        "wall_clock": wall_clock,
        "community_id": community_id,
        "author": key.id,
        "author_seq": author_seq,
        "prev": prev,
        "event_type": event_type,
        "data": data,
    }
    try:
        return read(signing.sign(members, key))
    except canonical.CanonicalError as error:
        raise _bad(str(error)) from None


def _event(payload: Mapping[str, Any], digest: bytes) -> Event:
    return Event(
        digest,
        payload["schema_version"],
        payload["event_id"],
        payload["lamport"],
        payload["wall_clock"],
        payload["community_id"],
        payload["author"],
        payload.get("author_seq"),
        payload.get("prev"),
        payload["event_type"],
        payload["data"],
        payload["signature"],
    )


def _check_members(payload: dict[str, Any]) -> None:
    names = payload.keys()
    if missing := sorted(_REQUIRED - names):
        raise _bad(f"the member {missing[0]} is missing")
    if unknown := sorted(names - _REQUIRED - _CHAIN):
        raise _bad("an event has no such member", where=f"/{unknown[0][:80]}")
    if len(_CHAIN & names) == 1:
        raise _bad("author_seq and prev come together")
    for name, is_right, form in _FORMS:
        if name in names and not is_right(payload[name]):
            raise _bad(f"expected {form}", where=f"/{name}")
    if "prev" in names and (payload["prev"] is None) != (payload["author_seq"] == 1):
        raise _bad("the first event of a chain, and no other, has prev null", where="/prev")


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= MAX_LAMPORT


_FORMS: Final[tuple[tuple[str, Callable[[Any], object], str], ...]] = (
    ("schema_version", lambda value: _is_count(value, 1), "a version number from 1"),
    ("event_id", lambda value: isinstance(value, str) and is_ulid(value), "a ULID"),
    ("lamport", lambda value: _is_count(value, 0), "an integer from 0 to 2^53-1"),
    ("wall_clock", forms.is_time, "a time such as 2026-05-26T08:14:22Z"),
    ("community_id", forms.is_id, "ed25519: and 43 characters of base64url"),
    ("author", forms.is_id, "ed25519: and 43 characters of base64url"),
    ("author_seq", lambda value: _is_count(value, 1), "an integer from 1"),
    (
        "prev",
        lambda value: value is None or (isinstance(value, str) and _BLAKE3.fullmatch(value)),
        "blake3: and 64 hexadecimal digits, or null",
    ),
    (
        "event_type",
        lambda value: isinstance(value, str) and len(value) <= 100 and _TYPE.fullmatch(value),
        "a name such as market.post.created",
    ),
    ("data", lambda value: isinstance(value, dict), "an object"),
    ("signature", lambda value: isinstance(value, str), "a signature"),
)


def _bad(what: str, *, where: str | None = None) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, what, where=where)
