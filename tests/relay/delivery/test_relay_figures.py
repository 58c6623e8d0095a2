"""What a connector tells Prometheus: every figure moves when what it counts happens."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.registry import Collector
from tests.fakes.platform import MemoryChat, MemoryPlatform
from tests.fakes.sockets import MemorySocket

from accord.kernel import tokens
from accord.kernel.clock import BORDERS, Durations, SystemClock
from accord.relay.connector import RELAY, Connector, Keyring, collect_metrics, open_connector
from accord.storage import open_store

CLOCK = SystemClock()


class Figures(Collector):
    """A connector as a collector."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    def collect(self) -> Any:
        return collect_metrics(self._connector)


class Around:
    """A connector, its chat, and one agent that ann owns."""

    def __init__(self, connector: Connector, chat: MemoryChat) -> None:
        self.connector = connector
        self.chat = chat
        self.registry = CollectorRegistry()
        self.registry.register(Figures(connector))

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"accord_relay_{name}", labels) or 0.0

    async def becomes(self, wanted: float, name: str, **labels: str) -> None:
        async with asyncio.timeout(20):
            while self.value(name, **labels) != wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


@pytest.fixture
async def around(sqlite_where: str, tmp_path: Path) -> AsyncIterator[Around]:
    chat = MemoryChat()
    chat.channel("c1", scope_id="g1")
    async with (
        open_store(sqlite_where, RELAY) as store,
        open_connector(
            store,
            Keyring.load(tmp_path / "relay.key"),
            CLOCK,
            name="one",
            platforms=[MemoryPlatform(chat)],
        ) as connector,
    ):
        yield Around(connector, chat)


async def test_each_figure_moves_with_what_it_counts(around: Around) -> None:
    control, delivery = around.connector.control, around.connector.delivery
    credentials = await control.enrol((await control.mint_token("t1", "a1")).token, "gw")
    await control.route("t1", "memory", "g1")
    await control.bind("a1", "memory", "ann")
    assert around.value("events_total", outcome="taken") == 0
    said = around.chat.write("ann", "c1", "hello", event_id="e1")
    await around.becomes(1, "events_total", outcome="taken")
    around.chat.write("eve", "c1", "hello", event_id="e2")
    await around.becomes(1, "events_total", outcome="taken for nobody")
    assert around.value("dropped_total", rule="candidates.unlinked") == 1
    await delivery.take(said)
    assert around.value("events_total", outcome="duplicates") == 1
    assert around.value("ingest_seconds_count") == 3
    await delivery._apply_retention()
    assert around.value("buffered") == 1

    stranger = MemorySocket()
    await delivery.endpoint.serve(stranger, "nonsense")
    assert around.value("refused_connects_total", reason="unauthorized") == 1
    socket = MemorySocket()
    bearer = tokens.make("gw", credentials.secret, CLOCK.now())
    serving = asyncio.create_task(delivery.endpoint.serve(socket, bearer))
    socket.put('{"type":"hello","platform":"memory","botId":"bot"}\n')
    text = ""
    async with asyncio.timeout(20):
        while '"inbound"' not in text:
            text += await socket.get() or ""
    name = json.loads(text.splitlines()[-1])["bufferId"]
    assert around.value("deliveries_total") == 1
    assert around.value("acks_total") == 0
    socket.put(json.dumps({"type": "inbound_ack", "bufferId": name}) + "\n")
    await around.becomes(1, "acks_total")
    assert around.value("delivery_seconds_count") == 1
    await around.becomes(1, "sockets", state="live")

    await control.set_dm_default(await control.principal("a1"), "memory", "ann")
    socket.put('{"type":"going_idle"}\n')
    await around.becomes(1, "sockets", state="idle")
    around.chat.write("ann", "c1", "wake up")
    await around.becomes(1, "wakes_total", outcome="asked")
    socket.cut()
    await serving
    assert around.value("sockets", state="idle") == 0
    await delivery.dead_letter("a1", "a test")
    assert around.value("dead_letters_total") == 1
    socket.put("garbage")
    assert b"accord_relay_delivery_seconds_bucket" in generate_latest(around.registry)


async def test_what_has_no_figure_of_its_own_is_shown_by_its_words(around: Around) -> None:
    around.connector.delivery.counts["bad lines"] += 3
    assert around.value("total", what="bad lines") == 3
    assert around.value("acks_total") == 0


def test_durations_are_counted_up_to_each_border() -> None:
    durations = Durations()
    for seconds in (-1.0, 0.005, 0.006, 0.2, 10_000.0):
        durations.add(seconds)
    counted = dict(durations.up_to())
    assert (counted[0.005], counted[0.01], counted[0.25], counted[BORDERS[-1]]) == (2, 3, 4, 4)
    assert counted[float("inf")] == 5
    assert durations.total == pytest.approx(10_000.211)
