"""What simulated replies stand on: chat services that fail in every way, and sockets to them.

A service knows what really happened, whatever it answered.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.directory import MemoryDirectory
from tests.fakes.platform import MemoryChat, MemoryPlatform, Said
from tests.fakes.sockets import MemorySocket
from tests.simulation.relay_ground import SimulatedStore

from accord.kernel.clock import Clock
from accord.relay.connector import Delivery
from accord.relay.errors import Code, RelayError
from accord.relay.gateway import SocketClosed
from accord.relay.platforms.base import (
    RateLimitedError,
    UnansweredError,
    failed_result,
    status_outcome,
)
from accord.relay.rules import (
    Action,
    Facts,
    FollowUp,
    Result,
    RouteKey,
    Send,
    SessionRules,
    TenantAccount,
    Visibility,
    VisibilityKey,
)

KEY_SECONDS = 8.0
"""How long a connector relies on the keys of the service that knows repetitions."""
# A service forgets them somewhat later: a request may be on its way for that long.
_FORGETS = KEY_SECONDS + 1
PEOPLE = {"keyed": ("ann", "k"), "plain": ("bob", "p")}
"""Who writes on which service, and the first letter of their chats."""


@dataclass(slots=True)
class ServiceChat(MemoryChat):
    """A service that forgets keys after a while, and notes when something was said."""

    clock: Clock = field(kw_only=True)
    said_at: dict[str, float] = field(default_factory=dict)

    def say(self, chat_id: str, text: str, key: str) -> Said:
        """Say something; under a key that is known it says nothing more."""
        now = self.clock.monotonic()
        for known in self.said if self.idempotent else ():
            if known.key == key and now - self.said_at[known.message_id] < _FORGETS:
                return known
        # Not by the base: it never forgets.
        made = Said(f"b{next(self._numbers)}", chat_id, [text], key)
        self.said.append(made)
        self.said_at[made.message_id] = now
        return made

    @property
    def texts(self) -> dict[str, list[str]]:
        """What was said, by chat."""
        found: dict[str, list[str]] = {}
        for each in self.said:
            found.setdefault(each.chat_id, []).append(each.texts[0])
        return found


class TroubledPlatform(MemoryPlatform):
    """One process's side of a service whose answers are errors of every kind, or nothing.

    Whether something was done is drawn apart from what is answered.
    """

    idempotent_seconds = KEY_SECONDS

    def __init__(
        self,
        chat: ServiceChat,
        store: SimulatedStore,
        chance: random.Random,
        is_troubled: Callable[[], bool],
    ) -> None:
        super().__init__(chat)
        self._store = store
        self._chance = chance
        self._is_troubled = is_troubled

    async def perform(self, action: Action, idempotency_key: str, capability: Any = None) -> Result:
        """Do what was asked, or not, and tell it, or not."""
        await self._pass()
        chance = self._chance
        is_troubled = self._is_troubled() and isinstance(action, Send | FollowUp)
        drawn = chance.random() if is_troubled else 1.0
        if drawn < 0.08:
            return failed_result(RelayError(Code.UNAVAILABLE, "it cannot be reached"))
        if drawn < 0.16:
            wait = chance.choice([0.5, 2.0, 20.0])
            return failed_result(RateLimitedError("too many requests", wait))
        if drawn < 0.24:
            status = chance.choice([500, 502, 503])
            return Result(False, error=f"it failed with {status}", outcome=status_outcome(status))
        if drawn < 0.26:
            return Result(False, error="it said no with 400", outcome=status_outcome(400))
        if drawn < 0.5 and chance.random() < 0.5:
            done: Result | None = None  # and nobody will ever know
        else:
            done = await self._do(action, idempotency_key, capability)
        if drawn < 0.34:
            await self._hang()
        if drawn < 0.40:
            raise RuntimeError("the answer could not be read")
        if drawn < 0.45:
            return failed_result(UnansweredError(Code.UNAVAILABLE, "the connection was lost"))
        if drawn < 0.5:
            status = chance.choice([200, 504])
            return Result(False, error="it answered garbage", outcome=status_outcome(status))
        await self._pass()
        assert done is not None
        return done

    async def _do(self, action: Action, key: str, capability: Any) -> Result:
        if isinstance(action, FollowUp):
            # The value of a capability here is its chat. Services take no keys with it.
            chat_id = capability.get_secret_value()
            said = self.chat.say(chat_id, action.content, f"{key}/{self._chance.random()}")
            return Result(True, said.message_id)
        return await super().perform(action, key, capability)

    async def _pass(self) -> None:
        await asyncio.sleep(self._chance.expovariate(1 / 0.05))
        if self._store.dead:
            await asyncio.Event().wait()  # a process that was killed calls nobody

    async def _hang(self) -> None:
        await asyncio.sleep(self._chance.uniform(5, 15))
        if self._store.dead:
            await asyncio.Event().wait()


class GatewaySocket:
    """A gateway's end of a `MemorySocket`."""

    def __init__(self, socket: MemorySocket) -> None:
        self._socket = socket

    async def send(self, text: str) -> None:
        """Write; a socket that has ended says so, or not yet."""
        if self._socket.closed is not None:
            raise SocketClosed(*self._socket.closed)
        self._socket.put(text)

    async def receive(self) -> str:
        """Read."""
        message = await self._socket.get()
        if message is None:
            raise SocketClosed(*(self._socket.closed or (1006, "")))
        return message

    async def close(self) -> None:
        """End it."""
        self._socket.cut()


@asynccontextmanager
async def dialled(
    delivery: Delivery, socket: MemorySocket, token: str
) -> AsyncIterator[GatewaySocket]:
    """A connection of a gateway to a connector process."""
    serving = asyncio.create_task(delivery.endpoint.serve(socket, token))
    try:
        yield GatewaySocket(socket)
    finally:
        socket.cut()
        await asyncio.wait({serving})


def furnish(chats: dict[str, ServiceChat], directory: MemoryDirectory) -> None:
    """One agent with one person on each service, who has two chats there."""
    directory.admit("alpha", "t1")
    # As after an earlier hello: before the first one, keys are those of other gateways.
    directory.rules["alpha"] = SessionRules("scoped")
    facts = Facts()
    routes, bindings, views = {}, {}, {}
    for name, (user, letter) in PEOPLE.items():
        for number in (1, 2):
            channel = chats[name].channel(f"{letter}{number}", scope_id=f"g-{name}")
            views[VisibilityKey(name, channel.scope_id, channel.id, user)] = Visibility.VISIBLE
        routes[RouteKey(name, f"g-{name}")] = "t1"
        bindings[TenantAccount("t1", name, user)] = ("alpha",)
    directory.known = Facts(routes=routes, bindings=bindings, visibility=views, grants=facts.grants)
