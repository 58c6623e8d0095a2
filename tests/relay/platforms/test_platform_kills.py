"""A connector that dies between receiving a message and saying so: it arrives once."""

import asyncio
import random
from pathlib import Path

import pytest
from tests.relay.platforms.edges import EVERY, staged

from accord.testing.servers import Server

pytestmark = pytest.mark.slow

# From before the message was fetched to after it was acknowledged.
LATEST = 0.08


async def killed(home: Path, synapse: Server, name: str, kills: int) -> None:
    chance = random.Random(kills)
    written: list[str] = []
    async with staged(home, synapse, name) as stage:
        edge, agent = stage.edges[name], stage.agent
        for _ in range(kills):
            texts = [f"message {len(written) + each}" for each in range(3)]

            async def write(texts: list[str] = texts) -> None:
                for text in texts:
                    await edge.write(text)

            writing = asyncio.create_task(write())
            written += texts
            await asyncio.sleep(chance.uniform(0, LATEST))
            await stage.process.kill()
            await stage.process.start()
            await writing
        await agent.until_heard(name, written)
        await edge.until_said(f"heard {written[-1]}")


@pytest.mark.parametrize("name", EVERY)
async def test_every_message_arrives_once_when_the_connector_is_killed(
    tmp_path: Path, synapse: Server, name: str
) -> None:
    await killed(tmp_path / "home", synapse, name, 2)


@pytest.mark.long
@pytest.mark.parametrize("name", EVERY)
async def test_every_message_arrives_once_over_twenty_kills(
    tmp_path: Path, synapse: Server, name: str
) -> None:
    await killed(tmp_path / "home", synapse, name, 20)
