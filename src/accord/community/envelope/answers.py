"""Signed answers to signed requests: section 5.2 of the specification.

An answer is signed over `{request_id, request_digest, from, to, timestamp, status, body}`, refusals
too; its `body` follows the rule for the bodies of requests.
"""

from typing import Any, Final

from accord.community.envelope import forms, headers
from accord.community.envelope.calls import Request
from accord.community.envelope.headers import RawHeaders
from accord.community.errors import Code, CommunityError
from accord.kernel import signing
from accord.kernel.signing import SigningKey

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
    """The headers of a signed answer.

    What could not be read from a request that is refused is None: its id, its digest, its caller.

    Raises:
        CommunityError: The body has no canonical form: `bad_request`.
    """
    signed = _response_bytes(request_id, request_digest, key.id, to, timestamp, status, body)
    return headers.present(
        {
            headers.REQUEST_ID: request_id,
            headers.FROM: key.id,
            headers.TIMESTAMP: timestamp,
            headers.SIGNATURE: forms.write_signature(key.sign_bytes(signed)),
        }
    )


def verify_response(
    raw: RawHeaders, *, request: Request, server: str, status: int, body: Any, now: float
) -> None:
    """Check that an answer is the server's, made now, and to this request.

    A refusal may leave out the digest and the caller, when the server could not read them. Then
    the request's id, which its caller never uses again, binds the two.

    Raises:
        CommunityError: `invalid_signature`, or `expired` when it is not fresh.
    """
    try:
        named = headers.find(raw)
        timestamp = headers.required(named, headers.TIMESTAMP)
        signature = headers.signature(named)
    except CommunityError as error:
        raise CommunityError(Code.INVALID_SIGNATURE, error.what, where=error.where) from None
    answered = named.get(headers.FROM), named.get(headers.REQUEST_ID)
    if answered != (server, request.request_id):
        raise CommunityError(
            Code.INVALID_SIGNATURE, "the answer is another node's, or to another request"
        )
    headers.check_fresh(timestamp, now)
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
    return forms.signed_bytes(
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
