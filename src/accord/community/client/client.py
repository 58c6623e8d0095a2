"""The client of one node: calls, streams, subscriptions.

Owns signing, retries and acknowledgements. How a request travels is `exchange`'s; which provider
is best is the router's.
"""

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final, Self
from urllib.parse import urlencode

import httpx

from accord import tracing
from accord.community.bus import frames, streams
from accord.community.bus.registry import Frame
from accord.community.client.exchange import EVENTS, JSON, Exchange, refusal
from accord.community.client.retrying import REFUSED_FOR_NOW, Retry
from accord.community.envelope import calls, headers
from accord.community.envelope.calls import NO_BODY, Request
from accord.community.envelope.names import must_verify_answer
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical
from accord.kernel.clock import Clock, SystemClock, format_time
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import UlidSource

_CALL: Final = "/bus/v1/call"
_ACK: Final = "/bus/v1/ack"
_SUBSCRIBE: Final = "/pubsub/v1/subscribe"
# A signed request may be sent again for as long as the node surely takes it for fresh.
_RESEND_SECONDS: Final = 40.0
_ACK_EVERY: Final = 16
_ACCEPT: Final = f"{JSON}, {EVENTS}"
_SPAN: Final = ("bus request", tracing.SpanKind.CLIENT)
_MAX_FRAME: Final = 8 * 1024 * 1024


class _Progress:
    """How many frames of a stream were read, and whether the node should hear of it."""

    def __init__(self) -> None:
        self.read = 0
        self.due = asyncio.Event()


class Client:
    """Speaks with one node in one community; an async context manager.

    Args:
        endpoint: Where the node is, such as `https://192.168.1.4:7080`.
        key: Who calls.
        community: In which community.
        node_id: Which node must answer; nobody else can.
        ssl_context: What the node's certificate is checked against.
        transport: How to get there, if not by a socket.
        verify: Whether every answer is verified; those of capabilities that change something are,
            whatever is said here.
        retry: How stubborn to be.
        seconds: How long the node may be silent.
        clock: The time.
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
        retry: Retry | None = None,
        seconds: float = 70.0,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.node_id = node_id
        self.community = community
        self._key = key
        self._verify = verify
        self._retry = retry or Retry()
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
    ) -> dict[str, Any]:
        """Call a capability and return its answer.

        Args:
            capability: Its name.
            params: What it is about.
            input: What it is given.
            version: The least version that will do.
            idempotent: Whether asking twice is as good as asking once; then a call that was lost
                is sent again.

        Raises:
            CommunityError: With the node's code, or `partition`, `timeout` or `invalid_signature`.
        """
        body = {"params": dict(params or {}), "input": dict(input or {})}
        verify = self._verify or must_verify_answer(capability)
        content = _encode(body)
        request = self._sign_call(capability, version, body)
        signed_at, made = self._clock.monotonic(), 0
        while True:
            made += 1
            try:
                with tracing.step(*_SPAN, capability=capability):
                    return await self._call(request, content, verify=verify)
            except CommunityError as error:
                pause = self._retry.pause(error, made, self._chance.random(), idempotent=idempotent)
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
        """Call a capability that answers by a stream, and yield its frames; the last is `done`.

        Closing the iterator ends the call on the node, too. It is best used with
        `contextlib.aclosing`.

        Args:
            capability: Its name.
            params: What it is about.
            input: What it is given.
            version: The least version that will do.
            acks: Whether to acknowledge frames, so that the node does not run far ahead.

        Raises:
            CommunityError: With the node's code, in the stream or instead of it.
        """
        body = {"params": dict(params or {}), "input": dict(input or {})}
        request = self._sign_call(capability, version, body)
        further = [(streams.ACK, "frames")] if acks else []
        progress = _Progress()
        acknowledging = asyncio.create_task(self._acknowledge(request, progress))
        try:
            with tracing.apart(*_SPAN, capability=capability) as span:
                further.append((tracing.HEADER, tracing.header(span)))
                async with self._exchange.open(
                    "POST", _CALL, request, _encode(body), accept=_ACCEPT, further=further
                ) as found:
                    if not found.headers.get("content-type", "").startswith(EVENTS):
                        await self._exchange.read(found, request, verify=self._verify)
                        raise CommunityError(
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
        """Ask for what a path that is not public has to say.

        Raises:
            CommunityError: With the node's code.
        """
        text = urlencode(query or {})
        request = self._sign_path(path, text)
        target = f"{path}?{text}" if text else path
        async with self._exchange.open("GET", target, request, b"") as found:
            return await self._exchange.read(found, request, verify=True)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send JSON to a path of the node's own.

        Raises:
            CommunityError: With the node's code.
        """
        request = self._sign_path(path, body=body)
        async with self._exchange.open("POST", path, request, _encode(body)) as found:
            return await self._exchange.read(found, request, verify=True)

    async def post_bytes(self, path: str, content: bytes) -> bytes:
        """Send bytes to a path of the node's own, and get bytes.

        Raises:
            CommunityError: With the node's code.
        """
        request = self._sign_path(path, body=calls.opaque(content))
        kind = [("Content-Type", "application/octet-stream")]
        async with self._exchange.open("POST", path, request, content, further=kind) as found:
            return await self._exchange.read_bytes(found, request)

    async def subscribe(
        self, topic: str, last_seq: int | None = None, *, seconds: int = 30
    ) -> AsyncIterator[tuple[int, Any]]:
        """Listen to a topic: its messages with their numbers, as they come, until it is closed.

        Args:
            topic: One of section 8.
            last_seq: After which number to begin; from now on if nothing is said.
            seconds: How long one request waits.

        Raises:
            CommunityError: With the node's code.
        """
        query: dict[str, str | int] = {"topic": topic, "timeout": seconds}
        if last_seq is not None:
            query["last_seq"] = last_seq
        while True:
            told = await self.get(_SUBSCRIBE, query)
            for message in told.get("messages", ()):
                yield message["seq"], message["data"]
            if "last_seq" in told:
                query["last_seq"] = told["last_seq"]

    async def _call(self, request: Request, content: bytes, *, verify: bool) -> dict[str, Any]:
        traced = [(tracing.HEADER, tracing.header())]
        async with self._exchange.open("POST", _CALL, request, content, further=traced) as found:
            if found.headers.get("content-type", "").startswith(EVENTS):
                raise CommunityError(
                    Code.BAD_REQUEST,
                    f"{request.capability} answers by a stream",
                    mend="use stream",
                )
            answer = await self._exchange.read(found, request, verify=verify)
        if not isinstance(answer, dict):
            raise CommunityError(Code.BAD_REQUEST, "the answer is not a JSON object")
        return answer

    async def _frames(self, found: httpx.Response, request: Request) -> AsyncIterator[Frame]:
        transcript = frames.Transcript()
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
                raise CommunityError(Code.BAD_REQUEST, "a frame of the stream is too long")
            for block in blocks:
                frame = frames.parse(block, transcript)
                if frame is None:
                    continue
                if frame.event in frames.TERMINAL:
                    self._verify_stream(frame, request, transcript)
                    if frame.event == frames.ERROR:
                        raise refusal(frame.data, found.status_code)
                yield Frame(frame.event, frame.data)
                if frame.event == frames.DONE:
                    return
        raise CommunityError(Code.PARTITION, "the stream broke off")

    def _verify_stream(
        self, frame: frames.Parsed, request: Request, transcript: frames.Transcript
    ) -> None:
        if not (self._verify or must_verify_answer(request.capability or "")):
            return
        raw = [
            (headers.FROM.encode(), self.node_id.encode()),
            (headers.REQUEST_ID.encode(), request.request_id.encode()),
            (headers.TIMESTAMP.encode(), frame.timestamp or b""),
            (headers.SIGNATURE.encode(), frame.signature or b""),
        ]
        self._exchange.verify(raw, request, 200, transcript.body())

    async def _acknowledge(self, request: Request, progress: "_Progress") -> None:
        """Tell the node how far its stream was read, as often as that is due."""
        while True:
            await progress.due.wait()
            progress.due.clear()
            # A stream that has ended meanwhile needs no acknowledgement.
            with suppress(CommunityError):
                body = {"request_id": request.request_id, "upto": progress.read}
                await self.post(_ACK, body)

    def _sign_call(self, capability: str, version: str, body: Any) -> Request:
        return calls.sign_request(
            self._key,
            capability=capability,
            version=version,
            request_id=self._ids.new(),
            community=self.community,
            timestamp=format_time(self._clock.now()),
            body=body,
            to=self.node_id,
        )

    def _sign_path(self, path: str, query: str = "", body: Any = NO_BODY) -> Request:
        return calls.sign_path_request(
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
            Code.BAD_REQUEST, f"this cannot be sent as JSON: {error.what}", where=error.where
        ) from None
