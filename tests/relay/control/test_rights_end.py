"""Rights to write end with the link or the open place that they came from, also for what waits."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import SecretStr
from tests.fakes.platform import MemoryChat, MemoryPlatform
from tests.fakes.sockets import MemorySocket

from accord.kernel import tokens
from accord.kernel.clock import SystemClock
from accord.relay.connector import (
    Control,
    ControlSettings,
    Delivery,
    DeliveryLimits,
    Directory,
    FoundCapability,
    LocalBus,
    tables,
)
from accord.relay.rules import Action, Outcome, Result

CLOCK = SystemClock()
BAD_GATEWAY = Result(False, error="it failed with 502", outcome=Outcome.RETRYABLE)
LIMITS = DeliveryLimits(
    sweep_seconds=0.02,
    outbox_pause_seconds=0.05,
    outbox_longest_pause_seconds=0.05,
    answer_seconds=1.0,
)


class FailingPlatform(MemoryPlatform):
    """A platform that fails while it is told to."""

    is_down = False

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        if self.is_down:
            return BAD_GATEWAY
        return await super().perform(action, idempotency_key, capability)


@dataclass
class World:
    """A connector with the agent `a1`, whose gateway acknowledges what it gets."""

    chat: MemoryChat
    platform: FailingPlatform
    control: Control
    delivery: Delivery
    socket: MemorySocket
    store: Any

    def __post_init__(self) -> None:
        self._text = ""
        self._frames: list[dict[str, Any]] = []
        self._asked = 0

    async def hear(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while True:
                while not self._frames:
                    message = await self.socket.get()
                    assert message is not None
                    *lines, self._text = (self._text + message).split("\n")
                    self._frames += [json.loads(line) for line in lines]
                frame = self._frames.pop(0)
                if "bufferId" in frame:
                    self._say({"type": "inbound_ack", "bufferId": frame["bufferId"]})
                if frame["type"] == kind:
                    return frame

    async def send(self, chat_id: str, text: str) -> dict[str, Any]:
        self._asked += 1
        action = {"op": "send", "chat_id": chat_id, "content": text}
        self._say({"type": "outbound", "requestId": f"r{self._asked}", "action": action})
        result: dict[str, Any] = (await self.hear("outbound_result"))["result"]
        return result

    def greet(self) -> None:
        self._say({"type": "hello", "platform": "memory", "botId": "bot"})

    def _say(self, frame: dict[str, Any]) -> None:
        self.socket.put(json.dumps(frame) + "\n")

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 (the chat tells nobody)
                await asyncio.sleep(0.005)

    async def answered(self, user: str, text: str) -> str:
        """What the bot itself answers to a direct message."""
        before = len(self.chat.said)
        self.chat.write(user, f"dm-{user}", text)
        await self.until(lambda: len(self.chat.said) > before)
        return self.chat.said[-1].texts[-1]


@pytest.fixture
async def world(half: Any) -> AsyncIterator[World]:
    chat = MemoryChat()
    chat.channel("c1", scope_id="g1")
    for user in ("ann", "eve"):
        chat.channel(f"dm-{user}", "dm")
    platform = FailingPlatform(chat)
    directory = Directory(
        half.store, half.keyring, CLOCK, ControlSettings(), platforms={"memory": platform}
    )
    control = Control(directory, CLOCK)
    made = await control.enrol((await control.mint_token("t1", "a1")).token, "gw")
    delivery = Delivery(
        half.store, directory, [platform], LocalBus(), CLOCK, name="one", limits=LIMITS
    )
    async with delivery.running():
        socket = MemorySocket()
        bearer = tokens.make("gw", made.secret, CLOCK.now())
        serving = asyncio.create_task(delivery.endpoint.serve(socket, bearer))
        found = World(chat, platform, control, delivery, socket, half.store)
        found.greet()
        await found.hear("descriptor")
        yield found
        socket.cut()
        await serving
    await directory.close()


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_unlinking_by_chat_stops_what_waits_in_the_outbox(world: World) -> None:
    await world.control.bind("a1", "memory", "ann")
    world.chat.write("ann", "dm-ann", "hello")
    await world.hear("inbound")
    world.platform.is_down = True
    assert (await world.send("dm-ann", "late")).get("queued")
    world.chat.write("ann", "dm-ann", "/unlink a1")
    async with asyncio.timeout(20):
        while not (dead := await world.delivery.outbox(dead=True)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    world.platform.is_down = False
    assert [each.state for each in dead] == ["refused"]
    assert not any("late" in said.texts for said in world.chat.said)
    result = await world.send("dm-ann", "again")
    assert result["code"] == "egress_declined"


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_an_open_agent_answers_where_it_is_open_and_as_long_as_it_is(world: World) -> None:
    control = world.control
    await control.open("a1", "memory", "g1")
    found = [FoundCapability("memory.token", SecretStr("x"), 2**53)]
    world.chat.write("eve", "c1", "hello", addressed=True, found=found)
    await world.hear("inbound")
    assert (await world.send("c1", "welcome"))["success"]
    await world.until(lambda: bool(world.chat.said))
    # Nobody who did not write first is written to, and no capability of a stranger is kept.
    assert not (await world.send("dm-eve", "psst"))["success"]
    assert await world.store.read(lambda c: c.execute(tables.vault.select()).all()) == []
    world.platform.is_down = True
    assert (await world.send("c1", "late")).get("queued")
    assert await control.close("memory", "g1") == "a1"
    await world.until(lambda: "declined egress.unlinked-chat" in world.delivery.counts)
    world.platform.is_down = False
    assert not (await world.send("c1", "more"))["success"]
    assert [said.texts for said in world.chat.said] == [["welcome"]]


async def test_who_ends_a_link_is_not_written_to_as_a_stranger(world: World) -> None:
    await world.control.open("a1", "memory")
    await world.control.bind("a1", "memory", "ann")
    world.chat.write("ann", "dm-ann", "as a linked person")
    await world.hear("inbound")
    assert (await world.send("dm-ann", "yes?"))["success"]
    assert "no longer linked" in await world.answered("ann", "/unlink")
    assert not (await world.send("dm-ann", "please stay"))["success"]
    # Whoever writes again, as everybody may, is answered again.
    world.chat.write("ann", "dm-ann", "as a stranger")
    await world.hear("inbound")
    assert (await world.send("dm-ann", "hello"))["success"]


async def test_a_place_that_is_given_to_another_tenant_is_not_open_any_more(world: World) -> None:
    await world.control.open("a1", "memory", "g1")
    world.chat.write("eve", "c1", "hello", addressed=True)
    await world.hear("inbound")
    assert (await world.send("c1", "one"))["success"]
    await world.control.route("t2", "memory", "g1")
    assert not (await world.send("c1", "two"))["success"]
    await world.control.share("memory", "g1")
    assert (await world.send("c1", "three"))["success"]
