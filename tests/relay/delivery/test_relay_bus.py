"""Hints between connector processes: in one process, and over a real Redis."""

import asyncio
import socket
from typing import Any

import pytest
import redis.asyncio as redis_client

from accord.relay.connector import (
    BusHint,
    DeliveryLimits,
    InboundKind,
    LocalBus,
    RedisBus,
    Topic,
    read_hint,
    write_hint,
)
from accord.relay.connector import bus as bus_module
from accord.relay.rules import REPLACED

HINT = BusHint(Topic.INTERRUPT, "tenant é", "alpha", 7, "agent:main", "c1")


def test_a_hint_survives_its_journey() -> None:
    assert read_hint(HINT.tenant, write_hint(HINT)) == HINT


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"7", b"[]", b'["rows","a","7","",""]', b'["other","a",7,"",""]', 7, None]
)
def test_anything_else_is_no_hint(data: Any) -> None:
    assert read_hint("t", data) is None


async def test_every_listener_hears_while_it_listens() -> None:
    bus = LocalBus()
    heard: list[BusHint] = []
    async with bus.listen(heard.append):
        bus.publish(HINT)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    bus.publish(HINT)
    await asyncio.sleep(0)
    assert heard == [HINT]


async def heard_one(heard: list[BusHint]) -> BusHint:
    async with asyncio.timeout(20):
        while not heard:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return heard.pop()


async def test_processes_hear_each_other_over_redis(redis: Any) -> None:
    first, second = RedisBus(redis.url), RedisBus(redis.url)
    heard: list[BusHint] = []
    async with first.listen(lambda _: None), second.listen(heard.append):
        first.publish(HINT)
        assert await heard_one(heard) == HINT


async def test_garbage_on_the_channel_is_dropped_and_counted(redis: Any) -> None:
    bus = RedisBus(redis.url)
    heard: list[BusHint] = []
    client = redis_client.Redis.from_url(redis.url)
    try:
        async with bus.listen(heard.append):
            await client.publish("accord:relay:t", b"\xff garbage")
            bus.publish(HINT)
            assert await heard_one(heard) == HINT
            assert bus.counts["bad"] == 1
    finally:
        await client.aclose()


async def test_more_hints_than_fit_are_dropped_and_nobody_waits() -> None:
    bus = RedisBus("redis://127.0.0.1:1", waiting=2)
    for _ in range(5):
        bus.publish(HINT)
    assert bus.counts["dropped"] == 3


async def test_a_bus_that_is_away_leaves_nothing_running(open_world: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    before = asyncio.all_tasks()
    with pytest.raises(OSError, match="Error"):
        async with open_world(bus=RedisBus(f"redis://127.0.0.1:{port}")):
            pass
    assert asyncio.all_tasks() == before


async def test_a_bus_that_confirms_nothing_counts_as_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus_module, "_ANSWER_SECONDS", 0.05)

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            pass
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match="Error"):
            async with RedisBus(f"redis://127.0.0.1:{port}?protocol=2").listen(lambda _: None):
                pass


@pytest.fixture
def where(sqlite_where: str) -> str:
    """None of this depends on the engine."""
    return sqlite_where


async def test_an_event_taken_here_is_delivered_by_the_process_that_holds_the_socket(
    open_world: Any, redis: Any
) -> None:
    # So long between sweeps that only a hint can explain it.
    limits = DeliveryLimits(sweep_seconds=600, renew_seconds=0.2)
    async with (
        open_world(limits=limits, bus=RedisBus(redis.url)) as first,
        open_world(
            limits=limits,
            bus=RedisBus(redis.url),
            chat=first.chat,
            directory=first.directory,
            name="connector-2",
        ) as second,
    ):
        first.link("ann", "alpha")
        holder = second if first.delivery.leases[0].fence else first
        other = first if holder is second else second
        gateway = await holder.connect("alpha")
        first.chat.write("ann", "c1", "over the bus")
        assert await gateway.events(1) == ["over the bus"]
        first.chat.write("ann", "c1", "/stop", kind=InboundKind.INTERRUPT)
        await gateway.hear("interrupt_inbound")
        await first.empty("alpha")
        again = await other.connect("alpha")
        assert await gateway.closed() == (REPLACED, "replaced")
        first.chat.write("ann", "c1", "to the newest")
        assert await again.events(1) == ["to the newest"]


async def test_without_any_hint_the_sweep_finds_everything(open_world: Any) -> None:
    limits = DeliveryLimits(sweep_seconds=0.05, renew_seconds=0.2)
    async with (
        open_world(limits=limits) as first,
        open_world(
            limits=limits, chat=first.chat, directory=first.directory, name="connector-2"
        ) as second,
    ):
        first.link("ann", "alpha")
        await first.until(
            lambda: bool(first.delivery.leases[0].fence or second.delivery.leases[0].fence)
        )
        holder, other = (second, first) if first.delivery.leases[0].fence else (first, second)
        gateway = await holder.connect("alpha")
        first.chat.write("ann", "c1", "found")
        assert await gateway.events(1) == ["found"]
        await other.connect("alpha")
        assert await gateway.closed() == (REPLACED, "replaced")
