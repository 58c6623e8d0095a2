"""Stream frames on the wire: server-sent events, and the signature at their end."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from blake3 import blake3

from accord.community.errors import Code, CommunityError
from accord.kernel import canonical
from accord.kernel.schema import Schema, compile_schema

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
        raise CommunityError(
            Code.BAD_REQUEST, f"a frame of the stream is broken: {error}"
        ) from None
