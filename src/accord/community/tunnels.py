"""Tunnels: streams of bytes between a member behind NAT and an anchor, over one WebSocket.

What passes is TLS between the caller and the member, whose certificate its signed manifest names:
the anchor carries it and can neither read nor change it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules.tunnels import (
    MAX_DATA,
    WINDOW,
    FrameKind,
    TunnelFrame,
    credit,
    read_frame,
)

_MAX_STREAM: Final = 2**32 - 1


class TunnelClosedError(Exception):
    """The WebSocket or the stream has ended."""


@dataclass(frozen=True, slots=True)
class MessageSocket:
    """A WebSocket of either side; both functions raise `TunnelClosedError` when it has ended."""

    send: Callable[[bytes], Awaitable[None]]
    receive: Callable[[], Awaitable[bytes | str]]

    @classmethod
    def of_client(cls, connection: ClientConnection) -> "MessageSocket":
        """The end that has dialled."""

        async def send(message: bytes) -> None:
            try:
                await connection.send(message)
            except ConnectionClosed as error:
                raise TunnelClosedError from error

        async def receive() -> bytes | str:
            try:
                return await connection.recv()
            except ConnectionClosed as error:
                raise TunnelClosedError from error

        return cls(send, receive)

    @classmethod
    def of_server(cls, socket: WebSocket) -> "MessageSocket":
        """The end that was dialled."""

        async def send(message: bytes) -> None:
            try:
                await socket.send_bytes(message)
            except (WebSocketDisconnect, RuntimeError) as error:
                raise TunnelClosedError from error

        async def receive() -> bytes | str:
            message = await socket.receive()
            if message["type"] != "websocket.receive":
                raise TunnelClosedError
            data: bytes | None = message.get("bytes")
            return data if data is not None else str(message.get("text") or "")

        return cls(send, receive)


class TunnelStream:
    """One connection within a tunnel."""

    def __init__(self, tunnel: "Tunnel", number: int) -> None:
        self.number = number
        self._tunnel = tunnel
        self._arrived: deque[bytes] = deque()
        self._held = 0
        self._room = WINDOW
        self._changed = asyncio.Event()
        self._ended = False

    async def read(self) -> bytes:
        """The next bytes; empty at the end."""
        while not self._arrived:
            if self._ended:
                return b""
            self._changed.clear()
            await self._changed.wait()
        data = self._arrived.popleft()
        self._held -= len(data)
        if not self._ended:
            await self._tunnel.send(credit(self.number, len(data)))
        return data

    async def write(self, data: bytes) -> None:
        """Send bytes, as fast as the other side takes them; raises `TunnelClosedError`."""
        at = 0
        while at < len(data):
            while not self._room and not self._ended:
                self._changed.clear()
                await self._changed.wait()
            if self._ended:
                raise TunnelClosedError
            part = data[at : at + min(self._room, MAX_DATA)]
            at += len(part)
            self._room -= len(part)
            await self._tunnel.send(TunnelFrame(FrameKind.DATA, self.number, part))

    async def close(self) -> None:
        """End the stream for both sides."""
        if not self._ended:
            self.end()
            self._tunnel.forget(self.number)
            with suppress(TunnelClosedError):
                await self._tunnel.send(TunnelFrame(FrameKind.CLOSE, self.number))

    def take(self, data: bytes) -> None:
        """Accept bytes of the other side; raises `bad_request` beyond the window."""
        self._held += len(data)
        if self._held > WINDOW:
            raise bad_request("a stream has sent more than its window")
        self._arrived.append(data)
        self._changed.set()

    def allow(self, count: int) -> None:
        """Accept a credit; raises `bad_request` for more than was sent."""
        self._room += count
        if self._room > WINDOW:
            raise bad_request("a stream was given credit for what it never sent")
        self._changed.set()

    def end(self) -> None:
        """Mark the stream as ended; what has arrived can still be read."""
        self._ended = True
        self._changed.set()


@dataclass(eq=False, slots=True)
class Tunnel:
    """The streams over one WebSocket.

    `accept` serves each stream that the other side opens; without it none may be opened.
    `replaced` is set when the same member holds another one.
    """

    socket: MessageSocket
    most: int
    accept: Callable[[TunnelStream], Awaitable[None]] | None = None
    replaced: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _streams: dict[int, TunnelStream] = field(default_factory=dict, init=False)
    _serving: set["asyncio.Task[None]"] = field(default_factory=set, init=False)
    _last: int = field(default=0, init=False)

    def __len__(self) -> int:
        return len(self._streams)

    async def run(self) -> None:
        """Pass frames on until the WebSocket ends; raises `bad_request` for a malformed frame."""
        try:
            while True:
                self._take(read_frame(await self.socket.receive()))
        except TunnelClosedError:
            pass
        finally:
            for stream in self._all():
                stream.end()
            self._streams.clear()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def open(self, caller: str) -> TunnelStream:
        """Begin a stream; raises `capacity_exceeded` if there are too many."""
        if len(self._streams) >= self.most or self._last >= _MAX_STREAM:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                "too many connections pass to this node already",
                mend="try again in a moment",
            )
        self._last += 1
        stream = self._streams[self._last] = TunnelStream(self, self._last)
        await self.send(TunnelFrame(FrameKind.OPEN, self._last, caller.encode()))
        return stream

    async def send(self, frame: TunnelFrame) -> None:
        """Send a frame; raises `TunnelClosedError`."""
        await self.socket.send(frame.encode())

    def forget(self, number: int) -> None:
        """Ignore what else arrives for a stream."""
        self._streams.pop(number, None)

    def _all(self) -> Iterator[TunnelStream]:
        return iter(tuple(self._streams.values()))

    def _take(self, frame: TunnelFrame) -> None:
        if frame.kind is FrameKind.OPEN:
            self._begin(frame)
            return
        stream = self._streams.get(frame.stream)
        if stream is None:
            # Of a stream that this side has closed meanwhile.
            return
        match frame.kind:
            case FrameKind.DATA:
                stream.take(frame.data)
            case FrameKind.CREDIT:
                stream.allow(frame.count)
            case FrameKind.CLOSE:
                stream.end()
                self.forget(frame.stream)

    def _begin(self, frame: TunnelFrame) -> None:
        if self.accept is None or frame.stream in self._streams or len(self._streams) >= self.most:
            raise bad_request("the other side may not begin this stream")
        stream = self._streams[frame.stream] = TunnelStream(self, frame.stream)
        task = asyncio.create_task(self._serve(stream, self.accept), name="relayed connection")
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(
        self, stream: TunnelStream, accept: Callable[[TunnelStream], Awaitable[None]]
    ) -> None:
        try:
            await accept(stream)
        finally:
            await stream.close()


async def join_ends(one: Awaitable[object], other: Awaitable[object]) -> None:
    """Run both until either ends."""
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for done in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(done, Exception) and not isinstance(done, TunnelClosedError | OSError):
                raise done
