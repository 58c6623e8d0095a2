"""Connector and gateway are killed during replies: each is sent once, or its outcome is unknown."""

import asyncio
import json
import random
import sqlite3
from collections import Counter
from collections.abc import Awaitable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.relay.platforms.edges import Connected, Edge, connected

from accord.testing.processes import Child, python_child
from accord.testing.servers import Server

pytestmark = pytest.mark.slow

PLATFORMS = ("telegram", "discord", "matrix", "sms")
# How many replies one message gets.
EACH = 5
SECONDS = 1800.0


@dataclass
class Gateway:
    """A gateway process that can be killed and started again on the same folder."""

    made: Connected
    folder: Path
    _child: Child | None = field(default=None)

    async def start(self) -> None:
        """Start it; it dials by itself."""
        edges = self.made.edges.values()
        identities = json.dumps([[each.name, each.bot_id] for each in edges])
        place = (self.made.process.address, self.made.secret, str(self.folder), str(EACH))
        words = ("-m", "tests.relay.platforms.reply_process", *place, identities)
        self._child = self.made.stack.enter_context(python_child(*words))

    async def kill(self) -> None:
        """Kill it."""
        assert self._child is not None
        await asyncio.to_thread(self._child.kill)

    def told(self) -> dict[str, str]:
        """The texts of which the agent was told something, by request."""
        lines = (self.folder / "told.jsonl").read_text().splitlines()
        found: dict[str, str] = {}
        for line in lines:
            with suppress(json.JSONDecodeError):  # it was killed while it wrote
                each = json.loads(line)
                if each["text"] is not None and each["request_id"] is not None:
                    found[each["request_id"]] = each["text"]
        return found

    def ends(self) -> dict[str, str]:
        """How each action ended: sent, refused or unknown; missing while it has not."""
        rows: list[tuple[str, str | None]] = []
        with suppress(sqlite3.OperationalError):  # it is being made
            file = self.folder / "gateway" / "gateway.db"
            database = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
            with closing(database):
                rows = database.execute("SELECT request_id, result FROM actions").fetchall()
        found: dict[str, str] = {}
        for name, written in rows:
            if written is not None:
                result = json.loads(written)
                found[name] = "sent" if result["success"] else result.get("outcome", "refused")
        return found


async def said(edge: Edge) -> list[str]:
    texts = edge.said()
    return list(await texts if isinstance(texts, Awaitable) else texts)


async def kill_now_and_then(
    made: Connected, gateway: Gateway, chance: random.Random, kills: int, replies: int
) -> None:
    """Kill one or the other so many times, at random moments while replies are sent."""
    for number, moment in enumerate(sorted(chance.sample(range(replies), kills))):
        async with asyncio.timeout(SECONDS):
            while (ended := len(gateway.ends())) < moment:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await asyncio.sleep(chance.uniform(0, 0.05))
        if number % 10 == 9:
            print(f"{number + 1} kills, {ended} replies ended", flush=True)
        target = gateway if number % 2 else made.process
        await target.kill()
        await target.start()


async def run(folder: Path, synapse: Server, replies: int, kills: int) -> Counter[str]:
    """Have so many replies said while so many kills happen; how they ended."""
    messages = replies // EACH // len(PLATFORMS)
    async with connected(folder / "home", synapse, *PLATFORMS) as made:
        gateway = Gateway(made, folder)
        await gateway.start()
        for name in PLATFORMS:
            await made.process.until(name, "ready")
        chance = random.Random(replies)
        wanted = {
            name: [
                f"{name} {number} reply {each}"
                for number in range(messages)
                for each in range(EACH)
            ]
            for name in PLATFORMS
        }

        async def write(edge: Edge) -> None:
            for number in range(messages):
                await edge.write(f"{edge.name} {number}")
                await asyncio.sleep(chance.uniform(0, 0.1))

        killing = asyncio.create_task(kill_now_and_then(made, gateway, chance, kills, replies))
        await asyncio.gather(*(write(edge) for edge in made.edges.values()), killing)
        expected = {text for texts in wanted.values() for text in texts}
        async with asyncio.timeout(SECONDS):
            while True:
                told, ends = gateway.told(), gateway.ends()
                if {told[name] for name in told if name in ends} >= expected:
                    break
                await asyncio.sleep(0.25)
        await gateway.kill()
        outcome = {told[name]: end for name, end in ends.items() if name in told}
        for name, edge in made.edges.items():
            texts = [each for each in await said(edge) if each in expected]
            check(name, texts, wanted[name], outcome)
        return Counter(outcome[text] for text in expected)


def check(name: str, texts: list[str], wanted: list[str], outcome: dict[str, str]) -> None:
    """What was sent was said once and in order; what is unknown at most once."""
    counts = Counter(texts)
    for text in wanted:
        end, count = outcome[text], counts[text]
        assert end in ("sent", "unknown"), f"{text} ended as {end}"
        assert count == 1 or (end == "unknown" and count == 0), f"{text}: {end}, said {count} times"
    sure = [text for text in texts if outcome[text] == "sent"]
    assert sure == [text for text in wanted if outcome[text] == "sent"], f"{name} lost its order"


async def test_every_reply_is_sent_once_or_unknown_when_either_side_is_killed(
    tmp_path: Path, synapse: Server
) -> None:
    ends = await run(tmp_path, synapse, 80, 4)
    assert ends["sent"] > 0


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_two_thousand_replies_are_sent_once_or_unknown(
    tmp_path: Path, synapse: Server
) -> None:
    ends = await run(tmp_path, synapse, 2000, 60)
    print(dict(ends))
    assert sum(ends.values()) == 2000
