"""Streams: the frames that a handler yields, ended by one `done` or `error`.

A client that acknowledges frames is not outrun by more than the window, and a client that
disconnects ends the handler.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final

import structlog
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from accord.community.bus.answers import (
    AnswerSigner,
    ClientGoneError,
    RequestContext,
    error_body,
    internal_failure,
    while_connected,
)
from accord.community.bus.registry import Call, Frame, Offer
from accord.community.bus.settings import BusSettings
from accord.community.errors import Code, CommunityError
from accord.community.rules import wire
from accord.community.rules.wire import Transcript
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

ACK: Final = "X-HearthNet-Ack"
"""A caller that will acknowledge frames says so by this header, with the value `frames`."""

_log = structlog.stdlib.get_logger(__name__)


class StreamPace:
    """How many frames were sent, and how many the client has read."""

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._sent = 0
        self._read = 0
        self._moved = asyncio.Event()

    def ack(self, upto: int) -> None:
        """Record that the client has read `upto` frames; `bad_request` if fewer were sent."""
        if upto > self._sent:
            raise CommunityError(
                Code.BAD_REQUEST, f"{self._sent} frames were sent so far", where="/upto"
            )
        self._read = max(self._read, upto)
        self._moved.set()

    async def next(self, seconds: float) -> int:
        """The number of the next frame, once it may be sent; `timeout` if the client is stalled."""
        while self._window is not None and self._sent - self._read >= self._window:
            self._moved.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._moved.wait()
            except TimeoutError:
                raise CommunityError(
                    Code.TIMEOUT, f"no frame was acknowledged for {seconds:g} seconds"
                ) from None
        return self.last()

    def last(self) -> int:
        """The number of the last frame, which does not wait."""
        self._sent += 1
        return self._sent


class CallStream(Response):
    """A running stream as a Starlette response.

    Args:
        produced: The handler's iterator.
        ended: Called once, after the last frame or a disconnect, with the error code (None if
            all went well) and what was sent.
    """

    def __init__(
        self,
        offer: Offer,
        call: Call,
        produced: AsyncIterator[Frame],
        *,
        visit: RequestContext,
        signer: AnswerSigner,
        pace: StreamPace,
        settings: BusSettings,
        ended: Callable[[Code | None, Transcript], None],
    ) -> None:
        self.background = None
        self.status_code = 200
        self._offer = offer
        self._call = call
        self._produced = produced
        self._visit = visit
        self._signer = signer
        self._pace = pace
        self._settings = settings
        self._ended = ended
        self._transcript = Transcript()
        self._code: Code | None = Code.PARTITION  # until the last frame was sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream, and end the handler when the client disconnects."""
        name, place = self._offer.descriptor.name, self._visit.trace
        with tracing.incoming_span("bus stream", place, SpanKind.INTERNAL, capability=name):
            try:
                await while_connected(receive, self._pump(send))
            except ClientGoneError:
                pass  # nobody is left to read the rest
            finally:
                self._call.gone.set()
                await self._close()
                tracing.set_attributes(refused=self._code.value if self._code else None)
                self._ended(self._code, self._transcript)

    async def _pump(self, send: Send) -> None:
        await send(self._head())
        self._code, text = await self._say(send)
        await self._send(send, text, is_last=True)

    async def _say(self, send: Send) -> tuple[Code | None, bytes]:
        """Send every frame but the last, which is returned with its error code."""
        try:
            return None, await self._forward(send)
        except ClientGoneError:
            raise
        except CommunityError as error:
            refusal = error
        except TimeoutError:
            refusal = CommunityError(Code.TIMEOUT, "the next frame took too long")
        except Exception:  # noqa: BLE001 - whatever a handler does, its caller hears of an end
            _log.exception("a stream failed", capability=self._offer.descriptor.key)
            refusal = internal_failure()
        return refusal.code, wire.write_frame(wire.ERROR, self._pace.last(), error_body(refusal))

    async def _forward(self, send: Send) -> bytes:
        while (frame := await self._next()).event != wire.DONE:
            number = await self._pace.next(self._settings.stall_seconds)
            await self._send(send, wire.write_frame(frame.event, number, frame.data))
        return wire.write_frame(frame.event, self._pace.last(), frame.data)

    async def _next(self) -> Frame:
        async with asyncio.timeout(self._offer.seconds):
            frame = await anext(self._produced, None)
        key = self._offer.descriptor.key
        if frame is None:
            raise RuntimeError(f"{key} ended its stream without `done`")
        if not wire.is_allowed(self._offer.descriptor.frame, frame.event, frame.data):
            raise RuntimeError(f"{key} broke its own schema in the frame {frame.event!r}")
        return frame

    async def _send(self, send: Send, text: bytes, *, is_last: bool = False) -> None:
        self._transcript.add(text)
        if is_last:
            signed = self._signer.sign(self._visit, 200, self._transcript.body())
            text += wire.write_signature_lines(signed[wire.TIMESTAMP], signed[wire.SIGNATURE])
        message = {"type": "http.response.body", "body": text + b"\n", "more_body": not is_last}
        try:
            async with asyncio.timeout(self._settings.stall_seconds):
                await send(message)
        except TimeoutError:
            raise ClientGoneError from None  # it does not read any more

    def _head(self) -> Message:
        named = {
            "content-type": "text/event-stream",
            wire.REQUEST_ID: self._call.request_id,
            wire.FROM: self._signer.node_id,
        }
        raw = [(name.lower().encode(), value.encode()) for name, value in named.items()]
        return {"type": "http.response.start", "status": 200, "headers": raw}

    async def _close(self) -> None:
        close = getattr(self._produced, "aclose", None)
        if close is None:
            return
        try:
            await close()
        except Exception:  # noqa: BLE001 - its caller has its answer; nobody else can hear of this
            _log.exception("a stream failed at its end", capability=self._offer.descriptor.key)
