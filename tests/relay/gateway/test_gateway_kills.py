"""What a gateway has acknowledged is dealt with, whenever its process is killed."""

import random
from collections import defaultdict
from pathlib import Path

import pytest
from tests.relay.gateway.conftest import message

from accord.testing.connector import GATEWAY, SECRET, Connector
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

PROGRAM = f"""
import asyncio, sys
from accord.relay.gateway import GatewayLimits, GatewaySettings, RelayGateway

async def agent(turn):
    await asyncio.sleep(0.005)
    return turn.event.text

settings = GatewaySettings(inbox=sys.argv[2], limits=GatewayLimits(first_delay=0.05, attempts=1000))
gateway = RelayGateway(
    sys.argv[1], secret={SECRET!r}, gateway_id={GATEWAY!r}, agent=agent, settings=settings
)
asyncio.run(gateway.run())
"""


@pytest.mark.parametrize("kills", [4, pytest.param(30, marks=pytest.mark.long)])
async def test_every_message_is_answered_in_order_whatever_dies(
    connector: Connector, tmp_path: Path, kills: int
) -> None:
    chance = random.Random(2026)
    delivered = 0

    async def deliver(count: int) -> None:
        nonlocal delivered
        for number in range(delivered, delivered + count):
            chat = f"c{number % 5}"
            await connector.deliver(message(f"{chat} {number}", f"m{number}", chat), f"b-{number}")
        delivered += count

    async with connector.listening() as url:
        for _ in range(kills):
            await deliver(40)
            with python_child("-c", PROGRAM, url, str(tmp_path)) as child:
                wanted = len(connector.acks) + chance.randrange(1, 40)
                await connector.until(lambda wanted=wanted: len(connector.acks) >= wanted)  # type: ignore[misc]
                child.kill()
            await connector.until(lambda: not connector.connected)
        with python_child("-c", PROGRAM, url, str(tmp_path)):
            await connector.until(lambda: len(set(connector.texts)) == delivered)
            await connector.until(lambda: len(set(connector.acks)) == delivered)

    first_answers: defaultdict[str, list[int]] = defaultdict(list)
    for text in dict.fromkeys(connector.texts):
        chat, number = text.split()
        first_answers[chat].append(int(number))
    assert all(numbers == sorted(numbers) for numbers in first_answers.values())
    # Only what a kill fell upon may be said twice: at most one answer for each session.
    assert len(connector.texts) - delivered <= 5 * kills
