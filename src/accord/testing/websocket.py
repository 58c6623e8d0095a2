"""WebSocket connections for the accepting end of a test: in memory, and real ones.

The transports of `accord.testing.connector`. The real one handles frames itself, so that it can be
cut off in the middle, and answers `POST` on the same port.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from accord.relay.gateway.socket import SocketClosed

_ABNORMAL = 1006
_HEAD_BYTES = 64 * 1024

_quiet = logging.getLogger(f"{__name__}.frames")
_quiet.setLevel(logging.INFO)  # tests look for tokens in what gateways log


class TestConnection(Protocol):
    """The accepting end of a socket."""

    async def send(self, data: str | bytes) -> None:
        """Write a message; raises `SocketClosed` after the end."""
        ...

    async def receive(self) -> str | bytes | None:
        """Return the next message; None at the end."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close it properly."""
        ...

    def abort(self) -> None:
        """Drop it at once."""
        ...


@dataclass(frozen=True, slots=True)
class AcceptedConnection:
    """An accepted upgrade and its bearer token."""

    wire: TestConnection
    token: str | None


class MemoryConnection:
    """Both ends of a socket in memory."""

    def __init__(self) -> None:
        self._to_client: asyncio.Queue[str | bytes | SocketClosed] = asyncio.Queue()
        self._to_server: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        self._end: SocketClosed | None = None
        self.client = _MemoryClient(self)

    async def send(self, data: str | bytes) -> None:
        """Write a message to the client."""
        if self._end is not None:
            raise self._end
        self._to_client.put_nowait(data)

    async def receive(self) -> str | bytes | None:
        """Return the client's next message; None at the end."""
        return await self._to_server.get()

    async def close(self, code: int, reason: str) -> None:
        """Close it properly."""
        self._finish(SocketClosed(code, reason))

    def abort(self) -> None:
        """Drop it at once."""
        self._finish(SocketClosed(_ABNORMAL))

    def _finish(self, end: SocketClosed) -> None:
        if self._end is None:
            self._end = end
            self._to_client.put_nowait(end)
            self._to_server.put_nowait(None)

    async def from_client(self, text: str) -> None:
        """Write a message as the client."""
        if self._end is not None:
            raise self._end
        self._to_server.put_nowait(text)

    async def to_client(self) -> str | bytes:
        """Read a message as the client."""
        message = await self._to_client.get()
        if isinstance(message, SocketClosed):
            self._to_client.put_nowait(message)
            raise message
        return message


class _MemoryClient:
    def __init__(self, wire: MemoryConnection) -> None:
        self._wire = wire

    async def send(self, text: str) -> None:
        await self._wire.from_client(text)

    async def receive(self) -> str | bytes:
        return await self._wire.to_client()

    async def close(self) -> None:
        await self._wire.close(1000, "")


class _WebSocketConnection:
    def __init__(
        self,
        protocol: ServerProtocol,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._protocol = protocol
        self._reader = reader
        self._writer = writer
        self._frames: deque[Frame] = deque()

    async def send(self, data: str | bytes) -> None:
        if self._protocol.state is not State.OPEN or self._writer.is_closing():
            raise SocketClosed(_ABNORMAL)
        if isinstance(data, str):
            self._protocol.send_text(data.encode("utf-8", "surrogatepass"))
        else:
            self._protocol.send_binary(data)
        await self.flush()

    async def receive(self) -> str | bytes | None:
        parts: list[bytes] = []
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if frame.opcode is Opcode.CLOSE:
                    return None
                if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                    parts.append(bytes(frame.data))
                    if frame.fin:
                        return b"".join(parts)
            if not await self.read_more():
                return None

    async def close(self, code: int, reason: str) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(code, reason)
            await self.flush()

    def abort(self) -> None:
        self._writer.transport.abort()

    async def read_more(self) -> bool:
        try:
            data = await self._reader.read(_HEAD_BYTES)
        except ConnectionError:
            return False
        if not data:
            self._protocol.receive_eof()
            return False
        self._protocol.receive_data(data)
        events = self._protocol.events_received()
        self._frames.extend(each for each in events if isinstance(each, Frame))
        await self.flush()
        return True

    async def flush(self) -> None:
        for data in self._protocol.data_to_send():
            if self._writer.is_closing():
                return
            if data:
                self._writer.write(data)
            else:
                self._writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()


@asynccontextmanager
async def serve_http(
    accept: Callable[[AcceptedConnection], Awaitable[None]],
    post: Callable[[str, str | None, bytes], Awaitable[int]],
) -> AsyncIterator[str]:
    """Listen on a free loopback port for WebSockets and for `POST`.

    Args:
        accept: Serves an accepted socket.
        post: Returns the status for a path, a bearer token and a body.
    """
    open_tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_tasks.add(task)
        try:
            await _serve_one(reader, writer, accept, post)
        except (ConnectionError, asyncio.IncompleteReadError, WebSocketException):
            pass  # whoever dialled has gone; tests look at what was received
        finally:
            open_tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_HEAD_BYTES)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.close()
        for task in list(open_tasks):
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
        await server.wait_closed()


async def _serve_one(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    accept: Callable[[AcceptedConnection], Awaitable[None]],
    post: Callable[[str, str | None, bytes], Awaitable[int]],
) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    bearer = headers.get("authorization", "")
    token = bearer.removeprefix("Bearer ") if bearer.startswith("Bearer ") else None
    method, path, _ = first.split(" ", 2)
    if method == "POST":
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        status = await post(path, token, body)
        answer = f"HTTP/1.1 {status} Told\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        writer.write(answer.encode())
        await writer.drain()
        return
    protocol = ServerProtocol(max_size=None, logger=_quiet)
    protocol.receive_data(head)
    wire = _WebSocketConnection(protocol, reader, writer)
    (request,) = protocol.events_received()
    assert isinstance(request, Request)
    protocol.send_response(protocol.accept(request))
    await wire.flush()
    await accept(AcceptedConnection(wire, token))
    while protocol.state is not State.CLOSED and await wire.read_more():
        pass  # until the other side has closed, too
