"""Signed answers and refusals (sections 5.2 and 5.4)."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
from blake3 import blake3
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from accord.community.errors import Code, CommunityError
from accord.community.rules import wire
from accord.community.rules.checks import SIZE, CallCheck
from accord.community.rules.wire import SignedRequest
from accord.kernel import canonical
from accord.kernel.clock import Clock, format_time
from accord.kernel.identifiers import Trace
from accord.kernel.signing import SigningKey

_log = structlog.stdlib.get_logger(__name__)

_MESSAGE: Final = 500
_LINGER_SECONDS: Final = 1.0


@dataclass(slots=True)
class RequestContext:
    """What is known of a request so far; enough to sign its answer.

    Attributes:
        started: Arrival time, by the monotonic clock.
        check: The check in progress; None once all are passed.
        unread: Whether part of the body is unread, so that the connection must be closed.
        refused: The code of the refusal, if there was one.
        trace: The trace of the call. It is not signed, so no decision depends on it.
    """

    started: float
    check: CallCheck | None = SIZE
    request_id: str | None = None
    request: SignedRequest | None = None
    digest: str | None = None
    size: int = 0
    unread: bool = False
    refused: Code | None = None
    trace: Trace | None = None

    def know(self, request: SignedRequest) -> None:
        """Set the request that was read."""
        self.request_id, self.request, self.digest = request.request_id, request, request.digest


@dataclass(frozen=True, slots=True)
class SignedAnswer:
    """A signed answer that can be sent, also repeatedly."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def size(self) -> int:
        """The length of its body."""
        return len(self.content)

    @property
    def digest(self) -> str:
        """BLAKE3 of its body."""
        return f"blake3:{blake3(self.content).hexdigest()}"

    def response(self) -> Response:
        """The answer as a Starlette response."""
        made = _LingeringResponse if "Connection" in self.headers else Response
        return made(self.content, self.status, dict(self.headers))


class _LingeringResponse(Response):
    """A response to a request that is still being sent.

    Closing at once would reset the connection and the client would lose the answer, so the rest of
    the body is read and dropped for a moment.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True, slots=True)
class SentAnswer:
    """Size and digest of an answer that is not stored."""

    status: int
    size: int
    digest: str


class AnswerSigner:
    """Signs answers with the node's key."""

    def __init__(self, key: SigningKey, clock: Clock) -> None:
        self._key = key
        self._clock = clock
        self.node_id = key.id

    def sign(self, visit: RequestContext, status: int, body: Any) -> dict[str, str]:
        """The signature headers for a body, which is JSON or `opaque` of other bytes."""
        request = visit.request
        return wire.sign_response(
            self._key,
            request_id=visit.request_id,
            request_digest=visit.digest,
            to=request.caller if request else None,
            timestamp=format_time(self._clock.now()),
            status=status,
            body=body,
        )

    def answer(self, visit: RequestContext, body: Any, status: int = 200) -> SignedAnswer:
        """Sign a JSON body; raises if it has no canonical form, which is a bug of this node."""
        try:
            content = canonical.encode(body)
        except canonical.CanonicalError as error:
            _log.error("an answer is not JSON", error=str(error), request_id=visit.request_id)
            raise internal_failure() from None
        headers = self.sign(visit, status, body) | {"Content-Type": "application/json"}
        if visit.unread:
            headers["Connection"] = "close"
        return SignedAnswer(status, headers, content)

    def opaque(self, visit: RequestContext, content: bytes) -> SignedAnswer:
        """Sign bytes that are not JSON."""
        headers = self.sign(visit, 200, wire.opaque(content))
        return SignedAnswer(200, headers | {"Content-Type": "application/octet-stream"}, content)

    def refusal(self, visit: RequestContext, error: CommunityError) -> SignedAnswer:
        """Sign an error."""
        visit.refused = error.code
        return self.answer(visit, error_body(error), error.code.status)


def error_body(error: CommunityError) -> dict[str, Any]:
    """An error as JSON; only its code, if its details are not JSON."""
    body = {**error.details, "error": error.code.value, "message": str(error)[:_MESSAGE]}
    try:
        canonical.encode(body)
    except canonical.CanonicalError:
        return {"error": error.code.value}
    return body


def storage_failure() -> CommunityError:
    """The error for a call that cannot be stored and is therefore not run."""
    return CommunityError(
        Code.CAPACITY_EXCEEDED,
        "the node cannot store anything now",
        mend="try again later; `accord doctor` on that node says why",
        details={"retry_after_ms": 5000},
    )


def internal_failure() -> CommunityError:
    """The error for a bug of this node; it tells nothing of the cause."""
    return CommunityError(Code.INTERNAL_ERROR, "the node failed to do this; its log says why")
