"""Call a node of a community, async (`Client`) or not (`SyncClient`).

`Exchange` is one signed request and its verified answer, `LocalTransport` the way without a socket.
"""

import asyncio
import random
import ssl
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlencode

import httpx
from starlette.types import ASGIApp, Message

from accord.community.bus import calls
from accord.community.bus.calls import Frame
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import wire
from accord.community.rules.capabilities import must_verify_answer
from accord.community.rules.routing import REFUSED_FOR_NOW, UNSENT, RetryPolicy
from accord.community.rules.wire import NO_BODY, SignedRequest, opaque, verify_response
from accord.kernel import canonical, identifiers
from accord.kernel.clock import Clock, SystemClock, format_time
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.telemetry import tracing
from accord.web import outgoing
from accord.web.outgoing import ResponseError

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
        self._http = outgoing.bounded_client(
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
            raise bad_request(str(error)) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _lost(Code.PARTITION, error) from error

    async def read(self, found: httpx.Response, request: SignedRequest, *, verify: bool) -> Any:
        """Read the JSON of an answer.

        Raises the node's refusal, or `invalid_signature` if the answer is not the node's.
        """
        body = _json(await outgoing.read_bounded(found, MAX_ANSWER_BYTES))
        if verify:
            self.verify(found.headers.raw, request, found.status_code, body)
        if found.status_code < _FIRST_ERROR_STATUS:
            return body
        raise node_refusal(body, found.status_code)

    async def read_bytes(self, found: httpx.Response, request: SignedRequest) -> bytes:
        """Read an answer that is not JSON; see `read`."""
        if found.status_code >= _FIRST_ERROR_STATUS:
            await self.read(found, request, verify=True)
        raw = await outgoing.read_bounded(found, MAX_ANSWER_BYTES)
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


class NodeRefusalError(CommunityError):
    """What a node itself has answered, in contrast to what its caller found wrong."""


class AnswerFormError(CommunityError):
    """The node answers by a stream where one answer was expected, or the other way round."""


def node_refusal(body: Any, status: int) -> NodeRefusalError:
    """The error in a node's refusal."""
    details = dict(body) if isinstance(body, dict) else {}
    try:
        code = Code(details.pop("error", None))
    except ValueError:
        code = Code.INTERNAL_ERROR
    message = details.pop("message", None)
    what = message if isinstance(message, str) else f"the node refused this ({status})"
    return NodeRefusalError(code, what, details=details)


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


_CALL: Final = "/bus/v1/call"
_ACK: Final = "/bus/v1/ack"
_SUBSCRIBE: Final = "/pubsub/v1/subscribe"
# A signed request may be sent again while the node still accepts its timestamp.
_RESEND_SECONDS: Final = 40.0
_ACK_EVERY: Final = 16
_ACCEPT: Final = f"{JSON_TYPE}, {EVENT_STREAM_TYPE}"
_SPAN: Final = ("bus request", tracing.SpanKind.CLIENT)
_MAX_FRAME: Final = 8 * 1024 * 1024


class _Progress:
    """How many frames of a stream were read, and whether they must be acknowledged."""

    def __init__(self) -> None:
        self.read = 0
        self.due = asyncio.Event()


class Client:
    """Calls one node in one community; an async context manager.

    Args:
        endpoint: The node's URL, such as `https://192.168.1.4:7080`.
        node_id: The node that must answer.
        transport: The httpx transport; a socket by default.
        verify: Whether every answer is verified. Answers of capabilities that change something
            are always verified.
        seconds: How long the node may be silent.
        routed: Whether the node may have another one serve a call; only its own clients may ask
            for this.
        chance: Spreads retries.
    """

    def __init__(
        self,
        endpoint: str,
        key: SigningKey,
        community: str,
        node_id: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        verify: bool = True,
        retry: RetryPolicy | None = None,
        seconds: float = 70.0,
        routed: bool = False,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.node_id = node_id
        self.community = community
        self._key = key
        self._verify = verify
        self._retry = retry or RetryPolicy()
        self._routed = routed
        self._clock = clock or SystemClock()
        self._chance = chance or random.Random()  # noqa: S311 - it only spreads retries
        self._ids = UlidSource(self._clock)
        self._exchange = Exchange(
            endpoint,
            node_id,
            clock=self._clock,
            ssl_context=ssl_context,
            transport=transport,
            seconds=seconds,
        )

    async def __aenter__(self) -> Self:
        await self._exchange.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exchange.__aexit__()

    async def call(
        self,
        capability: str,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the protocol's word
        *,
        version: str = "1.0",
        idempotent: bool = False,
        retry: RetryPolicy | None = None,
    ) -> dict[str, Any]:
        """Call a capability and return its answer.

        `version` is the lowest acceptable one. A lost call is repeated only if it is `idempotent`;
        `retry` replaces the client's policy for this call.
        Raises with the node's code, or `partition`, `timeout` or `invalid_signature`.
        """
        body = {"params": dict(params or {}), "input": dict(input or {})}
        verify = self._verify or must_verify_answer(capability)
        content = _encode(body)
        request = self._sign_call(capability, version, body)
        signed_at, made = self._clock.monotonic(), 0
        while True:
            made += 1
            try:
                with tracing.span(*_SPAN, capability=capability):
                    return await self._call(request, content, verify=verify)
            except CommunityError as error:
                pause = (retry or self._retry).pause(
                    error, made, self._chance.random(), idempotent=idempotent
                )
                if pause is None:
                    raise
                refused = error.code in REFUSED_FOR_NOW
            await asyncio.sleep(pause)
            # The same request finds the answer that may have been made already; one that was
            # refused needs an id of its own.
            if refused or self._clock.monotonic() - signed_at > _RESEND_SECONDS:
                request = self._sign_call(capability, version, body)
                signed_at = self._clock.monotonic()

    async def stream(
        self,
        capability: str,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the protocol's word
        *,
        version: str = "1.0",
        acks: bool = True,
    ) -> AsyncIterator[Frame]:
        """Call a capability that answers with a stream, and yield its frames; the last is `done`.

        Closing the iterator (best with `contextlib.aclosing`) also ends the call on the node. With
        `acks` frames are acknowledged, so that the node does not run far ahead. Errors carry the
        node's code, in the stream or instead of it.
        """
        body = {"params": dict(params or {}), "input": dict(input or {})}
        request = self._sign_call(capability, version, body)
        further = self._route_header(calls.ROUTE_STREAM)
        if acks:
            further.append((calls.ACK, "frames"))
        progress = _Progress()
        acknowledging = asyncio.create_task(self._acknowledge(request, progress))
        try:
            with tracing.detached_span(*_SPAN, capability=capability) as span:
                further.append((identifiers.TRACEPARENT, tracing.traceparent(span)))
                async with self._exchange.open(
                    "POST", _CALL, request, _encode(body), accept=_ACCEPT, further=further
                ) as found:
                    if not found.headers.get("content-type", "").startswith(EVENT_STREAM_TYPE):
                        await self._exchange.read(found, request, verify=self._verify)
                        raise AnswerFormError(
                            Code.BAD_REQUEST, f"{capability} answered at once", mend="use call"
                        )
                    async for frame in self._frames(found, request):
                        yield frame
                        progress.read += 1
                        if acks and progress.read % _ACK_EVERY == 0:
                            progress.due.set()
        finally:
            acknowledging.cancel()
            await asyncio.gather(acknowledging, return_exceptions=True)

    async def get(self, path: str, query: Mapping[str, str | int] | None = None) -> Any:
        """Get JSON from a member path; errors carry the node's code."""
        text = urlencode(query or {})
        request = self._sign_path(path, text)
        target = f"{path}?{text}" if text else path
        async with self._exchange.open("GET", target, request, b"") as found:
            return await self._exchange.read(found, request, verify=True)

    async def get_bytes(self, path: str) -> bytes:
        """Get bytes from a member path; errors carry the node's code."""
        request = self._sign_path(path, "")
        async with self._exchange.open("GET", path, request, b"") as found:
            return await self._exchange.read_bytes(found, request)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Post JSON to a path of the node; errors carry the node's code."""
        request = self._sign_path(path, body=body)
        async with self._exchange.open("POST", path, request, _encode(body)) as found:
            return await self._exchange.read(found, request, verify=True)

    async def post_bytes(self, path: str, content: bytes) -> bytes:
        """Post bytes to a path of the node, and return bytes; errors carry the node's code."""
        request = self._sign_path(path, body=wire.opaque(content))
        kind = [("Content-Type", "application/octet-stream")]
        async with self._exchange.open("POST", path, request, content, further=kind) as found:
            return await self._exchange.read_bytes(found, request)

    async def subscribe(
        self, topic: str, last_seq: int | None = None, *, seconds: int = 30
    ) -> AsyncIterator[tuple[int, Any]]:
        """Yield the messages of a topic with their numbers, until closed.

        Starts after `last_seq`, or with the next message if None. `seconds` is how long one request
        waits. Errors carry the node's code.
        """
        query: dict[str, str | int] = {"topic": topic, "timeout": seconds}
        if last_seq is not None:
            query["last_seq"] = last_seq
        while True:
            answer = await self.get(_SUBSCRIBE, query)
            for message in answer.get("messages", ()):
                yield message["seq"], message["data"]
            if "last_seq" in answer:
                query["last_seq"] = answer["last_seq"]

    async def _call(
        self, request: SignedRequest, content: bytes, *, verify: bool
    ) -> dict[str, Any]:
        traced = self._route_header(calls.ROUTE_CALL)
        traced.append((identifiers.TRACEPARENT, tracing.traceparent()))
        async with self._exchange.open("POST", _CALL, request, content, further=traced) as found:
            if found.headers.get("content-type", "").startswith(EVENT_STREAM_TYPE):
                raise AnswerFormError(
                    Code.BAD_REQUEST, f"{request.capability} answers by a stream", mend="use stream"
                )
            answer = await self._exchange.read(found, request, verify=verify)
        if not isinstance(answer, dict):
            raise bad_request("the answer is not a JSON object")
        return answer

    async def _frames(self, found: httpx.Response, request: SignedRequest) -> AsyncIterator[Frame]:
        transcript = wire.Transcript()
        waiting = bytearray()
        async for part in found.aiter_bytes():
            blocks: list[bytes] = []
            looked = max(len(waiting) - 1, 0)
            waiting += part
            # A long frame comes in many parts; only what is new can hold its end.
            if waiting.find(b"\n\n", looked) >= 0:
                *blocks, rest = bytes(waiting).split(b"\n\n")
                waiting = bytearray(rest)
            if len(waiting) > _MAX_FRAME:
                raise bad_request("a frame of the stream is too long")
            for block in blocks:
                frame = wire.parse_frame(block, transcript)
                if frame is None:
                    continue
                if frame.event in wire.TERMINAL:
                    self._verify_stream(frame, request, transcript)
                    if frame.event == wire.ERROR:
                        raise node_refusal(frame.data, found.status_code)
                yield Frame(frame.event, frame.data)
                if frame.event == wire.DONE:
                    return
        raise CommunityError(Code.PARTITION, "the stream broke off")

    def _verify_stream(
        self, frame: wire.ParsedFrame, request: SignedRequest, transcript: wire.Transcript
    ) -> None:
        if not (self._verify or must_verify_answer(request.capability or "")):
            return
        raw = [
            (wire.FROM.encode(), self.node_id.encode()),
            (wire.REQUEST_ID.encode(), request.request_id.encode()),
            (wire.TIMESTAMP.encode(), frame.timestamp or b""),
            (wire.SIGNATURE.encode(), frame.signature or b""),
        ]
        self._exchange.verify(raw, request, 200, transcript.body())

    async def _acknowledge(self, request: SignedRequest, progress: "_Progress") -> None:
        while True:
            await progress.due.wait()
            progress.due.clear()
            # A stream that has ended meanwhile needs no acknowledgement.
            with suppress(CommunityError):
                body = {"request_id": request.request_id, "upto": progress.read}
                await self.post(_ACK, body)

    def _route_header(self, how: str) -> list[tuple[str, str]]:
        return [(calls.ROUTE, how)] if self._routed else []

    def _sign_call(self, capability: str, version: str, body: Any) -> SignedRequest:
        return wire.sign_request(
            self._key,
            capability=capability,
            version=version,
            request_id=self._ids.new(),
            community=self.community,
            timestamp=format_time(self._clock.now()),
            body=body,
            to=self.node_id,
        )

    def _sign_path(self, path: str, query: str = "", body: Any = NO_BODY) -> SignedRequest:
        return wire.sign_path_request(
            self._key,
            path=path,
            query=query,
            request_id=self._ids.new(),
            community=self.community,
            timestamp=format_time(self._clock.now()),
            body=body,
            to=self.node_id,
        )


def _encode(body: Any) -> bytes:
    try:
        return canonical.encode(body)
    except canonical.CanonicalError as error:
        raise CommunityError(
            Code.BAD_REQUEST,
            f"this cannot be sent as JSON: {error.what}",
            where=error.where,
            details={UNSENT: True},
        ) from None


T = TypeVar("T")


class SyncClient:
    """Calls one node in one community without asyncio; a context manager. See `Client`."""

    def __init__(
        self, endpoint: str, key: SigningKey, community: str, node_id: str, **options: Any
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="accord client", daemon=True
        )
        self._client = Client(endpoint, key, community, node_id, **options)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._client.__aexit__())
        self._run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(
        self,
        capability: str,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the protocol's word
        **options: Any,
    ) -> dict[str, Any]:
        """See `Client.call`."""
        return self._run(self._client.call(capability, params, input, **options))

    def stream(
        self,
        capability: str,
        params: Mapping[str, Any] | None = None,
        input: Mapping[str, Any] | None = None,  # noqa: A002 - the protocol's word
        **options: Any,
    ) -> Iterator[Frame]:
        """See `Client.stream`."""
        return self._iterate(self._client.stream(capability, params, input, **options))

    def subscribe(
        self, topic: str, last_seq: int | None = None, **options: Any
    ) -> Iterator[tuple[int, Any]]:
        """See `Client.subscribe`."""
        return self._iterate(self._client.subscribe(topic, last_seq, **options))

    def get(self, path: str, query: Mapping[str, str | int] | None = None) -> Any:
        """See `Client.get`."""
        return self._run(self._client.get(path, query))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        end = object()

        async def following() -> T | object:
            return await anext(items, end)

        async def close() -> None:
            await items.aclose()  # type: ignore[attr-defined]

        try:
            while (item := self._run(following())) is not end:
                yield item  # type: ignore[misc]
        finally:
            self._run(close())
