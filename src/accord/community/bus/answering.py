"""Signed answers, refusals included: sections 5.2 and 5.4 of the specification.

Owns the form of what goes back to a caller. It decides nothing: the code of a refusal comes with
the error.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
from blake3 import blake3
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from accord.community.bus.checks import SIZE, Check
from accord.community.envelope import answers, calls
from accord.community.envelope.calls import Request
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical
from accord.kernel.clock import Clock, format_time
from accord.kernel.signing import SigningKey
from accord.kernel.traceparent import Trace

_log = structlog.stdlib.get_logger(__name__)

_MESSAGE: Final = 500
_LINGER_SECONDS: Final = 1.0


@dataclass(slots=True)
class Visit:
    """What is known so far of a request; enough to sign its answer.

    Attributes:
        started: When it came, by the monotonic clock.
        check: The check that is being made; None once all are passed.
        request_id: Its id, where that could be read.
        request: The request as signed, once it could be read.
        digest: The digest of what was signed.
        size: The bytes of its body.
        unread: Whether some of its body was left unread, so that the connection must end.
        refused: The code with which it was refused, if it was.
        trace: Where in a trace a call is. What a caller says of it is not signed, so it is told
            and decides nothing.
    """

    started: float
    check: Check | None = SIZE
    request_id: str | None = None
    request: Request | None = None
    digest: str | None = None
    size: int = 0
    unread: bool = False
    refused: Code | None = None
    trace: Trace | None = None

    def know(self, request: Request) -> None:
        """The request could be read."""
        self.request_id, self.request, self.digest = request.request_id, request, request.digest


@dataclass(frozen=True, slots=True)
class Answer:
    """A signed answer, ready to be sent, now or again."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def size(self) -> int:
        """The bytes of its body."""
        return len(self.content)

    @property
    def digest(self) -> str:
        """BLAKE3 of its body."""
        return f"blake3:{blake3(self.content).hexdigest()}"

    def response(self) -> Response:
        """The answer as Starlette sends it."""
        made = _Lingering if "Connection" in self.headers else Response
        return made(self.content, self.status, dict(self.headers))


class _Lingering(Response):
    """An answer to a request that is still being sent.

    Closing at once would reset the connection, and the client would lose the answer; so the rest
    is thrown away for a moment before the end.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, wait a little for the client to fall silent, and end."""
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


@dataclass(frozen=True, slots=True)
class Sent:
    """What was sent of an answer that is not kept."""

    status: int
    size: int
    digest: str


class Signer:
    """Signs answers with the node's key."""

    def __init__(self, key: SigningKey, clock: Clock) -> None:
        self._key = key
        self._clock = clock
        self.node_id = key.id

    def sign(self, visit: Visit, status: int, body: Any) -> dict[str, str]:
        """The headers that sign a body, which is JSON or stands for other bytes.

        Raises:
            CommunityError: The body has no canonical form.
        """
        request = visit.request
        return answers.sign_response(
            self._key,
            request_id=visit.request_id,
            request_digest=visit.digest,
            to=request.caller if request else None,
            timestamp=format_time(self._clock.now()),
            status=status,
            body=body,
        )

    def answer(self, visit: Visit, body: Any, status: int = 200) -> Answer:
        """Sign a JSON body.

        Raises:
            CommunityError: What was to be answered is not JSON, which is a fault of this node.
        """
        try:
            content = canonical.encode(body)
        except canonical.CanonicalError as error:
            _log.error("an answer is not JSON", error=str(error), request_id=visit.request_id)
            raise failed() from None
        headers = self.sign(visit, status, body) | {"Content-Type": "application/json"}
        if visit.unread:
            headers["Connection"] = "close"
        return Answer(status, headers, content)

    def opaque(self, visit: Visit, content: bytes) -> Answer:
        """Sign bytes that are not JSON."""
        headers = self.sign(visit, 200, calls.opaque(content))
        return Answer(200, headers | {"Content-Type": "application/octet-stream"}, content)

    def refusal(self, visit: Visit, error: CommunityError) -> Answer:
        """Sign what is wrong."""
        visit.refused = error.code
        return self.answer(visit, error_body(error), error.code.status)


def error_body(error: CommunityError) -> dict[str, Any]:
    """An error as the caller reads it; one that cannot be told is told without its details."""
    body = {**error.details, "error": error.code.value, "message": str(error)[:_MESSAGE]}
    try:
        canonical.encode(body)
    except canonical.CanonicalError:
        return {"error": error.code.value}
    return body


def unkept() -> CommunityError:
    """What a caller hears of a call that cannot be written down: it is not done."""
    return CommunityError(
        Code.CAPACITY_EXCEEDED,
        "the node cannot keep anything now",
        mend="try again later; `accord doctor` on that node says why",
        details={"retry_after_ms": 5000},
    )


def failed() -> CommunityError:
    """What a caller hears of a fault that is not its own: nothing of what is inside."""
    return CommunityError(Code.INTERNAL_ERROR, "the node failed to do this; its log says why")
