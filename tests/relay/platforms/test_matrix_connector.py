"""Matrix on a whole connector: a real homeserver, gate and store, and an agent's socket."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.fakes.sockets import MemorySocket
from tests.relay.platforms.matrix_people import Person, Town

from accord.kernel import tokens
from accord.kernel.clock import SystemClock
from accord.relay.connector import RELAY, Connector, Keyring, Principal, open_connector
from accord.relay.platforms import matrix
from accord.relay.rules import PrincipalPolicy
from accord.storage import open_store

CLOCK = SystemClock()


class Agent:
    """An agent's gateway, which keeps what it hears, each message once, and acknowledges it."""

    def __init__(
        self,
        connector: Connector,
        gateway_id: str,
        secret: str,
        bot_id: str,
        events: list[dict[str, Any]] | None = None,
    ) -> None:
        self.socket = MemorySocket()
        bearer = tokens.make(gateway_id, secret, CLOCK.now())
        self.serving = asyncio.create_task(connector.delivery.endpoint.serve(self.socket, bearer))
        self.events = [] if events is None else events
        self._results: list[dict[str, Any]] = []
        self._text = ""
        self._numbers = itertools.count()
        self._say({"type": "hello", "platform": "matrix", "botId": bot_id})

    @property
    def texts(self) -> list[str]:
        return [each["text"] for each in self.events]

    def _say(self, frame: dict[str, Any]) -> None:
        self.socket.put(json.dumps(frame) + "\n")

    async def hear(self, count: int) -> list[str]:
        """Wait until so many events have come in all."""
        async with asyncio.timeout(60):
            while len(self.events) < count:
                await self._listen()
        return self.texts

    async def do(self, **action: Any) -> dict[str, Any]:
        frame = {"type": "outbound", "requestId": f"r{next(self._numbers)}", "action": action}
        self._say(frame)
        async with asyncio.timeout(60):
            while not self._results:
                await self._listen()
        result: dict[str, Any] = self._results.pop()
        return result

    async def _listen(self) -> None:
        message = await self.socket.get()
        assert message is not None, self.socket.closed
        *lines, self._text = (self._text + message).split("\n")
        for frame in map(json.loads, lines):
            if frame["type"] == "inbound":
                if frame["event"] not in self.events:
                    self.events.append(frame["event"])
                self._say({"type": "inbound_ack", "bufferId": frame["bufferId"]})
            elif frame["type"] == "outbound_result":
                self._results.append(frame["result"])

    async def leave(self) -> None:
        self.socket.cut()
        await self.serving


@asynccontextmanager
async def connected(settings: matrix.MatrixSettings, home: Path) -> AsyncIterator[Connector]:
    """A connector process with the bot on it, on the store of the one before."""
    async with (
        open_store(str(home / "stores"), RELAY) as store,
        matrix.open_matrix(settings, CLOCK) as platform,
        open_connector(
            store, Keyring.load(home / "relay.key"), CLOCK, name="one", platforms=[platform]
        ) as connector,
    ):
        async with asyncio.timeout(30):
            while connector.delivery.statuses[0].state.value != "ready":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        yield connector


async def enrolled(connector: Connector, instance: str) -> tuple[Principal, str]:
    minted = await connector.control.mint_token("t1", instance)
    credentials = await connector.control.enrol(minted.token, f"gw-{instance}")
    return await connector.control.principal(instance), credentials.secret


async def decided(connector: Connector, event_id: str) -> Any:
    """What the gate said of an event, once it was taken."""
    async with asyncio.timeout(30):
        while (explained := await connector.delivery.why(event_id)) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return explained.recorded.decision


async def test_two_people_talk_to_an_agent_and_it_hears_only_what_its_owner_sees(
    town: Town, ann: Person, ben: Person, tmp_path: Path
) -> None:
    settings, bot = await town.bot()
    async with connected(settings, tmp_path) as connector:
        mine, secret = await enrolled(connector, "a1")
        agent = Agent(connector, "gw-a1", secret, bot.id)

        direct = await ann.room(is_direct=True, invite=[bot.id])
        await ann.say(direct, f"!link {(await connector.control.link(mine)).code}")
        (asked,) = await ann.heard(direct, bot.id, 1)
        assert "a1" in asked["body"]
        await ann.say(direct, "yes")
        await ann.heard(direct, bot.id, 2)

        room = await ann.room(name="kitchen", invite=[bot.id, ben.id])
        await ben.join(room)
        await ann.until_member(room, bot.id)
        unlinked = await ben.say(room, "nobody's room, and nobody's agent")
        assert (await decided(connector, unlinked)).deliveries == ()
        await connector.control.route("t1", "matrix", room)
        root = await ann.say(room, "hello")
        assert await agent.hear(1) == ["hello"]

        relation = {"rel_type": "m.thread", "event_id": root, "is_falling_back": True}
        await ann.say(room, "in the thread", **{"m.relates_to": relation})
        await agent.hear(2)
        source = agent.events[1]["source"]
        assert (source["chat_type"], source["thread_id"]) == ("thread", root)
        result = await agent.do(op="send", chat_id=source["chat_id"], content="here I am")
        assert result["success"], result
        (said,) = await ann.heard(room, bot.id, 1)
        assert said["m.relates_to"]["event_id"] == root

        # The agent answers others too where its owner is in charge, as long as she can see it.
        await enrolled(connector, "b1")
        await connector.control.bind("b1", "matrix", ben.id)
        await connector.control.claim_scope(mine, "matrix", room, room)
        await connector.control.set_principal(mine, "matrix", PrincipalPolicy.ANY, ())
        mention = {"m.mentions": {"user_ids": [bot.id]}}
        await ben.say(room, "you see this", **mention)
        assert (await agent.hear(3))[-1] == "you see this"
        await ann.leave(room)
        private = await ben.say(room, "she is gone", **mention)
        decision = await decided(connector, private)
        assert "a1" not in decision.deliveries
        rules = {each.rule for each in decision.verdicts}
        rules |= {each.rule for one in decision.candidates for each in one.verdicts}
        assert "visibility.hidden" in rules
        await agent.leave()


async def test_a_bot_that_restarts_in_the_middle_loses_and_doubles_nothing(
    town: Town, ann: Person, tmp_path: Path
) -> None:
    settings, bot = await town.bot()
    settings = settings.model_copy(update={"page": 5, "shown": 5})
    heard: list[dict[str, Any]] = []
    secret, room = "", ""
    written = 0
    for away in (3, 30, 0):  # the second time, more than the homeserver shows at once
        async with connected(settings, tmp_path) as connector:
            if not room:
                _, secret = await enrolled(connector, "a1")
                room = await ann.room(name="kitchen", invite=[bot.id])
                await ann.until_member(room, bot.id)
                await connector.control.route("t1", "matrix", room)
                await connector.control.bind("a1", "matrix", ann.id)
            agent = Agent(connector, "gw-a1", secret, bot.id, heard)
            for _ in range(3):
                await ann.say(room, str(written))
                written += 1
            await agent.hear(written)
            await agent.leave()
        for _ in range(away):
            await ann.say(room, str(written))
            written += 1
    assert [each["text"] for each in heard] == [str(each) for each in range(42)]
