"""A gateway's socket: its state machine, and the transport under it.

Rows are sent by rising number, once per connection; an unacknowledged row is sent again only on a
later one. The state machine reads no socket, no store and no clock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Protocol

from starlette.types import Receive, Scope, Send

from accord.kernel.clock import Clock
from accord.relay.connector.queue import INBOUND, BufferRow, QueueState, SocketClaim
from accord.relay.connector.settings import DeliveryLimits
from accord.relay.errors import Code, RelayError

_BURST_SECONDS: Final = 10


class SocketState(Enum):
    """The states of a gateway's socket."""

    GREETING = "greeting"
    DRAINING = "draining"
    LIVE = "live"
    SILENT = "silent"
    """It neither acknowledged nor said anything for too long; nothing more is sent to it."""
    IDLE = "idle"
    CLOSED = "closed"


_NEXT = {
    SocketState.GREETING: {SocketState.DRAINING, SocketState.CLOSED},
    SocketState.DRAINING: {
        SocketState.LIVE,
        SocketState.SILENT,
        SocketState.IDLE,
        SocketState.CLOSED,
    },
    SocketState.LIVE: {SocketState.SILENT, SocketState.IDLE, SocketState.CLOSED},
    SocketState.SILENT: {SocketState.DRAINING, SocketState.IDLE, SocketState.CLOSED},
    SocketState.IDLE: {SocketState.CLOSED},
    SocketState.CLOSED: set[SocketState](),
}


@dataclass(frozen=True, slots=True)
class SocketWrite:
    """What is written to the socket next."""

    lines: list[str]
    # Rows that wait for an acknowledgement from now on.
    sent: list[int]
    # Live forwards, which need none.
    done: list[int]
    # The `traceparent` of the rows that have one.
    traces: list[str]


@dataclass(eq=False, repr=False, slots=True)
class SocketSession:
    """Which rows one connection has to send, has sent, and got acknowledged.

    The epoch of `queue`, which this socket took over, is this socket's.
    """

    instance: str
    queue: QueueState
    limits: DeliveryLimits
    state: SocketState = SocketState.GREETING
    # Rows that were delivered too often.
    dead: list[int] = field(default_factory=list)
    _head: int = field(init=False)
    _cursor: int = 0
    _ready: list[BufferRow] = field(default_factory=list)
    # Rows sent and not acknowledged, with the time when each was created.
    _unacked: dict[int, int] = field(default_factory=dict)
    _forwards: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._head = self.queue.head

    @property
    def tenant(self) -> str:
        """The tenant of the instance."""
        return self.queue.tenant

    @property
    def claim(self) -> SocketClaim:
        """The instance and the epoch of this socket."""
        return self.instance, self.queue.epoch

    @property
    def epoch(self) -> int:
        """The epoch of this socket; a newer one has a higher epoch."""
        return self.queue.epoch

    @property
    def series(self) -> str:
        """The prefix of every `bufferId` of this instance."""
        return self.queue.series

    @property
    def unacked(self) -> int:
        """How many rows wait for an acknowledgement."""
        return len(self._unacked)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing more can be sent before something is acknowledged."""
        return len(self._unacked) >= self.limits.window

    @property
    def is_drained(self) -> bool:
        """Whether all known rows were sent and acknowledged."""
        return (
            self.state is SocketState.DRAINING
            and self._cursor >= self._head
            and not self._ready
            and not self._unacked
        )

    @property
    def is_due(self) -> bool:
        """Whether there is something to send, to read or to settle."""
        return bool(self._ready) or self.is_drained or self.wants() is not None

    def move(self, state: SocketState) -> None:
        """Change the state."""
        if state not in _NEXT[self.state]:
            raise RelayError(
                Code.INTERNAL_ERROR,
                f"a socket cannot go from {self.state.value} to {state.value}",
                where=self.instance,
            )
        self.state = state
        if not self.is_delivering:
            if self._ready:
                # A silent socket may be heard again, and then reads them anew.
                self._cursor = self._ready[0].seq - 1
            self._ready.clear()

    def offer(self, rows: Iterable[BufferRow], head: int) -> None:
        """Rows were committed; they are kept if they come next and there is room."""
        for row in rows:
            if (
                row.seq == self._cursor + 1
                and self.is_delivering
                and len(self._ready) < self.limits.window
            ):
                self._keep(row)
        self._head = max(self._head, head)

    def wants(self) -> tuple[int, int] | None:
        """Which rows to read, as (after, known to exist); None when nothing is missing or fits."""
        if not self.is_delivering or self._ready or self.is_stuck or self._cursor >= self._head:
            return None
        return self._cursor, self._head

    def loaded(self, wanted: tuple[int, int], rows: list[BufferRow], *, is_all: bool) -> None:
        """Take over the rows that were read for `wanted`; `is_all` when there are no more."""
        after, known = wanted
        if after != self._cursor or not self.is_delivering:
            return
        for row in rows:
            self._keep(row)
        if is_all:
            # Rows up to `known` that were not returned are already acked.
            self._cursor = max(self._cursor, known)

    def take(self, most_bytes: int) -> SocketWrite:
        """The rows to send now, in order, as far as the window allows."""
        lines: list[str] = []
        sent: list[int] = []
        done: list[int] = []
        size = 0
        for row in self._ready:
            if size >= most_bytes:
                break
            if row.kind == INBOUND:
                if self.is_stuck:
                    break
                self._unacked[row.seq] = row.created_at
                line = row.line(self.queue.series)
                sent.append(row.seq)
            elif self.state is SocketState.LIVE and row.deliveries == 0:
                line = row.line(None)
                done.append(row.seq)
            else:
                self._forwards[row.seq] = row.created_at
                line = row.line(self.queue.series)
                sent.append(row.seq)
            lines.append(line)
            size += len(line)
        traces = [row.traceparent for row in self._ready[: len(lines)] if row.traceparent]
        del self._ready[: len(lines)]
        return SocketWrite(lines, sent, done, traces)

    def ack(self, seq: int) -> int | None:
        """When the acknowledged row was created; None when it was not sent on this connection.

        A forward needs no acknowledgement, but a gateway may send one.
        """
        made = self._unacked.pop(seq, None)
        return self._forwards.pop(seq, None) if made is None else made

    @property
    def is_delivering(self) -> bool:
        """Whether rows are sent to it."""
        return self.state in (SocketState.DRAINING, SocketState.LIVE)

    def _keep(self, row: BufferRow) -> None:
        self._cursor = row.seq
        most = self.limits.deliveries if row.kind == INBOUND else self.limits.forward_deliveries
        if row.deliveries >= most:
            self.dead.append(row.seq)
        else:
            self._ready.append(row)


@dataclass(eq=False, repr=False, slots=True)
class TokenBucket:
    """A token bucket of `rate` tokens a second that holds ten seconds' worth."""

    clock: Clock
    rate: float
    _left: float = field(init=False)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._left = self.most
        self._at = self.clock.monotonic()

    @property
    def most(self) -> float:
        """The size of the bucket."""
        return self.rate * _BURST_SECONDS

    def spend(self, amount: float) -> bool:
        """Take an amount, also beyond what is left; whether there was enough."""
        now = self.clock.monotonic()
        gained = self._left + (now - self._at) * self.rate
        self._left = min(gained, self.most) - amount
        self._at = now
        return self._left >= 0


_BEARER = b"bearer "


class SocketTransport(Protocol):
    """An accepted socket of messages."""

    async def receive(self) -> str | bytes | None:
        """The next message; None when the socket has ended."""
        ...

    async def send(self, text: str) -> None:
        """Write a message, waiting while the peer does not read; a closed socket ignores it."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Close the socket; closing it twice changes nothing."""
        ...

    def ping(self) -> None:
        """Ask the peer for a pong, where the server can."""
        ...

    @property
    def pongs(self) -> int:
        """How many pongs have come; always 0 where the server does not tell."""
        ...


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class AsgiTransport:
    """A WebSocket of an ASGI server."""

    _receive: Receive
    _send: Send
    # The server's extension for pings: functions `ask` and `pongs`.
    _pings: Mapping[str, Any] = field(default_factory=dict)

    def ping(self) -> None:
        """Ask the peer for a pong, where the server can."""
        if self._pings:
            self._pings["ask"]()

    @property
    def pongs(self) -> int:
        """How many pongs have come; always 0 where the server does not tell."""
        return int(self._pings["pongs"]()) if self._pings else 0

    async def accept(self) -> bool:
        """Accept the upgrade; False when the peer has gone."""
        if (await self._receive())["type"] != "websocket.connect":
            return False
        return await self._write({"type": "websocket.accept"})

    async def receive(self) -> str | bytes | None:
        """The next message; None when the socket has ended."""
        message = await self._receive()
        if message["type"] != "websocket.receive":
            return None
        text: str | bytes | None = message.get("text")
        return text if text is not None else message.get("bytes") or b""

    async def send(self, text: str) -> None:
        """Write a message, waiting while the peer does not read."""
        await self._write({"type": "websocket.send", "text": text})

    async def close(self, code: int, reason: str) -> None:
        """Close the socket."""
        await self._write({"type": "websocket.close", "code": code, "reason": reason})

    async def _write(self, message: dict[str, Any]) -> bool:
        try:
            await self._send(message)
        except (OSError, RuntimeError):
            # The peer is gone, or the socket was closed meanwhile: `receive` returns None.
            return False
        return True


def bearer(scope: Scope) -> str | None:
    """The token of an upgrade request."""
    for name, value in scope["headers"]:
        if name == b"authorization" and value[: len(_BEARER)].lower() == _BEARER:
            token: str = value[len(_BEARER) :].decode("latin-1").strip()
            return token
    return None
