"""One signed request over HTTP, and its verified answer.

Owns the connection to a node, the limits on what it may send back, and the way from an HTTP answer
to a value or a `CommunityError`. It never tries anything twice.
"""

import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import httpx

from accord.community.client.retrying import UNSENT
from accord.community.envelope import answers, headers
from accord.community.envelope.calls import Request, opaque
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical
from accord.kernel.clock import Clock

MAX_ANSWER: Final = 16 * 1024 * 1024
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
_FIRST_ERROR_STATUS: Final = 400


def trusting_nobody() -> ssl.SSLContext:
    """For connections without TLS; one with it would fail."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Exchange:
    """The connection to one node.

    Args:
        endpoint: Where the node is, such as `https://192.168.1.4:7080`.
        node_id: Which node must answer.
        clock: The time.
        ssl_context: What its certificate is checked against; it is pinned by the node's manifest.
        transport: How to get there, if not by a socket.
        seconds: How long a node may be silent.
    """

    def __init__(
        self,
        endpoint: str,
        node_id: str,
        *,
        clock: Clock,
        ssl_context: ssl.SSLContext | None,
        transport: httpx.AsyncBaseTransport | None,
        seconds: float,
    ) -> None:
        self._node_id = node_id
        self._clock = clock
        # Reading everybody's certificates takes long, and plain http asks for none.
        trust = ssl_context or (endpoint.startswith("https:") or trusting_nobody())
        # Not from the environment: a proxy set there would see what is meant for a neighbour.
        self._http = httpx.AsyncClient(
            base_url=endpoint,
            verify=trust,
            transport=transport,
            timeout=httpx.Timeout(seconds, connect=10.0),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    @asynccontextmanager
    async def open(
        self,
        method: str,
        target: str,
        request: Request,
        content: bytes,
        *,
        accept: str = JSON,
        further: Iterable[tuple[str, str]] = (),
    ) -> AsyncIterator[httpx.Response]:
        """Send a request and give the answer whose body is still to come.

        Raises:
            CommunityError: The node cannot be reached (`partition`) or is silent (`timeout`).
        """
        named = {"Accept": accept, **request.headers, **dict(further)}
        if content:
            named["Content-Type"] = JSON
        try:
            async with self._http.stream(method, target, content=content, headers=named) as found:
                yield found
        except httpx.TimeoutException as error:
            code = Code.PARTITION if isinstance(error, httpx.ConnectTimeout) else Code.TIMEOUT
            raise _lost(code, error) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _lost(Code.PARTITION, error) from error

    async def read(self, found: httpx.Response, request: Request, *, verify: bool) -> Any:
        """The JSON of an answer.

        Raises:
            CommunityError: It is a refusal (with the code that the node gave), or not an answer
                of the node's (`invalid_signature`).
        """
        raw = await _whole(found)
        body = _json(raw)
        if verify:
            self.verify(found.headers.raw, request, found.status_code, body)
        if found.status_code < _FIRST_ERROR_STATUS:
            return body
        raise refusal(body, found.status_code)

    async def read_bytes(self, found: httpx.Response, request: Request) -> bytes:
        """The bytes of an answer that is not JSON; see `read`."""
        if found.status_code >= _FIRST_ERROR_STATUS:
            await self.read(found, request, verify=True)
        raw = await _whole(found)
        self.verify(found.headers.raw, request, found.status_code, opaque(raw))
        return raw

    def verify(self, raw: headers.RawHeaders, request: Request, status: int, body: Any) -> None:
        """Check that an answer is the node's; see `answers.verify_response`."""
        answers.verify_response(
            raw,
            request=request,
            server=self._node_id,
            status=status,
            body=body,
            now=self._clock.now(),
        )


def refusal(body: Any, status: int) -> CommunityError:
    """The error that a node told."""
    told = dict(body) if isinstance(body, dict) else {}
    try:
        code = Code(told.pop("error", None))
    except ValueError:
        code = Code.INTERNAL_ERROR
    message = told.pop("message", None)
    what = message if isinstance(message, str) else f"the node refused this ({status})"
    return CommunityError(code, what, details=told)


async def _whole(found: httpx.Response) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in found.aiter_bytes():
        size += len(part)
        if size > MAX_ANSWER:
            raise CommunityError(Code.BAD_REQUEST, f"the answer has more than {MAX_ANSWER} bytes")
        parts.append(part)
    return b"".join(parts)


def _json(raw: bytes) -> Any:
    try:
        return canonical.decode(raw, max_bytes=MAX_ANSWER)
    except canonical.CanonicalError as error:
        raise CommunityError(
            Code.INVALID_SIGNATURE, f"the answer is not the node's: {error.what}"
        ) from None


def _lost(code: Code, error: Exception) -> CommunityError:
    unsent = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.InvalidURL)
    return CommunityError(
        code,
        f"the node cannot be reached ({type(error).__name__}: {error})",
        details={UNSENT: True} if unsent else None,
    )
