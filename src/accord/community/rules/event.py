"""Events of a community's log: parsing, signing, co-signatures, and verification.

Only an event whose signatures are all valid may enter a log. Nodes that disagree about that would
hold different logs, so these checks must never change. The fold decides what an event may do. Of an
event of unknown type or version only the author's signature is checked.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson
from blake3 import blake3

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import formats
from accord.kernel import canonical, signing
from accord.kernel.identifiers import is_ulid
from accord.kernel.signing import SigningKey

MAX_EVENT_BYTES: Final = 256 * 1024
"""The largest event, as canonical JSON."""

MAX_LAMPORT: Final = 2**53 - 1

MAX_AHEAD_SECONDS: Final = 600.0
"""How far the date of an event may be ahead of the clock of a node that takes or shows it."""

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
    """A position in the total order of a log."""

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
        """Its position in the total order."""
        return Position(self.lamport, self.event_id, self.digest)

    @property
    def hash(self) -> str:
        """Its digest as text, by which other events refer to it."""
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


class ParsedEvent(NamedTuple):
    """A parsed event and the bytes that its signature covers, which `verify_event` needs."""

    event: Event
    signed: bytes


def parse_event(raw: bytes) -> Event:
    """Parse an event strictly: form, types and schema, but not signatures; raises `bad_request`."""
    return parse_signed_event(raw).event


def read_event(payload: Any) -> Event:
    """Read an event from decoded JSON; see `parse_event`."""
    return read_signed_event(payload).event


def parse_signed_event(raw: bytes) -> ParsedEvent:
    """Parse an event, and keep the signed bytes; see `parse_event`."""
    try:
        payload = canonical.decode(raw, max_bytes=MAX_EVENT_BYTES)
    except canonical.CanonicalError as error:
        raise bad_request(str(error)) from None
    return read_signed_event(payload)


def read_signed_event(payload: Any) -> ParsedEvent:
    """Read an event from decoded JSON, and keep the signed bytes; see `parse_event`."""
    if not isinstance(payload, dict):
        raise bad_request("an event is a JSON object")
    _check_members(payload)
    signed = formats.signed_bytes(payload)
    if len(signed) > MAX_EVENT_BYTES:
        raise bad_request(f"an event is at most {MAX_EVENT_BYTES} bytes")
    formats.check_event_data(payload["event_type"], payload["schema_version"], payload["data"])
    return ParsedEvent(_event(payload, blake3(signed).digest()), signed)


def read_stored_event(raw: bytes | str, digest: bytes) -> Event:
    """Read an event from the store, where it was checked before; nothing is checked again."""
    return _event(orjson.loads(raw), digest)


def compose_event(
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
    """Create and sign an event; raises `bad_request` if it is invalid."""
    members = {
        "schema_version": formats.current_version(event_type),
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
        return read_event(signing.sign(members, key))
    except canonical.CanonicalError as error:
        raise bad_request(str(error)) from None


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
        raise bad_request(f"the member {missing[0]} is missing")
    if unknown := sorted(names - _REQUIRED - _CHAIN):
        raise bad_request("an event has no such member", where=f"/{unknown[0][:80]}")
    if len(_CHAIN & names) == 1:
        raise bad_request("author_seq and prev come together")
    for name, is_right, form in _FORMS:
        if name in names and not is_right(payload[name]):
            raise bad_request(f"expected {form}", where=f"/{name}")
    if "prev" in names and (payload["prev"] is None) != (payload["author_seq"] == 1):
        raise bad_request("the first event of a chain, and no other, has prev null", where="/prev")


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= MAX_LAMPORT


_FORMS: Final[tuple[tuple[str, Callable[[Any], object], str], ...]] = (
    ("schema_version", lambda value: _is_count(value, 1), "a version number from 1"),
    ("event_id", lambda value: isinstance(value, str) and is_ulid(value), "a ULID"),
    ("lamport", lambda value: _is_count(value, 0), "an integer from 0 to 2^53-1"),
    ("wall_clock", formats.is_time, "a time such as 2026-05-26T08:14:22Z"),
    ("community_id", formats.is_id, "ed25519: and 43 characters of base64url"),
    ("author", formats.is_id, "ed25519: and 43 characters of base64url"),
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


CO_SIGNERS: Final = "co_signers"


def intent_bytes(community_id: str, event_type: str, data: Mapping[str, Any]) -> bytes:
    """The bytes that each co-signer signs, without co-signatures in the data; `bad_request`."""
    bare = {name: value for name, value in data.items() if name != CO_SIGNERS}
    return formats.signed_bytes(
        {"community_id": community_id, "event_type": event_type, "data": bare}
    )


def co_sign(
    key: SigningKey, community_id: str, event_type: str, data: Mapping[str, Any]
) -> dict[str, str]:
    """A co-signature, as in an event's `co_signers`."""
    signature = key.sign_bytes(intent_bytes(community_id, event_type, data))
    return {"node_id": key.id, "signature": formats.write_signature(signature)}


def has_signed(
    node_id: str, signature: str, community_id: str, event_type: str, data: Mapping[str, Any]
) -> bool:
    """Whether a co-signature is the node's, over this intent in this community."""
    raw = formats.read_signature(signature)
    if raw is None or not formats.is_id(node_id):
        return False
    message = intent_bytes(community_id, event_type, data)
    return signing.verify_bytes(signing.parse_id(node_id), message, raw)


class SignatureClaim(NamedTuple):
    """The claim that a key signed a message."""

    public: bytes
    message: bytes
    signature: bytes

    def holds(self) -> bool:
        """Whether the signature is valid."""
        return signing.verify_bytes(self.public, self.message, self.signature)


def verify_event(event: Event, signed: bytes | None = None) -> None:
    """Check every signature of an event; raises `invalid_signature`.

    `signed` are the bytes from `parse_signed_event`; computed if None.
    """
    for claim in signature_claims(event, signed):
        if not claim.holds():
            raise signature_refusal(claim)


def signature_claims(event: Event, signed: bytes | None = None) -> list[SignatureClaim]:
    """The signatures of an event, so that a server can verify many at once.

    Raises `invalid_signature` if one is malformed or an embedded manifest is not the author's.
    """
    message = formats.signed_bytes(event.payload()) if signed is None else signed
    claims = [_claim(event.author, message, event.signature, "/signature")]
    kind = formats.find_event_type(event.event_type, event.schema_version)
    if kind is None:
        return claims
    for path in kind.manifests:
        manifest = formats.value_at(event.data, path)
        where = f"/data/{'/'.join(path)}"
        if manifest["node_id"] != event.author:
            raise _invalid("the manifest is another node's", where)
        claims.append(
            _claim(event.author, formats.signed_bytes(manifest), manifest["signature"], where)
        )
    for path in kind.intents:
        if co_signers := formats.value_at(event.data, path):
            intent = intent_bytes(event.community_id, event.event_type, event.data)
            where = f"/data/{'/'.join(path)}"
            claims += (
                _claim(each["node_id"], intent, each["signature"], where) for each in co_signers
            )
    return claims


def signature_refusal(claim: SignatureClaim) -> CommunityError:
    """The error for an invalid signature."""
    return _invalid(f"this is not signed by {signing.public_id(claim.public)}", None)


def _claim(signer: str, message: bytes, signature: str, where: str) -> SignatureClaim:
    public, raw = formats.public_key(signer), formats.read_signature(signature)
    if public is None or raw is None:
        raise _invalid("a key or a signature has no proper form", where)
    return SignatureClaim(public, message, raw)


def _invalid(what: str, where: str | None) -> CommunityError:
    return CommunityError(Code.INVALID_SIGNATURE, what, where=where)
