"""Both halves together: from a link code to a delivered message, and to the end of it."""

import asyncio
import json
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
    Directory,
    FoundCapability,
    LocalBus,
)
from accord.relay.rules import SessionSource, session_key

CLOCK = SystemClock()
TOKEN = "capability-t0ken"


class Gateway:
    """A gateway's end of a socket that acknowledges all it gets."""

    def __init__(self, delivery: Delivery, bearer: str) -> None:
        self.socket = MemorySocket()
        self.serving = asyncio.create_task(delivery.endpoint.serve(self.socket, bearer))
        self.heard = ""
        self._text = ""
        self._frames: list[dict[str, Any]] = []

    async def say(self, frame: dict[str, Any]) -> None:
        self.socket.put(json.dumps(frame) + "\n")

    async def hear(self) -> dict[str, Any] | None:
        async with asyncio.timeout(20):
            while not self._frames:
                message = await self.socket.get()
                if message is None:
                    return None
                self.heard += message
                *lines, self._text = (self._text + message).split("\n")
                self._frames += [json.loads(line) for line in lines]
        frame = self._frames.pop(0)
        if "bufferId" in frame:
            await self.say({"type": "inbound_ack", "bufferId": frame["bufferId"]})
        return frame


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_a_person_links_talks_and_the_agent_is_taken_away(half: Any) -> None:
    chat = MemoryChat()
    chat.channel("c1", scope_id="g1")
    chat.channel("dm", "dm")
    platform = MemoryPlatform(chat)
    directory = Directory(
        half.store, half.keyring, CLOCK, ControlSettings(), platforms={"memory": platform}
    )
    control = Control(directory, CLOCK)
    credentials = await control.enrol((await control.mint_token("t1", "a1")).token, "gw")
    await control.route("t1", "memory", "g1")
    mine = await control.principal("a1")
    delivery = Delivery(half.store, directory, [platform], LocalBus(), CLOCK, name="one")

    async def answered(count: int) -> str:
        async with asyncio.timeout(20):
            while len(chat.said) < count:  # noqa: ASYNC110 (the chat tells nobody)
                await asyncio.sleep(0.005)
        return chat.said[count - 1].texts[-1]

    def bearer() -> str:
        return tokens.make("gw", credentials.secret, CLOCK.now())

    async with delivery.running():
        gateway = Gateway(delivery, bearer())
        await gateway.say({"type": "hello", "platform": "memory", "botId": "bot"})
        assert (await gateway.hear() or {})["type"] == "descriptor"
        chat.write("ann", "c1", "nobody hears this")
        chat.write("ann", "dm", f"/link {(await control.link(mine)).code}")
        assert "a1" in await answered(1)
        chat.write("ann", "dm", "yes")
        assert "linked" in await answered(2)
        chat.write(
            "ann",
            "c1",
            "hello",
            found=[
                FoundCapability("memory.token", SecretStr(TOKEN), int(CLOCK.now() * 1000) + 60_000)
            ],
        )
        frame = await gateway.hear() or {}
        assert frame["event"]["text"] == "hello"
        action = {
            "op": "follow_up",
            "session_key": session_key(SessionSource.from_dict(frame["event"]["source"])),
            "kind": "memory.token",
            "content": "done",
        }
        await gateway.say({"type": "outbound", "requestId": "r1", "action": action})
        result = await gateway.hear() or {}
        assert result["result"]["success"], result
        assert chat.followed == [(TOKEN, "done")]
        await control.revoke("a1")
        assert await gateway.hear() is None
        assert gateway.socket.closed == (4401, "revoked")
        assert TOKEN not in gateway.heard
        late = Gateway(delivery, bearer())
        assert await late.hear() is None
        assert late.socket.closed == (4401, "revoked")
        await asyncio.gather(gateway.serving, late.serving)
    await directory.close()
