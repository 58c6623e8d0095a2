"""A small connector for tests of gateways, which can be told to misbehave.

It checks the token, answers hellos, redelivers what was not acknowledged after the next handshake,
confirms `going_idle`, and records everything it receives. It is reached in memory, on virtual time
(`dial`), or over a real socket (`listening`). It has no gate, no store and no platform.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from websockets.exceptions import WebSocketException
from websockets.frames import Frame as WireFrame
from websockets.frames import Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

from accord.kernel import canonical, tokens
from accord.kernel.clock import Clock, SystemClock
from accord.relay.gateway.socket import Socket, SocketClosed
from accord.relay.rules.connection import UNAUTHORIZED, CloseReason
from accord.relay.rules.frames import (
    BadLine,
    Described,
    Descriptor,
    Frame,
    GoingIdle,
    GoingIdleAck,
    Hello,
    HelloRefused,
    Inbound,
    InboundAck,
    Interrupt,
    InterruptInbound,
    LineReader,
    Outbound,
    OutboundResult,
    Passthrough,
    Result,
    UnknownFrame,
    cut_line,
    read_frame,
    write_frame,
)
from accord.relay.rules.messages import MessageEvent, PassthroughForward

_ABNORMAL = 1006
_HEAD_BYTES = 64 * 1024

_quiet = logging.getLogger(f"{__name__}.frames")
_quiet.setLevel(logging.INFO)  # tests look for tokens in what gateways log
GATEWAY = "gateway-1"
SECRET = "not a secret"  # noqa: S105 - it protects nothing
DESCRIPTOR = Descriptor("web", "Web chat", 2000, False, True, True, "markdown", "chars")


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
        self._frames: deque[WireFrame] = deque()

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
        self._frames.extend(each for each in events if isinstance(each, WireFrame))
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

    `post` returns the status for a path, a bearer token and a body.
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


class Connector:
    """The other end of a gateway.

    Args:
        descriptor: The answer to every hello; the attribute may be a function of the hello.
        clock: By which tokens expire.

    Attributes:
        refusals: Close reasons for the next dials; None accepts one.
        statuses: HTTP statuses for the next policy declarations.
        answers: Returns the result of an action; None for no answer.
        describes: Whether hellos are answered.
        confirms: Whether `going_idle` is confirmed.
        has_wake_url: What that confirmation says of waking the gateway; None for nothing.
        request_seconds: How long it says that it recognises repeated requests; None for nothing.
        piece: Split messages into pieces of so many bytes; None to send them whole.
        dials, posts: The tokens that were shown.
        hellos, acks, actions, interrupts, idles, policies, bad: What was received.
    """

    def __init__(self, descriptor: Descriptor = DESCRIPTOR, clock: Clock | None = None) -> None:
        self.descriptor: Descriptor | Callable[[Hello], Descriptor | HelloRefused] = descriptor
        self._clock = clock or SystemClock()
        self.refusals: deque[str | None] = deque()
        self.statuses: deque[int] = deque()
        self.answers: Callable[[Outbound], Result | None] = _succeed()
        self.describes = True
        self.confirms = True
        self.has_wake_url: bool | None = None
        self.request_seconds: float | None = None
        self.piece: int | None = None
        self.dials: list[str | None] = []
        self.posts: list[str | None] = []
        self.hellos: list[Hello] = []
        self.acks: list[str] = []
        self.actions: list[Outbound] = []
        self.interrupts: list[Interrupt] = []
        self.idles = 0
        self.policies: list[dict[str, Any]] = []
        self.bad: list[str] = []
        self.flipped = False
        self._buffer: dict[str, Frame] = {}
        self._wire: TestConnection | None = None
        self._greeted = False
        self._changed = asyncio.Condition()
        self._writing = asyncio.Lock()

    @property
    def connected(self) -> bool:
        """Whether a gateway is connected and has completed the handshake."""
        return self._wire is not None and self._greeted

    @property
    def texts(self) -> list[str]:
        """The texts that were sent and edited, in order."""
        actions = [each.action for each in self.actions]
        return [content for each in actions if (content := getattr(each, "content", None))]

    def ops(self, *names: str) -> list[Any]:
        """Return the actions of some kinds, in order."""
        return [each.action for each in self.actions if each.action.op in names]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition on what was received."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def deliver(self, event: MessageEvent, buffer_id: str) -> None:
        """Deliver an event, now or after the next handshake, until it is acknowledged."""
        await self._keep(Inbound(event, buffer_id), buffer_id)

    async def forward(self, forward: PassthroughForward, buffer_id: str | None = None) -> None:
        """Forward a request; without a buffer id it is not delivered again."""
        frame = Passthrough(forward, buffer_id)
        if buffer_id is None:
            await self.send(frame)
        else:
            await self._keep(frame, buffer_id)

    async def interrupt(self, session_key: str, chat_id: str = "") -> None:
        """Interrupt the turn of a session."""
        await self.send(InterruptInbound(session_key, chat_id))

    async def send(self, *frames: Frame) -> None:
        """Send frames in one message, or in pieces."""
        await self.raw(b"".join(map(write_frame, frames)).decode())

    async def raw(self, data: str | bytes) -> None:
        """Send a message as it is."""
        assert self._wire is not None
        wire = self._wire
        if isinstance(data, bytes) or self.piece is None:
            await wire.send(data)
            return
        async with self._writing:
            for message in cut_line(data.encode(), self.piece):
                await wire.send(message.decode())

    async def close(self, code: int, reason: str = "") -> None:
        """Close the socket properly."""
        if self._wire is not None:
            await self._wire.close(code, reason)

    def drop(self) -> None:
        """Drop the socket without closing it, as a power cut does."""
        if self._wire is not None:
            self._wire.abort()

    @asynccontextmanager
    async def dial(self, _url: str, token: str) -> AsyncIterator[Socket]:
        """Connect in memory: a gateway's `dial`."""
        wire = MemoryConnection()
        serving = asyncio.create_task(self._accept(AcceptedConnection(wire, token)))
        try:
            yield wire.client
        finally:
            await wire.client.close()
            serving.cancel()
            await asyncio.wait({serving})

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Listen on a real socket and yield its address."""
        async with serve_http(self._accept, self._post) as address:
            yield address

    async def _post(self, path: str, token: str | None, body: bytes) -> int:
        self.posts.append(token)
        status = 404 if path != "/relay/policy" else 401 if self._refusal(token) else 200
        status = self.statuses.popleft() if self.statuses else status
        if status == 200:
            self.policies.append(canonical.decode(body))
        await self._notify()
        return status

    async def _accept(self, accepted: AcceptedConnection) -> None:
        wire, token = accepted.wire, accepted.token
        self.dials.append(token)
        refusal = self.refusals.popleft() if self.refusals else self._refusal(token)
        await self._notify()
        if refusal is not None:
            await wire.close(UNAUTHORIZED, refusal)
            return
        self._wire, self._greeted = wire, False
        reader = LineReader()
        try:
            while (message := await wire.receive()) is not None:
                for line in reader.feed(message):
                    await self._handle(read_frame(line))
                    await self._notify()
        finally:
            if self._wire is wire:
                self._wire = None
            await self._notify()

    def _refusal(self, token: str | None) -> str | None:
        if token is None or (expiry := tokens.expiry(token)) is None:
            return CloseReason.UNAUTHORIZED.value
        if tokens.verify(token, [SECRET], expiry) != GATEWAY:
            return CloseReason.UNAUTHORIZED.value
        return CloseReason.EXPIRED.value if expiry < self._clock.now() else None

    async def _handle(self, frame: Frame | UnknownFrame | BadLine) -> None:
        match frame:
            case Hello():
                self.hellos.append(frame)
                if self.describes:
                    await self._greet(frame)
            case InboundAck(buffer_id):
                self.acks.append(buffer_id)
                self._buffer.pop(buffer_id, None)
            case Outbound(request_id):
                self.actions.append(frame)
                if (result := self.answers(frame)) is not None:
                    await self.send(OutboundResult(request_id, result))
            case Interrupt():
                self.interrupts.append(frame)
            case GoingIdle():
                self.idles += 1
                if self.confirms:
                    self.flipped = True
                    await self.send(GoingIdleAck(self.has_wake_url))
            case _:
                self.bad.append(repr(frame))

    async def _greet(self, hello: Hello) -> None:
        described = self.descriptor
        answer = described(hello) if callable(described) else described
        if isinstance(answer, HelloRefused):
            await self.send(answer)
            return
        await self.send(Described(answer, self.request_seconds))
        if not self._greeted:
            self._greeted, self.flipped = True, False
            if self._buffer:
                await self.send(*self._buffer.values())

    async def _keep(self, frame: Frame, buffer_id: str) -> None:
        self._buffer[buffer_id] = frame
        if self.connected and not self.flipped:
            try:
                await self.send(frame)
            except SocketClosed:
                return  # it is delivered after the next handshake

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _succeed() -> Callable[[Outbound], Result]:
    numbers = iter(range(1, 1_000_000))

    def answer(outbound: Outbound) -> Result:
        if outbound.action.op in ("send", "follow_up"):
            return Result(True, f"sent-{next(numbers)}")
        if outbound.action.op == "get_chat_info":
            return Result(True, chat_info={"name": "general", "type": "group"})
        return Result(True)

    return answer
