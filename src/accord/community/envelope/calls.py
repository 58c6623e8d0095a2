"""Signed requests: section 5.1 of the specification.

A request is signed over one canonical object, rebuilt from the headers and the body:

- a bus call: `{capability, version, request_id, from, community, timestamp, body}`;
- a request to any other path: `path` and `query` (the text behind the question mark, or empty) in
  place of `capability` and `version`, and `body` only where the request has one.

Both have `to`, the node that is meant, when the header X-HearthNet-To is sent.

The signed `body` is the JSON value when the content type is JSON. Other bytes are signed as
`opaque`: `{"blake3": "<hex>"}`.

Only forms and signatures are judged here. Who may call, and whether a request came before, is for
the bus to say.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from blake3 import blake3

from accord.community.envelope import forms, headers
from accord.community.envelope.headers import RawHeaders
from accord.community.envelope.names import Version
from accord.community.errors import Code, CommunityError
from accord.kernel import signing
from accord.kernel.signing import SigningKey

NO_BODY: Final = object()
"""The body of a request that has none, which is not the body `null`."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it was signed; the same value on both sides.

    Attributes:
        capability: What is called, or None for a request to another path.
        version: The least version that will do, or None.
        caller: Who signed it.
        to: The node that is meant; None when the caller left it out.
        timestamp: Its own text.
        signature: 64 bytes.
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
        """What an answer names the request by: BLAKE3 of what is signed."""
        return f"blake3:{blake3(self.signed).hexdigest()}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers that carry it."""
        return headers.present(
            {
                headers.CAPABILITY: self.capability,
                headers.VERSION: None if self.version is None else str(self.version),
                headers.REQUEST_ID: self.request_id,
                headers.FROM: self.caller,
                headers.TO: self.to,
                headers.COMMUNITY: self.community,
                headers.TIMESTAMP: self.timestamp,
                headers.SIGNATURE: forms.write_signature(self.signature),
            }
        )


def opaque(raw: bytes) -> dict[str, str]:
    """What stands in the signed object for a body that is not JSON."""
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
) -> Request:
    """Sign a bus call.

    Raises:
        CommunityError: It would not be read back: `bad_request`.
    """
    named = _named(key, request_id, community, timestamp, to)
    named |= {headers.CAPABILITY: capability, headers.VERSION: version}
    headers.check(named)
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
) -> Request:
    """Sign a request to a path other than the bus's own, such as a GET.

    Raises:
        CommunityError: It would not be read back: `bad_request`.
    """
    named = _named(key, request_id, community, timestamp, to)
    headers.check(named)
    return _path_request(named, path, query, body, key.sign_bytes)


def read_request(raw: RawHeaders, body: Any) -> Request:
    """Read a bus call from its headers and its body; its signature is not yet verified.

    Args:
        raw: All headers of the request.
        body: The JSON value, or `opaque` of bytes that are not JSON.

    Raises:
        CommunityError: A header is missing, repeated or malformed: `bad_request`, or
            `invalid_signature` where it is the signature that has no proper form.
    """
    named = headers.find(raw)
    return _call(named, body, _carried(named))


def read_path_request(raw: RawHeaders, *, path: str, query: str, body: Any = NO_BODY) -> Request:
    """Read a signed request to a path other than the bus's own; see `read_request`."""
    named = headers.find(raw)
    return _path_request(named, path, query, body, _carried(named))


def verify_request(request: Request, node_id: str) -> None:
    """Check that the caller signed the request, and for this node.

    Raises:
        CommunityError: `invalid_signature`.
    """
    if request.to not in (None, node_id):
        raise CommunityError(
            Code.INVALID_SIGNATURE, "the request is meant for another node", where=headers.TO
        )
    public = signing.parse_id(request.caller)
    if not signing.verify_bytes(public, request.signed, request.signature):
        raise CommunityError(
            Code.INVALID_SIGNATURE, f"the request is not signed by {request.caller}"
        )


def _named(
    key: SigningKey, request_id: str, community: str, timestamp: str, to: str | None
) -> headers.Named:
    return headers.present(
        {
            headers.REQUEST_ID: request_id,
            headers.FROM: key.id,
            headers.TO: to,
            headers.COMMUNITY: community,
            headers.TIMESTAMP: timestamp,
        }
    )


def _carried(named: headers.Named) -> Callable[[bytes], bytes]:
    signature = headers.signature(named)
    return lambda _: signature


def _call(named: headers.Named, body: Any, sign: Callable[[bytes], bytes]) -> Request:
    capability = headers.required(named, headers.CAPABILITY)
    version = Version.parse(headers.required(named, headers.VERSION))
    target = {"capability": capability, "version": str(version)}
    return _request(named, target, body, sign, capability, version)


def _path_request(
    named: headers.Named, path: str, query: str, body: Any, sign: Callable[[bytes], bytes]
) -> Request:
    headers.refused(named, headers.CAPABILITY, headers.VERSION)
    return _request(named, {"path": path, "query": query}, body, sign, None, None)


def _request(
    named: headers.Named,
    target: dict[str, str],
    body: Any,
    sign: Callable[[bytes], bytes],
    capability: str | None,
    version: Version | None,
) -> Request:
    members: dict[str, Any] = {
        **target,
        "request_id": headers.required(named, headers.REQUEST_ID),
        "from": headers.required(named, headers.FROM),
        "community": headers.required(named, headers.COMMUNITY),
        "timestamp": headers.required(named, headers.TIMESTAMP),
    }
    to = named.get(headers.TO)
    if to is not None:
        members["to"] = to
    if body is not NO_BODY:
        members["body"] = body
    signed = forms.signed_bytes(members)
    return Request(
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
