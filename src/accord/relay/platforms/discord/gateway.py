"""A connection to Discord's gateway.

Dispatches are queued in order until they are taken; when too many bytes wait, the connection
ends and the session is resumed. It is closed so that the session can be resumed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import orjson
import structlog
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from accord.relay.errors import Code, RelayError
from accord.relay.platforms.discord.rules.protocol import (
    KEEPS_SESSION,
    VERSION,
    Heartbeat,
    NextStep,
    Op,
    after_close,
    heartbeat_payload,
)
from accord.relay.platforms.settings import DiscordSettings

_CLOSE_SECONDS: Final = 1.0
_ABNORMAL: Final = 1006
_TOO_LARGE: Final = 1009
_SESSION_LOST: Final = 4009

_log = structlog.stdlib.get_logger(__name__)
_quiet = logging.getLogger(f"{__name__}.frames")
_quiet.setLevel(logging.INFO)  # at debug the library shows what is sent, and so the token


@dataclass(frozen=True, slots=True)
class Dispatch:
    """An event that the gateway sent."""

    name: str
    seq: int
    data: Any


@dataclass(frozen=True, slots=True)
class ConnectionEnd:
    """How a connection ended; `wished` if the gateway asked for it and nothing is wrong."""

    next: NextStep
    reason: str
    wished: bool = False


class _Connect(connect):
    """A connection that follows no redirect."""

    def process_redirect(self, exc: Exception) -> Exception:
        """Refuse: the token is for the address that was given."""
        return exc


class GatewayConnection:
    """An open connection, from its HELLO on; see `dial`."""

    def __init__(
        self, socket: ClientConnection, pulse: Heartbeat, first_beat: float, most_bytes: int
    ) -> None:
        self._socket = socket
        self._most_bytes = most_bytes
        self._pulse = pulse
        self._received: int | None = None
        self._waiting: deque[tuple[Dispatch, int]] = deque()
        self._waiting_bytes = 0
        self._ending: int | ConnectionEnd | None = None
        self._news = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._guarded(self._read)),
            asyncio.create_task(self._guarded(lambda: self._beat(first_beat))),
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._socket.close(KEEPS_SESSION)

    async def send(self, payload: dict[str, Any]) -> None:
        """Send a payload; does nothing on a connection that has ended."""
        try:
            await self._socket.send(orjson.dumps(payload).decode())
        except ConnectionClosed as closed:
            self._end(_code(closed))

    async def next(self) -> Dispatch | ConnectionEnd:
        """The next dispatch, or how the connection ended.

        Raises:
            RelayError: It ended in a way that needs an operator.
        """
        while not self._waiting:
            match self._ending:
                case ConnectionEnd():
                    return self._ending
                case int(code):
                    return ConnectionEnd(after_close(code), f"the gateway closed ({code})")
            self._news.clear()
            await self._news.wait()
        dispatch, size = self._waiting.popleft()
        self._waiting_bytes -= size
        return dispatch

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except ConnectionClosed as closed:
            self._end(_code(closed))

    async def _read(self) -> None:
        while self._ending is None:
            raw = await self._socket.recv(decode=False)
            try:
                payload = orjson.loads(raw)
            except orjson.JSONDecodeError:
                payload = None
            match payload:
                case {"op": Op.DISPATCH, "s": int(seq), "t": str(name)}:
                    self._received = seq
                    self._waiting.append((Dispatch(name, seq, payload.get("d")), len(raw)))
                    self._waiting_bytes += len(raw)
                    self._news.set()
                    if self._waiting_bytes > self._most_bytes:
                        self._end(
                            ConnectionEnd(NextStep.RESUME, "more came than could be dealt with")
                        )
                case {"op": Op.HEARTBEAT}:
                    await self.send(heartbeat_payload(self._received))
                case {"op": Op.HEARTBEAT_ACK}:
                    self._pulse.acknowledged()
                case {"op": Op.RECONNECT}:
                    self._end(
                        ConnectionEnd(NextStep.RESUME, "the gateway asked for it", wished=True)
                    )
                case {"op": Op.INVALID_SESSION}:
                    step = NextStep.RESUME if payload.get("d") is True else NextStep.IDENTIFY
                    self._end(ConnectionEnd(step, "the session is not valid"))
                case {"op": int(op)}:
                    _log.debug("an unknown gateway opcode is skipped", op=op)
                case _:
                    _log.warning("a malformed gateway payload is skipped", bytes=len(raw))

    async def _beat(self, pause: float) -> None:
        while self._ending is None:
            await asyncio.sleep(pause)
            pause = self._pulse.interval
            if not self._pulse.beat():
                self._end(ConnectionEnd(NextStep.RESUME, "the gateway no longer answers"))
                return
            await self.send(heartbeat_payload(self._received))

    def _end(self, ending: int | ConnectionEnd) -> None:
        if self._ending is None:
            self._ending = ending
            self._news.set()


async def dial(
    url: str, settings: DiscordSettings, chance: Callable[[], float]
) -> GatewayConnection:
    """Connect to the gateway and read its HELLO; `chance` spreads the first heartbeat.

    Raises:
        RelayError: It cannot be reached (UNAVAILABLE), or it closed at once.
    """
    address = f"{url.partition('?')[0].rstrip('/')}/?v={VERSION}&encoding=json"
    try:
        socket = await _Connect(
            address,
            compression=None,
            open_timeout=settings.open_seconds,
            close_timeout=_CLOSE_SECONDS,
            ping_interval=None,  # it has a heartbeat of its own
            max_size=settings.payload_bytes,
            proxy=None,
            logger=_quiet,
        )
    except (OSError, WebSocketException, ValueError) as error:
        raise _unreachable(type(error).__name__) from None
    try:
        async with asyncio.timeout(settings.open_seconds):
            hello = _hello(await socket.recv(decode=False))
            pulse = Heartbeat.of(hello, settings.missed_heartbeats)
    except BaseException as error:
        await socket.close(KEEPS_SESSION)
        if isinstance(error, ConnectionClosed):
            after_close(_code(error))
            raise _unreachable(f"it closed with {_code(error)}") from None
        if isinstance(error, TimeoutError):
            raise _unreachable("it does not say hello") from None
        raise
    return GatewayConnection(socket, pulse, pulse.first(chance()), settings.payload_bytes)


def _hello(raw: str | bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


def _code(closed: ConnectionClosed) -> int:
    """The close code; 1006 where there was none."""
    if closed.sent is not None and closed.sent.code == _TOO_LARGE:
        return _SESSION_LOST  # to resume would bring the same payload again
    return closed.rcvd.code if closed.rcvd is not None else _ABNORMAL


def _unreachable(why: str) -> RelayError:
    return RelayError(Code.UNAVAILABLE, f"Discord's gateway does not answer ({why})")
