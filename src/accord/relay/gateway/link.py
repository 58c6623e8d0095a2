"""One connection to the connector: the handshake, the frames that come in, the lines that go out.

Owns the order on one socket. A bad line and an unknown frame are dropped and counted; only the end
of the socket, or a handshake that fails, ends a link. It decides nothing about what frames mean.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any

from accord.kernel import canonical
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.limits import Limits
from accord.relay.gateway.sockets import Socket
from accord.relay.wire import (
    CONTRACT_VERSION,
    BadLine,
    Described,
    Descriptor,
    Frame,
    Hello,
    LineReader,
    UnknownFrame,
    messages,
    read_frame,
    write_frame,
)

# What may arrive before the last descriptor; a connector sends far less.
_EARLY = 4096


class Link:
    """An open socket, from the first hello on.

    Args:
        socket: The socket.
        limits: How long a handshake may take, and a line may be.
        counts: What happened how often.

    Attributes:
        idle_acked: Set when the connector confirmed that it buffers.
        lost: Set by whoever reads it when it has ended.
    """

    def __init__(self, socket: Socket, limits: Limits, counts: Counter[str]) -> None:
        self._socket = socket
        self._limits = limits
        self._counts = counts
        self._reader = LineReader(limits.line_bytes)
        self._lines: deque[bytes] = deque()
        self._early: deque[Frame] = deque()
        self._writing = asyncio.Lock()
        self.idle_acked = asyncio.Event()
        self.lost = asyncio.Event()

    async def handshake(self, hellos: Sequence[Hello]) -> tuple[Descriptor, ...]:
        """Name every identity without waiting, and return the descriptors, one for each.

        Raises:
            RelayError: A descriptor cannot be read, or did not come in time.
            Closed: The socket ended.
        """
        await self.send(hellos)
        found: list[Descriptor] = []
        try:
            async with asyncio.timeout(self._limits.handshake):
                while len(found) < len(hellos):
                    frame = await self._next(greeting=True)
                    if isinstance(frame, Described):
                        found.append(frame.descriptor)
                    elif len(self._early) < _EARLY:
                        self._early.append(frame)
                    else:
                        raise _failed("it sent frames instead of a descriptor")
        except TimeoutError:
            raise _failed(
                f"{len(found)} of {len(hellos)} descriptors came in "
                f"{self._limits.handshake:g} seconds"
            ) from None
        if any(each.contract_version > CONTRACT_VERSION for each in found):
            self._counts["newer contracts"] += 1
        return tuple(found)

    async def next(self) -> Frame:
        """The next frame.

        Raises:
            Closed: The socket ended.
        """
        return self._early.popleft() if self._early else await self._next()

    async def send(self, frames: Iterable[Frame]) -> None:
        """Write frames together.

        Raises:
            Closed: The socket ended.
        """
        await self.write(b"".join(map(write_frame, frames)))

    async def write(self, lines: bytes) -> None:
        """Write lines that are ready, in messages that the peer takes.

        Raises:
            Closed: The socket ended.
        """
        async with self._writing:  # a line over several messages stays in one piece
            for message in messages(lines):
                await self._socket.send(message.decode())

    async def unless_lost(self, work: Coroutine[Any, Any, Any], within: float | None) -> bool:
        """Whether something was done before this link was lost, and in time."""
        tasks = [asyncio.create_task(work), asyncio.create_task(self.lost.wait())]
        try:
            await asyncio.wait(tasks, timeout=within, return_when=asyncio.FIRST_COMPLETED)
            return tasks[0].done() and not self.lost.is_set()
        finally:
            for task in tasks:
                task.cancel()

    async def close(self) -> None:
        """End it; whoever reads is told by `Closed`."""
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
    """Say what is wrong with a line, if it is a descriptor; others are dropped as always."""
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
