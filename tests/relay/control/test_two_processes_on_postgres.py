"""Two connector processes that share a PostgreSQL store never wait for each other in a circle."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.fakes.platform import MemoryChat, MemoryPlatform

from accord.kernel.clock import SystemClock
from accord.relay.connector import RELAY, Connector, DeliveryLimits, Keyring, open_connector
from accord.relay.rules import Outbound, RelevancePolicy, Send
from accord.storage import open_store

pytestmark = pytest.mark.slow

CLOCK = SystemClock()
PEOPLE = 6
ROUNDS = 15


def deadlocks(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return int(row[0])


async def work(connector: Connector, chat: MemoryChat, name: str) -> None:
    """Everything at once that a busy process writes: events, changes, actions, dead letters."""
    control, delivery = connector.control, connector.delivery
    callers = [await control.principal(f"a{number}") for number in range(PEOPLE)]
    for turn in range(ROUNDS):
        said = [
            chat.write(f"u{number}", f"c{number}", "x", event_id=f"{name}-{turn}-{number}")
            for number in range(PEOPLE)
        ]
        doing: list[Any] = []
        for number, caller in enumerate(callers):
            doing.append(delivery.take(said[number]))
            policy = RelevancePolicy(require_address=bool(turn % 2))
            doing.append(control.set_relevance(caller, "memory", policy))
            action = Outbound(f"{name}-{turn}", Send(f"c{number}", "hi"))
            doing.append(delivery._outbox.act(caller, action))
            if turn % 5 == number:
                doing.append(delivery.dead_letter(caller.instance, "a test"))
        await asyncio.gather(*doing)


@pytest.mark.parametrize("engine", ["postgres"])
async def test_changes_and_deliveries_of_two_processes_never_wait_in_a_circle(
    where: str, engine: str, tmp_path: Path
) -> None:
    before = deadlocks(where)
    keyring = Keyring.load(tmp_path / "relay.key")
    chat = MemoryChat()
    async with AsyncExitStack() as opened:
        connectors = []
        for name in ("one", "two"):
            store = await opened.enter_async_context(open_store(where, RELAY))
            connectors.append(
                await opened.enter_async_context(
                    open_connector(
                        store,
                        keyring,
                        CLOCK,
                        name=name,
                        platforms=[MemoryPlatform(chat)],
                        limits=DeliveryLimits(renew_seconds=0.05, sweep_seconds=0.2),
                    )
                )
            )
        control = connectors[0].control
        await control.route("t1", "memory", "g1")
        for number in range(PEOPLE):
            chat.channel(f"c{number}", scope_id="g1")
            token = await control.mint_token("t1", f"a{number}")
            await control.enrol(token.token, f"gw{number}")
            await control.bind(f"a{number}", "memory", f"u{number}")
        await asyncio.gather(
            work(connectors[0], chat, "one"),
            work(connectors[1], chat, "two"),
        )
    assert deadlocks(where) == before
