"""Signed requests and answers: sections 5.1 and 5.2 of the specification.

A bus call is signed over `{capability, version, request_id, from, community, timestamp, body}`; a
request to another path has `path` and `query` in place of `capability` and `version`. Both have
`to` when the header X-HearthNet-To is sent. Bytes that are not JSON are signed as their BLAKE3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from blake3 import blake3

from accord.community.errors import Code, CommunityError
from accord.community.rules import formats, wire
from accord.community.rules.capabilities import Version
from accord.community.rules.wire import Named, RawHeaders
from accord.kernel import signing
from accord.kernel.signing import SigningKey

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
        return wire.present_headers(
            {
                wire.CAPABILITY: self.capability,
                wire.VERSION: None if self.version is None else str(self.version),
                wire.REQUEST_ID: self.request_id,
                wire.FROM: self.caller,
                wire.TO: self.to,
                wire.COMMUNITY: self.community,
                wire.TIMESTAMP: self.timestamp,
                wire.SIGNATURE: formats.write_signature(self.signature),
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
    named |= {wire.CAPABILITY: capability, wire.VERSION: version}
    wire.check_headers(named)
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
    wire.check_headers(named)
    return _path_request(named, path, query, body, key.sign_bytes)


def read_request(raw: RawHeaders | Named, body: Any) -> SignedRequest:
    """Read a bus call, without verifying its signature.

    `raw` has all headers, or what `headers.find` returned; `body` is JSON or `opaque`. Raises
    `bad_request` for a missing or malformed header, `invalid_signature` for a malformed signature.
    """
    named = raw if isinstance(raw, dict) else wire.find_headers(raw)
    return _call(named, body, _carried(named))


def read_path_request(
    raw: RawHeaders | Named, *, path: str, query: str, body: Any = NO_BODY
) -> SignedRequest:
    """Read a signed request to another path; see `read_request`."""
    named = raw if isinstance(raw, dict) else wire.find_headers(raw)
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
            Code.INVALID_SIGNATURE, "the request is meant for another node", where=wire.TO
        )


def _named(
    key: SigningKey, request_id: str, community: str, timestamp: str, to: str | None
) -> wire.Named:
    return wire.present_headers(
        {
            wire.REQUEST_ID: request_id,
            wire.FROM: key.id,
            wire.TO: to,
            wire.COMMUNITY: community,
            wire.TIMESTAMP: timestamp,
        }
    )


def _carried(named: wire.Named) -> Callable[[bytes], bytes]:
    signature = wire.read_signature_header(named)
    return lambda _: signature


def _call(named: wire.Named, body: Any, sign: Callable[[bytes], bytes]) -> SignedRequest:
    capability = wire.required_header(named, wire.CAPABILITY)
    version = Version.parse(wire.required_header(named, wire.VERSION))
    target = {"capability": capability, "version": str(version)}
    return _request(named, target, body, sign, capability, version)


def _path_request(
    named: wire.Named, path: str, query: str, body: Any, sign: Callable[[bytes], bytes]
) -> SignedRequest:
    wire.refuse_headers(named, wire.CAPABILITY, wire.VERSION)
    return _request(named, {"path": path, "query": query}, body, sign, None, None)


def _request(
    named: wire.Named,
    target: dict[str, str],
    body: Any,
    sign: Callable[[bytes], bytes],
    capability: str | None,
    version: Version | None,
) -> SignedRequest:
    members: dict[str, Any] = {
        **target,
        "request_id": wire.required_header(named, wire.REQUEST_ID),
        "from": wire.required_header(named, wire.FROM),
        "community": wire.required_header(named, wire.COMMUNITY),
        "timestamp": wire.required_header(named, wire.TIMESTAMP),
    }
    to = named.get(wire.TO)
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
    return wire.present_headers(
        {
            wire.REQUEST_ID: request_id,
            wire.FROM: key.id,
            wire.TIMESTAMP: timestamp,
            wire.SIGNATURE: formats.write_signature(key.sign_bytes(signed)),
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
        named = wire.find_headers(raw)
        timestamp = wire.required_header(named, wire.TIMESTAMP)
        signature = wire.read_signature_header(named)
    except CommunityError as error:
        raise CommunityError(Code.INVALID_SIGNATURE, error.what, where=error.where) from None
    answered = named.get(wire.FROM), named.get(wire.REQUEST_ID)
    if answered != (server, request.request_id):
        raise CommunityError(
            Code.INVALID_SIGNATURE, "the answer is another node's, or to another request"
        )
    wire.check_fresh(timestamp, now)
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
