"""Signed requests, answers and streams on the wire: sections 5.1 to 5.3 of the specification.

A bus call is signed over `{capability, version, request_id, from, community, timestamp, body}`; a
request to another path has `path` and `query` in place of `capability` and `version`. Both have
`to` when the header X-HearthNet-To is sent. Bytes that are not JSON are signed as their BLAKE3.
Headers are read strictly: each once, each in its one form. The frames of a stream are server-sent
events with the signature at their end.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from blake3 import blake3

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import formats
from accord.community.rules.capabilities import Version, check_capability
from accord.kernel import canonical, signing
from accord.kernel.clock import parse_time
from accord.kernel.identifiers import is_ulid
from accord.kernel.schema import Schema, compile_schema
from accord.kernel.signing import SigningKey

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
    """Check the forms of headers; see `find_headers`."""
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


NO_BODY: Final = object()
"""The body of a request that has none, which is not the body `null`."""


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A signed request; the same value on both sides.

    Attributes:
        capability: None for a request to another path.
        version: The lowest acceptable version, or None.
        to: The addressed node; None if the caller left it out.
        signed: The canonical bytes that the signature covers.
    """

    capability: str | None
    version: Version | None
    request_id: str
    caller: str
    to: str | None
    community: str
    timestamp: str
    signature: bytes
    signed: bytes

    @property
    def digest(self) -> str:
        """BLAKE3 of the signed bytes, by which an answer names the request."""
        return f"blake3:{blake3(self.signed).hexdigest()}"

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers."""
        return present_headers(
            {
                CAPABILITY: self.capability,
                VERSION: None if self.version is None else str(self.version),
                REQUEST_ID: self.request_id,
                FROM: self.caller,
                TO: self.to,
                COMMUNITY: self.community,
                TIMESTAMP: self.timestamp,
                SIGNATURE: formats.write_signature(self.signature),
            }
        )


def opaque(raw: bytes) -> dict[str, str]:
    """The value that is signed in place of a body that is not JSON."""
    return {"blake3": blake3(raw).hexdigest()}


def sign_request(
    key: SigningKey,
    *,
    capability: str,
    version: str,
    request_id: str,
    community: str,
    timestamp: str,
    body: Any,
    to: str | None = None,
) -> SignedRequest:
    """Sign a bus call; raises `bad_request` if it is invalid."""
    named = _named(key, request_id, community, timestamp, to)
    named |= {CAPABILITY: capability, VERSION: version}
    check_headers(named)
    return _call(named, body, key.sign_bytes)


def sign_path_request(
    key: SigningKey,
    *,
    path: str,
    query: str = "",
    request_id: str,
    community: str,
    timestamp: str,
    body: Any = NO_BODY,
    to: str | None = None,
) -> SignedRequest:
    """Sign a request to another path, such as a GET; raises `bad_request` if it is invalid."""
    named = _named(key, request_id, community, timestamp, to)
    check_headers(named)
    return _path_request(named, path, query, body, key.sign_bytes)


def read_request(raw: RawHeaders | Named, body: Any) -> SignedRequest:
    """Read a bus call, without verifying its signature.

    `raw` has all headers, or what `find_headers` returned; `body` is JSON or `opaque`. Raises
    `bad_request` for a missing or malformed header, `invalid_signature` for a malformed signature.
    """
    named = raw if isinstance(raw, dict) else find_headers(raw)
    return _call(named, body, _carried(named))


def read_path_request(
    raw: RawHeaders | Named, *, path: str, query: str, body: Any = NO_BODY
) -> SignedRequest:
    """Read a signed request to another path; see `read_request`."""
    named = raw if isinstance(raw, dict) else find_headers(raw)
    return _path_request(named, path, query, body, _carried(named))


def verify_request(request: SignedRequest, node_id: str) -> None:
    """Raise `invalid_signature` unless the caller signed the request, for this node."""
    check_recipient(request.to, node_id)
    public = signing.parse_id(request.caller)
    if not signing.verify_bytes(public, request.signed, request.signature):
        raise CommunityError(
            Code.INVALID_SIGNATURE, f"the request is not signed by {request.caller}"
        )


def check_recipient(to: str | None, node_id: str) -> None:
    """Raise `invalid_signature` if a request names another node."""
    if to not in (None, node_id):
        raise CommunityError(
            Code.INVALID_SIGNATURE, "the request is meant for another node", where=TO
        )


def _named(
    key: SigningKey, request_id: str, community: str, timestamp: str, to: str | None
) -> Named:
    return present_headers(
        {
            REQUEST_ID: request_id,
            FROM: key.id,
            TO: to,
            COMMUNITY: community,
            TIMESTAMP: timestamp,
        }
    )


def _carried(named: Named) -> Callable[[bytes], bytes]:
    signature = read_signature_header(named)
    return lambda _: signature


def _call(named: Named, body: Any, sign: Callable[[bytes], bytes]) -> SignedRequest:
    capability = required_header(named, CAPABILITY)
    version = Version.parse(required_header(named, VERSION))
    target = {"capability": capability, "version": str(version)}
    return _request(named, target, body, sign, capability, version)


def _path_request(
    named: Named, path: str, query: str, body: Any, sign: Callable[[bytes], bytes]
) -> SignedRequest:
    refuse_headers(named, CAPABILITY, VERSION)
    return _request(named, {"path": path, "query": query}, body, sign, None, None)


def _request(
    named: Named,
    target: dict[str, str],
    body: Any,
    sign: Callable[[bytes], bytes],
    capability: str | None,
    version: Version | None,
) -> SignedRequest:
    members: dict[str, Any] = {
        **target,
        "request_id": required_header(named, REQUEST_ID),
        "from": required_header(named, FROM),
        "community": required_header(named, COMMUNITY),
        "timestamp": required_header(named, TIMESTAMP),
    }
    to = named.get(TO)
    if to is not None:
        members["to"] = to
    if body is not NO_BODY:
        members["body"] = body
    signed = formats.signed_bytes(members)
    return SignedRequest(
        capability,
        version,
        members["request_id"],
        members["from"],
        to,
        members["community"],
        members["timestamp"],
        sign(signed),
        signed,
    )


_FIRST_ERROR_STATUS: Final = 400


def sign_response(
    key: SigningKey,
    *,
    request_id: str | None,
    request_digest: str | None,
    to: str | None,
    timestamp: str,
    status: int,
    body: Any,
) -> dict[str, str]:
    """The headers of a signed answer; None for what could not be read from a refused request."""
    signed = _response_bytes(request_id, request_digest, key.id, to, timestamp, status, body)
    return present_headers(
        {
            REQUEST_ID: request_id,
            FROM: key.id,
            TIMESTAMP: timestamp,
            SIGNATURE: formats.write_signature(key.sign_bytes(signed)),
        }
    )


def verify_response(
    raw: RawHeaders, *, request: SignedRequest, server: str, status: int, body: Any, now: float
) -> None:
    """Check that an answer is the server's, made now, and to this request.

    A refusal may lack the digest and the caller, if the server could not read them; then the unique
    request id binds the two. Raises `invalid_signature`, or `expired` if it is not fresh.
    """
    try:
        named = find_headers(raw)
        timestamp = required_header(named, TIMESTAMP)
        signature = read_signature_header(named)
    except CommunityError as error:
        raise CommunityError(Code.INVALID_SIGNATURE, error.what, where=error.where) from None
    answered = named.get(FROM), named.get(REQUEST_ID)
    if answered != (server, request.request_id):
        raise CommunityError(
            Code.INVALID_SIGNATURE, "the answer is another node's, or to another request"
        )
    check_fresh(timestamp, now)
    bindings: list[tuple[str | None, str | None]] = [(request.digest, request.caller)]
    if status >= _FIRST_ERROR_STATUS:
        bindings.append((None, None))
    public = signing.parse_id(server)
    for digest, to in bindings:
        signed = _response_bytes(request.request_id, digest, server, to, timestamp, status, body)
        if signing.verify_bytes(public, signed, signature):
            return
    raise CommunityError(Code.INVALID_SIGNATURE, f"the answer is not signed by {server}")


def _response_bytes(
    request_id: str | None,
    request_digest: str | None,
    server: str,
    to: str | None,
    timestamp: str,
    status: int,
    body: Any,
) -> bytes:
    return formats.signed_bytes(
        {
            "request_id": request_id,
            "request_digest": request_digest,
            "from": server,
            "to": to,
            "timestamp": timestamp,
            "status": status,
            "body": body,
        }
    )


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
