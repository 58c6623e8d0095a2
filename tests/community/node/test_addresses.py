"""A node whose addresses change tells the others; one with several is reached by any of them."""

import asyncio
import socket
from typing import Any

import pytest

from accord.community.peers import Endpoint, announced


async def two(street: Any) -> Any:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    return alice, bob, community


def dead_place(street: Any) -> Endpoint:
    """A place where a connection is taken and nobody answers."""
    silent = street.opened.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = silent.getsockname()[1]
    street.opened.enter_context(announced(port))
    return Endpoint("http", "127.0.0.1", port)


async def test_a_new_address_is_logged_once_it_was_seen_twice(street: Any) -> None:
    alice, _, community = await two(street)
    presence, before = alice.node.presence, list(alice.node.presence.endpoints)
    moved = Endpoint("http", "192.0.2.7", 7080)
    seen: list[Any] = [before, [moved], before, None, [moved], [moved], [moved]]
    presence.look = lambda: seen.pop(0)
    changed = [await presence.follow_address([community]) for _ in range(7)]
    # One look is not enough, and being offline changes nothing.
    assert changed == [False, False, False, False, False, True, False]
    await presence.log_manifest(alice.in_(community))
    logged = alice.in_(community).state.content.manifests[alice.id]
    assert [Endpoint(*each) for each in logged.endpoints] == [moved]


@pytest.mark.slow
async def test_running_nodes_follow_a_peer_that_moves(street: Any) -> None:
    alice, bob, community = await two(street)
    (place,) = bob.node.presence.endpoints
    gone = dead_place(street)
    bob.node.presence.endpoints = (gone,)
    await bob.node.presence.log_manifest(bob.in_(community))
    async with bob.client(community, alice) as client:
        from accord.community.sync import sync_with

        await sync_with(client, bob.in_(community).holdings)
    running = asyncio.create_task(bob.node.run([gone], lambda: [place]))
    arrived = asyncio.Event()

    def look(_: Any) -> None:
        logged = alice.in_(community).state.content.manifests[bob.id]
        if [Endpoint(*each) for each in logged.endpoints] == [place]:
            arrived.set()

    street.opened.callback(alice.in_(community).log.subscribe(look))
    try:
        # The second look follows the first after a period; here it is made at once.
        await asyncio.wait_for(bob.node._scheduler._publish(), 30)
        await bob.node._scheduler._publish()
        async with asyncio.timeout(30):
            await arrived.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_peer_is_reached_by_any_of_its_addresses(street: Any) -> None:
    alice, bob, community = await two(street)
    (place,) = bob.node.presence.endpoints
    bob.node.presence.endpoints = (dead_place(street), dead_place(street), place)
    await bob.node.presence.log_manifest(bob.in_(community))
    await bob.node.sync(community)
    await bob.post(community)
    (met,) = (await alice.node.sync(community))["met"]
    assert met["received"] == 1
    # The next time the one that answered comes first, over the same connection.
    links = len(alice.node.links)
    await bob.post(community, 1)
    (met,) = (await alice.node.sync(community))["met"]
    assert met["received"] == 1
    assert len(alice.node.links) == links == 1
