"""One gateway's socket as a state machine: what may be sent, what is awaited, when it is drained.

Owns the order of rows on a connection: they are sent by rising number, each once, and a row that
was not acknowledged is sent again only on a later connection. Pure: it reads no socket, no store
and no clock; `connection` feeds it and does what it says.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from accord.relay.connector.delivery.entries import INBOUND, Claim, Queue, Row
from accord.relay.connector.delivery.limits import Limits
from accord.relay.errors import Code, RelayError


class SocketState(Enum):
    """Where a socket is in its life."""

    GREETING = "greeting"
    DRAINING = "draining"
    LIVE = "live"
    IDLE = "idle"
    CLOSED = "closed"


_NEXT = {
    SocketState.GREETING: {SocketState.DRAINING, SocketState.CLOSED},
    SocketState.DRAINING: {SocketState.LIVE, SocketState.IDLE, SocketState.CLOSED},
    SocketState.LIVE: {SocketState.IDLE, SocketState.CLOSED},
    SocketState.IDLE: {SocketState.CLOSED},
    SocketState.CLOSED: set[SocketState](),
}


@dataclass(frozen=True, slots=True)
class Consignment:
    """What goes onto the socket next.

    Attributes:
        lines: The frames, in order.
        sent: Rows that wait for an acknowledgement from now on.
        done: Live forwards, which are done with once they are written.
        traces: Where in a trace each of the rows is, where that is known.
    """

    lines: list[str]
    sent: list[int]
    done: list[int]
    traces: list[str]


class Session:
    """What one connection owes and is owed.

    Args:
        instance: Whose socket it is, by the stored record.
        queue: How the queue stood when this socket took it over; its epoch is this socket's.
        limits: The window, and how often a row is tried.
    """

    __slots__ = (
        "_cursor",
        "_forwards",
        "_head",
        "_limits",
        "_ready",
        "_series",
        "_unacked",
        "claim",
        "dead",
        "instance",
        "state",
        "tenant",
    )

    def __init__(self, instance: str, queue: Queue, limits: Limits) -> None:
        self.instance = instance
        self.tenant = queue.tenant
        self.claim: Claim = (instance, queue.epoch)
        self.state = SocketState.GREETING
        self.dead: list[int] = []
        self._series = queue.series
        self._limits = limits
        self._head = queue.head
        self._cursor = 0
        self._ready: list[Row] = []
        # When each row that was sent and is not acknowledged was made.
        self._unacked: dict[int, int] = {}
        self._forwards: dict[int, int] = {}

    @property
    def epoch(self) -> int:
        """Which upgrade of the instance this socket is."""
        return self.claim[1]

    @property
    def series(self) -> str:
        """What every `bufferId` of this instance begins with."""
        return self._series

    @property
    def unacked(self) -> int:
        """How many rows wait for an acknowledgement."""
        return len(self._unacked)

    @property
    def is_stuck(self) -> bool:
        """Whether nothing more can be sent before something is acknowledged."""
        return len(self._unacked) >= self._limits.window

    @property
    def is_drained(self) -> bool:
        """Whether everything known of was sent and acknowledged."""
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
        """Step on.

        Raises:
            RelayError: The step is not one that a socket can take.
        """
        if state not in _NEXT[self.state]:
            raise RelayError(
                Code.INTERNAL_ERROR,
                f"a socket cannot go from {self.state.value} to {state.value}",
                where=self.instance,
            )
        self.state = state
        if state in (SocketState.IDLE, SocketState.CLOSED):
            self._ready.clear()

    def offer(self, rows: Iterable[Row], head: int) -> None:
        """Rows were committed. They are kept where they come next and there is room."""
        for row in rows:
            if (
                row.seq == self._cursor + 1
                and self._is_delivering
                and len(self._ready) < self._limits.window
            ):
                self._keep(row)
        self._head = max(self._head, head)

    def wants(self) -> tuple[int, int] | None:
        """Which rows are to be read: those after a number, of which this one is known to be there.

        None when nothing is missing, or nothing more fits.
        """
        if not self._is_delivering or self._ready or self.is_stuck or self._cursor >= self._head:
            return None
        return self._cursor, self._head

    def loaded(self, wanted: tuple[int, int], rows: list[Row], *, is_all: bool) -> None:
        """What was read after `wanted`: everything, or as much as was asked for."""
        after, known = wanted
        if after != self._cursor or not self._is_delivering:
            return
        for row in rows:
            self._keep(row)
        if is_all:
            # Of what was known to be there when the reading began, the rest is done with.
            self._cursor = max(self._cursor, known)

    def take(self, most_bytes: int) -> Consignment:
        """What to send now, in order, as far as the window allows."""
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
                line = row.line(self._series)
                sent.append(row.seq)
            elif self.state is SocketState.LIVE and row.deliveries == 0:
                line = row.line(None)
                done.append(row.seq)
            else:
                self._forwards[row.seq] = row.created_at
                line = row.line(self._series)
                sent.append(row.seq)
            lines.append(line)
            size += len(line)
        traces = [row.traceparent for row in self._ready[: len(lines)] if row.traceparent]
        del self._ready[: len(lines)]
        return Consignment(lines, sent, done, traces)

    def ack(self, seq: int) -> int | None:
        """When the row was made that is acknowledged; None when none was sent on this connection.

        A forward is not waited for, but a gateway may acknowledge it all the same.
        """
        made = self._unacked.pop(seq, None)
        return self._forwards.pop(seq, None) if made is None else made

    @property
    def _is_delivering(self) -> bool:
        return self.state in (SocketState.DRAINING, SocketState.LIVE)

    def _keep(self, row: Row) -> None:
        self._cursor = row.seq
        most = self._limits.deliveries if row.kind == INBOUND else self._limits.forward_deliveries
        if row.deliveries >= most:
            self.dead.append(row.seq)
        else:
            self._ready.append(row)
