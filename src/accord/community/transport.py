"""One signed request over HTTP and its verified answer; also in process, without a socket."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final, Self

import httpx
from starlette.types import ASGIApp, Message

from accord.community.errors import Code, CommunityError
from accord.community.rules import wire
from accord.community.rules.requests import SignedRequest, opaque, verify_response
from accord.community.rules.routing import UNSENT
from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.web import responses
from accord.web.responses import ResponseError

MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
JSON_TYPE: Final = "application/json"
EVENT_STREAM_TYPE: Final = "text/event-stream"
_FIRST_ERROR_STATUS: Final = 400


def empty_trust() -> ssl.SSLContext:
    """A TLS context that trusts nobody, for connections without TLS."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Exchange:
    """The HTTP connection to the node `node_id`, which must sign the answers.

    `ssl_context` pins its certificate; `seconds` is how long it may be silent.
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
        # Loading the system certificates takes long, and plain HTTP needs none.
        trust = ssl_context or (endpoint.startswith("https:") or empty_trust())
        # A proxy of the environment must not see traffic between nodes.
        self._http = responses.bounded_client(
            None,
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
        request: SignedRequest,
        content: bytes,
        *,
        accept: str = JSON_TYPE,
        further: Iterable[tuple[str, str]] = (),
    ) -> AsyncIterator[httpx.Response]:
        """Send a request; the body of the response is not read yet.

        Raises `partition` if the node cannot be reached, `timeout` if it is silent.
        """
        named = {"Accept": accept, **request.headers, **dict(further)}
        if content:
            named["Content-Type"] = JSON_TYPE
        try:
            async with self._http.stream(method, target, content=content, headers=named) as found:
                yield found
        except httpx.TimeoutException as error:
            code = Code.PARTITION if isinstance(error, httpx.ConnectTimeout) else Code.TIMEOUT
            raise _lost(code, error) from error
        except ResponseError as error:
            raise CommunityError(Code.BAD_REQUEST, str(error)) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _lost(Code.PARTITION, error) from error

    async def read(self, found: httpx.Response, request: SignedRequest, *, verify: bool) -> Any:
        """Read the JSON of an answer.

        Raises the node's refusal, or `invalid_signature` if the answer is not the node's.
        """
        body = _json(await responses.read_bounded(found, MAX_ANSWER_BYTES))
        if verify:
            self.verify(found.headers.raw, request, found.status_code, body)
        if found.status_code < _FIRST_ERROR_STATUS:
            return body
        raise node_refusal(body, found.status_code)

    async def read_bytes(self, found: httpx.Response, request: SignedRequest) -> bytes:
        """Read an answer that is not JSON; see `read`."""
        if found.status_code >= _FIRST_ERROR_STATUS:
            await self.read(found, request, verify=True)
        raw = await responses.read_bounded(found, MAX_ANSWER_BYTES)
        self.verify(found.headers.raw, request, found.status_code, opaque(raw))
        return raw

    def verify(self, raw: wire.RawHeaders, request: SignedRequest, status: int, body: Any) -> None:
        """Check that the node signed an answer; see `verify_response`."""
        verify_response(
            raw,
            request=request,
            server=self._node_id,
            status=status,
            body=body,
            now=self._clock.now(),
        )


def node_refusal(body: Any, status: int) -> CommunityError:
    """The error in a node's refusal."""
    details = dict(body) if isinstance(body, dict) else {}
    try:
        code = Code(details.pop("error", None))
    except ValueError:
        code = Code.INTERNAL_ERROR
    message = details.pop("message", None)
    what = message if isinstance(message, str) else f"the node refused this ({status})"
    return CommunityError(code, what, details=details)


def _json(raw: bytes) -> Any:
    try:
        return canonical.decode(raw, max_bytes=MAX_ANSWER_BYTES)
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


_AHEAD: Final = 16


class LocalTransport(httpx.AsyncBaseTransport):
    """Passes requests to an ASGI application, by default as from this machine (`address`)."""

    def __init__(self, app: ASGIApp, *, address: str = "127.0.0.1") -> None:
        self._app = app
        self._address = address

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass a request on; returns as soon as the response has started."""
        exchange = _LocalExchange(await request.aread())
        path, _, query = request.url.raw_path.partition(b"?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": request.method,
            "headers": [(name.lower(), value) for name, value in request.headers.raw],
            "scheme": request.url.scheme,
            "path": request.url.path,
            "raw_path": path,
            "query_string": query,
            "server": (request.url.host, request.url.port),
            "client": (self._address, 0),
            "root_path": "",
        }
        exchange.start(self._app, scope)
        try:
            head = await exchange.head()
        except BaseException:
            await exchange.aclose()
            raise
        return httpx.Response(head["status"], headers=head.get("headers", ()), stream=exchange)


class _LocalExchange(httpx.AsyncByteStream):
    """One request and its response, which arrives in parts."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._gone = asyncio.Event()
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue(_AHEAD)
        self._task: asyncio.Task[None] | None = None
        self._complete = False

    def start(self, app: ASGIApp, scope: dict[str, Any]) -> None:
        async def run() -> None:
            try:
                await app(scope, self._receive, self._sent.put)
            finally:
                await self._sent.put(None)

        self._task = asyncio.create_task(run(), name=f"local {scope['path']}")

    async def head(self) -> Message:
        """The status and headers of the response."""
        message = await self._sent.get()
        if message is None or message["type"] != "http.response.start":
            raise httpx.RemoteProtocolError("the application gave no answer")
        return message

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self._sent.get()) is not None:
            if part := message.get("body", b""):
                yield part
            if not message.get("more_body", False):
                self._complete = True
                return
        raise httpx.RemoteProtocolError("the application stopped in the middle of its answer")

    async def aclose(self) -> None:
        """Disconnect, and wait until the application has ended."""
        self._gone.set()
        if self._task is not None:
            if not self._complete:
                self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}
