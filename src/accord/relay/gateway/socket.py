"""The connection to the connector: the WebSocket, the handshake, frames in and lines out.

The upgrade token goes to the connector that was named and nowhere else: redirects are not
followed, and it is not logged. Bad lines and unknown frames are dropped and counted; only the end
of the socket ends a link.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from accord.kernel import canonical
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.limits import GatewayLimits
from accord.relay.rules.frames import (
    CONTRACT_VERSION,
    BadLine,
    Described,
    Descriptor,
    Frame,
    Hello,
    HelloRefused,
    LineReader,
    UnknownFrame,
    cut_line,
    read_frame,
    write_frame,
)

_ABNORMAL: Final = 1006

_quiet = logging.getLogger(f"{__name__}.frames")
_quiet.setLevel(logging.INFO)  # at debug the library shows headers, and with them the token


class SocketClosed(Exception):  # noqa: N818 - the end of a socket is news, not a fault
    """The socket has ended; the code is 1006 where the peer sent none."""

    def __init__(self, code: int, reason: str = "") -> None:
        super().__init__(f"closed with {code} {reason[:200]!r}")
        self.code = code
        self.reason = reason


class Socket(Protocol):
    """An open socket of messages."""

    async def send(self, text: str) -> None:
        """Write a message; an ended socket raises SocketClosed."""
        ...

    async def receive(self) -> str | bytes:
        """The next message; an ended socket raises SocketClosed."""
        ...

    async def close(self) -> None:
        """Close it; closing it twice changes nothing."""
        ...


Dial = Callable[[str, str], AbstractAsyncContextManager[Socket]]
"""Opens a socket to an address with an upgrade token, and closes it at the end of the block."""


class _Connect(connect):
    """A connection that follows no redirect."""

    def process_redirect(self, exc: Exception) -> Exception:
        """Refuse: the token is for the address that was given."""
        return exc


@dataclass(frozen=True, slots=True)
class _WebSocket:
    """A WebSocket of the `websockets` library."""

    connection: ClientConnection

    async def send(self, text: str) -> None:
        try:
            await self.connection.send(text)
        except ConnectionClosed as closed:
            raise _socket_closed(closed) from None

    async def receive(self) -> str | bytes:
        try:
            return await self.connection.recv()
        except ConnectionClosed as closed:
            raise _socket_closed(closed) from None

    async def close(self) -> None:
        await self.connection.close()


def websocket_dialer(limits: GatewayLimits) -> Dial:
    """A `Dial` that opens WebSockets."""

    @asynccontextmanager
    async def dial(url: str, token: str) -> AsyncIterator[Socket]:
        try:
            connection = await _Connect(
                url,
                additional_headers={"Authorization": f"Bearer {token}"},
                compression=None,
                open_timeout=limits.handshake,
                ping_interval=limits.ping,
                ping_timeout=limits.ping,
                close_timeout=limits.close,
                max_size=limits.message_bytes,
                logger=_quiet,
            )
        except (OSError, WebSocketException, ValueError) as error:
            raise RelayError(
                Code.UNAVAILABLE,
                f"the connector does not answer ({str(error) or type(error).__name__})",
                where=url.rpartition("@")[2],  # without user info
            ) from error
        try:
            yield _WebSocket(connection)
        finally:
            await connection.close()

    return dial


def _socket_closed(closed: ConnectionClosed) -> SocketClosed:
    if closed.rcvd is None:
        # Also where this side ended it, such as for a message that was too long.
        return SocketClosed(closed.sent.code if closed.sent else _ABNORMAL)
    return SocketClosed(closed.rcvd.code, closed.rcvd.reason)


_log = structlog.stdlib.get_logger(__name__)

# What may arrive before the last descriptor; a connector sends far less.
_EARLY = 4096


class ConnectorSocket:
    """An open socket to the connector, from the first hello on.

    Attributes:
        idle_acked: Set when the connector confirmed that it buffers.
        has_wake_url: Whether it said then that it can wake this gateway; None if it did not say.
        request_seconds: How long the connector recognises a repeated request; None if it does not
            say.
        lost: Set by the reader when the socket has ended.
    """

    def __init__(self, socket: Socket, limits: GatewayLimits, counts: Counter[str]) -> None:
        self._socket = socket
        self._limits = limits
        self._counts = counts
        self._reader = LineReader(limits.line_bytes)
        self._lines: deque[bytes] = deque()
        self._early: deque[Frame] = deque()
        self._writing = asyncio.Lock()
        self.idle_acked = asyncio.Event()
        self.has_wake_url: bool | None = None
        self.request_seconds: float | None = None
        self.lost = asyncio.Event()

    async def handshake(self, hellos: Sequence[Hello]) -> tuple[Descriptor, ...]:
        """Send every hello without waiting, and return the descriptors.

        A platform that the connector refuses is logged and left out.

        Raises:
            RelayError: A descriptor cannot be read or did not come in time, or all were refused.
            SocketClosed: The socket ended.
        """
        await self.send(hellos)
        found: list[Descriptor] = []
        refused: list[HelloRefused] = []
        try:
            async with asyncio.timeout(self._limits.handshake):
                while len(found) + len(refused) < len(hellos):
                    frame = await self._next(greeting=True)
                    if isinstance(frame, Described):
                        found.append(frame.descriptor)
                        self.request_seconds = frame.request_seconds
                    elif isinstance(frame, HelloRefused):
                        refused.append(frame)
                    elif len(self._early) < _EARLY:
                        self._early.append(frame)
                    else:
                        raise _failed("it sent frames instead of a descriptor")
        except TimeoutError:
            raise _failed(
                f"{len(found)} of {len(hellos)} descriptors came in "
                f"{self._limits.handshake:g} seconds"
            ) from None
        for each in refused:
            self._counts["hellos refused"] += 1
            _log.warning("the connector refused a platform", platform=each.platform, why=each.error)
        if not found:
            raise _failed(f"it refused every platform: {refused[0].error}")
        if any(each.contract_version > CONTRACT_VERSION for each in found):
            self._counts["newer contracts"] += 1
        return tuple(found)

    async def next(self) -> Frame:
        """The next frame; raises SocketClosed at the end."""
        return self._early.popleft() if self._early else await self._next()

    async def send(self, frames: Iterable[Frame]) -> None:
        """Write frames together; raises SocketClosed."""
        await self.write(b"".join(map(write_frame, frames)))

    async def write(self, lines: bytes) -> None:
        """Write encoded lines, in messages that the peer accepts; raises SocketClosed."""
        async with self._writing:  # so that the messages of one line are not interleaved
            for message in cut_line(lines):
                await self._socket.send(message.decode())

    async def unless_lost(self, work: Coroutine[Any, Any, Any], within: float | None) -> bool:
        """Whether `work` was done in time and before this link was lost."""
        tasks = [asyncio.create_task(work), asyncio.create_task(self.lost.wait())]
        try:
            await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
            return tasks[0].done() and not self.lost.is_set()
        finally:
            for task in tasks:
                task.cancel()

    async def close(self) -> None:
        """Close it; the reader gets SocketClosed."""
        await self._socket.close()

    async def _next(self, *, greeting: bool = False) -> Frame:
        while True:
            while not self._lines:
                before = self._reader.dropped
                self._lines.extend(self._reader.feed(await self._socket.receive()))
                self._counts["lines too long"] += self._reader.dropped - before
            line = self._lines.popleft()
            frame = read_frame(line)
            if isinstance(frame, BadLine):
                self._counts["bad lines"] += 1
                if greeting:
                    _refuse_descriptor(line)
            elif isinstance(frame, UnknownFrame):
                self._counts["unknown frames"] += 1
            else:
                return frame


def _refuse_descriptor(line: bytes) -> None:
    """Raise if a bad line is a descriptor; other bad lines are dropped."""
    try:
        given = canonical.decode(line)
    except canonical.CanonicalError:
        return
    if isinstance(given, dict) and given.get("type") == "descriptor":
        try:
            Descriptor.from_dict(given.get("descriptor"))
        except RelayError as error:
            raise _failed(f"its descriptor cannot be used: {error}") from error


def _failed(what: str) -> RelayError:
    return RelayError(
        Code.UNAVAILABLE,
        f"the handshake with the connector failed, {what}",
        mend="see the connector's log",
    )
