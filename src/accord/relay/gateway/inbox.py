"""What a gateway has taken and not yet dealt with: the interface, and one that forgets.

The connector is told that an event was taken only after `take` has returned, and never sends it
again then. So an inbox that survives the process loses nothing; the one in memory is for agents
that accept to lose what they were working on.
"""

import asyncio
import hashlib
import itertools
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from accord.kernel.traceparent import Trace
from accord.relay.wire import MessageEvent

_REMEMBERED: Final = 100_000
_WAITING: Final = 10_000


@dataclass(frozen=True, slots=True)
class Delivery:
    """An event for an agent, with what the gateway needs to answer it.

    Attributes:
        session_key: The session that it belongs to.
        event: The message.
        platform: The platform to name in answers, where it differs from the event's.
        capability: The kind of capability that its answer may use, if it came with one.
        buffer_id: The connector's name for it.
        attempt: How often its turn was begun, this time included.
        trace: Where in a trace it is, if the connector says so.
    """

    session_key: str
    event: MessageEvent
    platform: str | None = None
    capability: str | None = None
    buffer_id: str | None = None
    attempt: int = 1
    trace: Trace | None = None

    @property
    def message(self) -> str | None:
        """A name for the message by which a second delivery of it is known; None if it has none."""
        source = self.event.source
        number = self.event.message_id or source.message_id
        if not number:
            return None
        named = (
            self.platform or source.platform,
            self.event.bot_id,
            source.scope_id,
            source.chat_id,
            number,
        )
        parts = (f"{len(part)}:{part}" for part in (each or "" for each in named))
        return hashlib.sha256("".join(parts).encode("utf-8", "surrogatepass")).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """What an inbox keeps."""
        return {
            "event": self.event.to_dict(),
            "platform": self.platform,
            "capability": self.capability,
            "traceparent": None if self.trace is None else str(self.trace),
        }


class Taken(Protocol):
    """An open inbox."""

    async def take(self, deliveries: Sequence[Delivery]) -> list[int | None]:
        """Take events in order and number each; None for one that was taken before.

        Raises:
            StoreError: Nothing was taken.
        """
        ...

    async def begin(self, number: int) -> Delivery | None:
        """What was taken under a number, for its turn to begin; None when it is finished."""
        ...

    async def put_back(self, number: int) -> None:
        """Its turn was broken off through no fault of its own: that attempt does not count."""
        ...

    async def finish(self, number: int) -> None:
        """It was dealt with, and is not begun again."""
        ...

    async def unfinished(self) -> list[tuple[int, str]]:
        """Numbers and sessions of what an earlier process left, in order."""
        ...


Inbox = AbstractAsyncContextManager[Taken]
"""Opens an inbox for the time of a block."""


class MemoryInbox:
    """An inbox that ends with the process.

    Args:
        room: How many events it holds; a full one makes the connector keep what follows.
    """

    def __init__(self, room: int = _WAITING) -> None:
        self._room = asyncio.Semaphore(room)
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Delivery] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()

    async def take(self, deliveries: Sequence[Delivery]) -> list[int | None]:
        """Take events in order and number each; None for one that was taken before."""
        return [await self._take(delivery) for delivery in deliveries]

    async def begin(self, number: int) -> Delivery | None:
        """What was taken under a number; None when it is finished."""
        return self._waiting.get(number)

    async def put_back(self, number: int) -> None:
        """Nothing is counted here: what ends the process ends the inbox."""

    async def finish(self, number: int) -> None:
        """It was dealt with."""
        if self._waiting.pop(number, None) is not None:
            self._room.release()

    async def unfinished(self) -> list[tuple[int, str]]:
        """What an earlier run of the same gateway left."""
        return [(number, each.session_key) for number, each in self._waiting.items()]

    async def _take(self, delivery: Delivery) -> int | None:
        keys = [f"{kind}{key}" for kind, key in _keys(delivery) if key]
        is_known = any(key in self._seen for key in keys)
        self._seen.update(dict.fromkeys(keys))
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        if is_known:
            return None
        await self._room.acquire()
        number = next(self._numbers)
        self._waiting[number] = delivery
        return number


def _keys(delivery: Delivery) -> tuple[tuple[str, str | None], ...]:
    return ("b", delivery.buffer_id), ("m", delivery.message)


@asynccontextmanager
async def memory() -> AsyncIterator[Taken]:
    """An inbox for one run that forgets everything at its end."""
    yield MemoryInbox()
