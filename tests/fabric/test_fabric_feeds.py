"""Feeds over a real server: how they begin, how they end, and who may not have them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.fabric.fabric_network import Sessions, connected, graph, linked

from accord.fabric import (
    FabricError,
    Link,
    Request,
    Server,
    Terms,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
)
from accord.fabric import server as feeds
from accord.fabric.server import open_feed
from accord.kernel.signing import SigningKey
from accord.testing.servers import Server as Process

TERMS = Terms(graph())
WATCH = TERMS.feeds["User.Watch"]


class World:
    """A server of one feed, and a caller."""

    def __init__(self, link: Link, server: Server, sessions: Sessions) -> None:
        self.link = link
        self.server = server
        self.sessions = sessions
        self.values: list[Any] = [{"id": "1"}, {"id": "2"}]
        self.hold = False
        self.closed = asyncio.Event()

    async def watch(self, _request: Request, _payload: Any) -> AsyncIterator[Any]:
        try:
            for value in self.values:
                yield value
            if self.hold:
                await asyncio.Event().wait()
        finally:
            self.closed.set()


@pytest.fixture
async def world(nats: Process) -> AsyncIterator[World]:
    key, sessions = SigningKey.generate(), Sessions()
    sessions.admit(key)
    async with connected(nats.url) as connection, linked(nats.url, key) as link:
        server = Server(connection, TERMS, sessions.resolve)
        world = World(link, server, sessions)
        server.feed("User.Watch")(world.watch)
        async with server:
            yield world


async def test_a_feed_begins_with_an_empty_frame_that_says_ready(world: World) -> None:
    async with world.link.stream(WATCH.subject, b'{"id":"1"}') as frames:
        first = await anext(frames)
        second = await anext(frames)
    assert (first.data, first.headers) == (b"", {"feed-status": "ready"})
    assert (second.data, second.headers) == (b'{"id":"1"}', None)


async def test_a_feed_that_ends_ends_for_its_reader(world: World) -> None:
    assert [value async for value in open_feed(world.link, WATCH, {"id": "1"})] == world.values


async def test_a_reader_without_the_capability_gets_nothing(world: World, nats: Process) -> None:
    key = SigningKey.generate()
    world.sessions.admit(key, ())
    async with linked(nats.url, key) as link:
        with pytest.raises(UnauthorizedError, match="graph::users"):
            await anext(open_feed(link, WATCH, {"id": "1"}))
    assert not world.closed.is_set()


async def test_a_request_that_breaks_the_contract_is_refused_on_both_sides(world: World) -> None:
    with pytest.raises(ValidationError):
        await anext(open_feed(world.link, WATCH, {}))
    with pytest.raises(ValidationError):
        async with world.link.stream(WATCH.subject, b"{}") as frames:
            await anext(frames)


async def test_a_value_that_breaks_the_contract_ends_the_feed(world: World) -> None:
    world.values = [{"id": "1"}, {"name": "2"}]
    feed = open_feed(world.link, WATCH, {"id": "1"})
    assert await anext(feed) == {"id": "1"}
    with pytest.raises(FabricError, match="breaks its contract"):
        await anext(feed)


async def test_a_service_that_ends_tells_its_readers(world: World) -> None:
    world.hold = True
    feed = open_feed(world.link, WATCH, {"id": "1"})
    await anext(feed)
    await anext(feed)
    ending = asyncio.create_task(world.server.dispatcher.drain())
    with pytest.raises(UnavailableError, match="the service is ending"):
        await anext(feed)
    await ending
    assert world.closed.is_set()


async def test_a_feed_that_nobody_reads_any_more_is_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "KEEPALIVE_SECONDS", 0.05)
    monkeypatch.setattr(feeds, "_PROBE_SECONDS", 0.05)
    world.hold = True
    async with linked(world.link.nats.connected_url.geturl(), world.link.key) as link:  # type: ignore[union-attr]
        feed = open_feed(link, WATCH, {"id": "1"})
        await anext(feed)
        await anext(feed)
    await asyncio.wait_for(world.closed.wait(), 10)
    link.inbox.interrupt()
    with pytest.raises(FabricError):
        await anext(feed)


async def test_a_lost_connection_ends_what_its_reader_hears(world: World) -> None:
    world.hold = True
    feed = open_feed(world.link, WATCH, {"id": "1"})
    await anext(feed)
    await anext(feed)
    world.link.inbox.interrupt()
    with pytest.raises(UnavailableError, match="the connection was lost"):
        await anext(feed)
    await feed.aclose()  # type: ignore[attr-defined]


async def test_a_reader_that_falls_too_far_behind_is_told(world: World) -> None:
    world.values = [{"id": str(number)} for number in range(6000)]
    feed = open_feed(world.link, WATCH, {"id": "1"})
    await anext(feed)
    await world.closed.wait()
    with pytest.raises(UnavailableError, match="too far behind"):
        async for _ in feed:
            pass
