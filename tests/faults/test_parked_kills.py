"""Killed while the platform does not answer: whatever was received is decided in the end."""

import asyncio
import json
import random
import time
from pathlib import Path

import pytest

from accord.kernel.clock import SystemClock
from accord.relay.connector import RELAY, Keyring, open_connector, tables
from accord.relay.rules import PrincipalPolicy
from accord.storage import open_store
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

PROGRAM = ("-m", "tests.faults.parked_connector")
HERE = {"PYTHONPATH": str(Path(__file__).parents[2])}
CLOCK = SystemClock()


async def prepare(where: str) -> None:
    """Ann owns alpha; bob owns beta, which holds both channels and listens to everybody."""
    async with (
        open_store(where, RELAY) as store,
        open_connector(
            store, Keyring.load(Path(where) / "relay.key"), CLOCK, name="operator", serve=False
        ) as office,
    ):
        control = office.control
        await control.route("t1", "memory", "g1")
        for instance, owner in (("alpha", "ann"), ("beta", "bob")):
            token = await control.mint_token("t1", instance)
            await control.enrol(token.token, f"gw-{instance}")
            await control.bind(instance, "memory", owner)
        for channel in ("c1", "c2"):
            await control.grant("beta", "memory", "g1", channel)
        beta = await control.principal("beta")
        await control.set_principal(beta, "memory", PrincipalPolicy.ANY)


async def stored(where: str) -> tuple[int, list[str]]:
    """How many events are parked, and the texts of beta's queue in order."""
    async with open_store(where, RELAY) as store:
        parked = await store.read(lambda c: len(c.execute(tables.parked.select()).all()))
        query = tables.buffer.select().where(tables.buffer.c.instance == "beta")
        rows = await store.read(
            lambda c: c.execute(query.order_by(tables.buffer.c.seq)).mappings().all()
        )
    return parked, [json.loads(row["body"])["text"] for row in rows]


def test_every_event_that_was_received_is_delivered_after_the_last_kill(tmp_path: Path) -> None:
    where, chance = str(tmp_path), random.Random(19)
    asyncio.run(prepare(where))
    received: list[str] = []
    for run in range(5):
        with python_child(*PROGRAM, where, f"run{run}", "no", env=HERE) as child:
            lines: list[str] = []
            wanted = chance.randrange(5, 60)
            while sum(line.startswith("received ") for line in lines) < wanted:
                lines.append(child.read_line())
            lines += child.kill()
            child.assert_gone()
        received += [line.split()[1] for line in lines if line.startswith("received ")]
    parked, texts = asyncio.run(stored(where))
    assert parked >= len(received)
    assert texts == []
    with python_child(*PROGRAM, where, "last", "yes", env=HERE) as child:
        assert child.read_line() == "ready"
        deadline = time.monotonic() + 60
        while asyncio.run(stored(where))[0] and time.monotonic() < deadline:
            time.sleep(0.1)
        child.kill()
    parked, texts = asyncio.run(stored(where))
    assert parked == 0
    assert set(received) <= set(texts)
    assert len(texts) == len(set(texts))
    # In each chat in the order in which they were written.
    places = {text: place for place, text in enumerate(texts)}
    for run in range(5):
        for channel in (0, 1):
            numbers = [
                int(text.rpartition("-")[2])
                for text in sorted(places, key=lambda text: places[text])
                if text.startswith(f"run{run}-") and int(text.rpartition("-")[2]) % 2 == channel
            ]
            assert numbers == sorted(numbers)
