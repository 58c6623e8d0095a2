"""The wire form of calls: headers of signed requests and answers, and stream frames.

Headers are read strictly: each once, each in its one form. Frames are server-sent events with the
signature at their end.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from blake3 import blake3

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import formats
from accord.community.rules.capabilities import Version, check_capability
from accord.kernel import canonical
from accord.kernel.clock import parse_time
from accord.kernel.identifiers import is_ulid
from accord.kernel.schema import Schema, compile_schema

CAPABILITY: Final = "X-HearthNet-Capability"
VERSION: Final = "X-HearthNet-Capability-Version"
REQUEST_ID: Final = "X-HearthNet-Request-Id"
FROM: Final = "X-HearthNet-From"
TO: Final = "X-HearthNet-To"
COMMUNITY: Final = "X-HearthNet-Community"
TIMESTAMP: Final = "X-HearthNet-Timestamp"
SIGNATURE: Final = "X-HearthNet-Signature"

FRESH_SECONDS: Final = 60
"""How far a timestamp may lie from the reader's clock, either way."""

RawHeaders = Iterable[tuple[bytes, bytes]]
"""Headers as ASGI and httpx (`headers.raw`) give them, repetitions included."""

Named = dict[str, str]
"""The headers of ours that were found, by the names above."""


def find_headers(raw: RawHeaders) -> Named:
    """The protocol's headers, checked; others are ignored.

    Raises `bad_request` if one is repeated or malformed, `invalid_signature` for the signature.
    """
    found: Named = {}
    for raw_name, raw_value in raw:
        name = _NAMES.get(raw_name.lower())
        if name is None:
            continue
        if name in found:
            raise bad_request("the header comes more than once", name)
        found[name] = raw_value.decode("ascii", "replace")
    check_headers(found)
    return found


def check_headers(named: Named) -> None:
    """Check the forms of headers; see `find`."""
    for name, value in named.items():
        is_right, form = _FORMS[name]
        if not is_right(value):
            code = Code.INVALID_SIGNATURE if name == SIGNATURE else Code.BAD_REQUEST
            raise CommunityError(code, f"expected {form}", where=name)


def required_header(named: Named, name: str) -> str:
    """The value of a header; raises `bad_request` if it is missing."""
    value = named.get(name)
    if value is None:
        raise bad_request("the header is missing", name)
    return value


def read_signature_header(named: Named) -> bytes:
    """The 64 bytes of the signature; raises `bad_request` if it is missing."""
    return formats.read_signature(required_header(named, SIGNATURE)) or b""


def present_headers(named: Mapping[str, str | None]) -> Named:
    """The headers that have a value."""
    return {name: value for name, value in named.items() if value is not None}


def refuse_headers(named: Named, *names: str) -> None:
    """Raise `bad_request` if one of these headers is present."""
    for name in names:
        if name in named:
            raise bad_request("the header has no place here", name)


def check_fresh(timestamp: str, now: float) -> None:
    """Raise `expired` if a timestamp is too far from now."""
    if abs(now - parse_time(timestamp)) > FRESH_SECONDS:
        raise CommunityError(
            Code.EXPIRED,
            f"the timestamp lies more than {FRESH_SECONDS} seconds from this node's clock",
            where=TIMESTAMP,
            mend="set the clock, and sign again",
        )


def _is_capability(value: str) -> bool:
    return _passes(check_capability, value)


def _is_version(value: str) -> bool:
    return _passes(Version.parse, value)


def _passes(check: Callable[[str], object], value: str) -> bool:
    try:
        check(value)
    except CommunityError:
        return False
    return True


_FORMS: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    CAPABILITY: (_is_capability, "a capability such as llm.chat"),
    VERSION: (_is_version, "a version such as 1.0"),
    REQUEST_ID: (is_ulid, "a ULID"),
    FROM: (formats.is_id, "the full id of a node"),
    TO: (formats.is_id, "the full id of a node"),
    COMMUNITY: (formats.is_id, "the full id of a community"),
    TIMESTAMP: (formats.is_time, "a time such as 2026-05-26T08:14:22Z"),
    SIGNATURE: (formats.read_signature, "ed25519: and 86 characters of base64url"),
}

_NAMES: Final = {name.lower().encode(): name for name in _FORMS}


DONE: Final = "done"
ERROR: Final = "error"
PROGRESS: Final = "progress"
TERMINAL: Final = frozenset({DONE, ERROR})

# Section 5.3: any capability may send it.
_PROGRESS: Final = compile_schema(
    {
        "type": "object",
        "required": ["current"],
        "properties": {
            "current": {"type": "number"},
            "total": {"type": "number"},
            "stage": {"type": "string"},
        },
        "additionalProperties": False,
    }
)
_TIMESTAMP: Final = b"timestamp: "
_SIGNATURE: Final = b"signature: "


class Transcript:
    """A running digest of everything sent in a stream."""

    def __init__(self) -> None:
        self._hash = blake3()
        self.size = 0

    def add(self, text: bytes) -> bytes:
        """Add bytes, and return them."""
        self._hash.update(text)
        self.size += len(text)
        return text

    def body(self) -> dict[str, str]:
        """The value that is signed in place of the stream."""
        return {"blake3": self._hash.hexdigest()}


@dataclass(frozen=True, slots=True)
class ParsedFrame:
    """A frame as a client reads it; the last two fields only in the last frame, if at all."""

    event: str
    number: int | None
    data: Any
    timestamp: bytes | None = None
    signature: bytes | None = None


def write_frame(event: str, number: int, data: Mapping[str, Any]) -> bytes:
    """A frame without the empty line that ends it."""
    # Canonical JSON has no line breaks outside strings and escapes them inside.
    return b"event: %s\nid: %d\ndata: %s\n" % (event.encode(), number, canonical.encode(dict(data)))


def write_signature_lines(timestamp: str, signature: str) -> bytes:
    """The two lines that end the last frame."""
    return _TIMESTAMP + timestamp.encode() + b"\n" + _SIGNATURE + signature.encode() + b"\n"


def is_allowed(schema: Schema | None, event: str, data: Any) -> bool:
    """Whether the capability may send this frame."""
    if event == PROGRESS and _PROGRESS.is_valid(data):
        return True
    if event in (ERROR, "ack") or schema is None:
        return False
    return schema.is_valid({"event": event, "data": data})


def parse_frame(block: bytes, transcript: Transcript) -> ParsedFrame | None:
    """Parse a frame without its final empty line; None if it has no data; `bad_request`."""
    fields: dict[bytes, bytes] = {}
    for line in block.split(b"\n"):
        name, _, value = line.partition(b":")
        fields[name] = value.removeprefix(b" ")
        if name not in (b"timestamp", b"signature"):
            transcript.add(line + b"\n")
    if b"data" not in fields:
        return None
    number = fields.get(b"id", b"")
    try:
        return ParsedFrame(
            fields.get(b"event", b"message").decode("ascii", "replace"),
            int(number) if number.isdigit() and len(number) < 16 else None,
            canonical.decode(fields[b"data"]),
            fields.get(b"timestamp"),
            fields.get(b"signature"),
        )
    except canonical.CanonicalError as error:
        raise bad_request(f"a frame of the stream is broken: {error}") from None
