"""A member that knows only the seed: it signs no answers, and takes events by a POST."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from accord.community.peers import announced
from accord.community.rules import Event, manifests, read_event
from accord.kernel import canonical
from accord.kernel.signing import SigningKey
from accord.station import listener

pytestmark = pytest.mark.slow


@dataclass
class SeedNode:
    """Keeps what it is sent; its head is the greatest lamport, as the seed says."""

    key: SigningKey
    community: str
    now: Callable[[], float]
    events: dict[str, Event] = field(default_factory=dict)
    pushes: list[int] = field(default_factory=list)
    most: int = 10_000
    broken: bool = False

    async def manifest(self, _: Request) -> Response:
        about = {
            "display_name": "seed",
            "community_id": self.community,
            "profile": "member",
            "endpoints": [],
            "capabilities": [],
        }
        return JSONResponse(manifests.sign_node(self.key, about, now=self.now()))

    async def heads(self, _: Request) -> Response:
        if self.broken:
            return JSONResponse(["not", "heads"])
        head = max((event.lamport for event in self.events.values()), default=-1)
        return JSONResponse({self.community: head})

    async def take(self, request: Request) -> Response:
        given = canonical.decode(await request.body(), max_bytes=1 << 24)["events"]
        self.pushes.append(len(given))
        for each in given:
            event = read_event(each)
            self.events[event.hash] = event
        return JSONResponse({"accepted": len(given), "rejected": 0, "new_head_lamport": 0})

    def application(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/manifest", self.manifest),
                Route("/sync/v1/heads", self.heads),
                Route("/sync/v1/events", self.take, methods=["POST"]),
            ]
        )


async def seed_member(street: Any, alice: Any, community: str) -> tuple[SeedNode, str]:
    """A member that knows only the seed, and where it is."""
    bob = await street.house("bob")
    await street.admit(alice, bob, community)
    await alice.node.sync(community)
    node = SeedNode(bob.key, community, street.clock.now)
    listening = street.opened.enter_context(listener.bind("127.0.0.1", 0))
    port = listening.getsockname()[1]
    street.opened.enter_context(announced(port))
    server = listener.Listener(node.application())
    serving = asyncio.create_task(server.serve([listening]))
    street.opened.push_async_callback(asyncio.wait, [serving])
    street.opened.callback(setattr, server, "should_exit", True)
    await server.serving.wait()
    return node, f"http://127.0.0.1:{port}"


async def push(alice: Any, community: str, address: str) -> Mapping[str, Any]:
    hosted = alice.in_(community)
    async with alice.node.links.reach(community, [address]) as link:
        assert manifests.knows_only_seed(link.manifest)
        met = await alice.node._scheduler._meet(hosted, link)
    return {"rounds": met.rounds, "bytes": met.sent_bytes}


async def test_a_node_that_knows_only_the_seed_receives_every_event(street: Any) -> None:
    alice = await street.house("alice")
    community = await street.found(alice)
    seed, address = await seed_member(street, alice, community)
    for number in range(5):
        await alice.post(community, number)
    await push(alice, community, address)
    hosted = alice.in_(community)
    assert set(seed.events) == await hashes(hosted)
    # Nothing new, nothing sent.
    seed.pushes.clear()
    assert (await push(alice, community, address))["rounds"] == 0
    assert seed.pushes == []


async def test_it_also_receives_what_was_written_elsewhere_at_an_older_lamport(street: Any) -> None:
    alice = await street.house("alice")
    community = await street.found(alice)
    carol = await street.house("carol")
    await street.admit(alice, carol, community)
    seed, address = await seed_member(street, alice, community)
    await alice.node.sync(community)
    # Carol writes while she hears of nobody, so her lamports are below the others' head.
    old = await carol.post(community, 1)
    for number in range(300):
        await alice.post(community, number)
    await push(alice, community, address)
    assert old["hash"] not in seed.events
    await alice.node.sync(community)
    await push(alice, community, address)
    assert old["hash"] in seed.events


async def test_rounds_reach_it_and_a_broken_one_is_put_off(street: Any) -> None:
    alice = await street.house("alice")
    community = await street.found(alice)
    seed, address = await seed_member(street, alice, community)
    # The seed's node has taken the place of Bob's own.
    peer = alice.node.book.peer(community, seed.key.id)
    assert peer is not None
    alice.node.book.forget(seed.key.id)
    alice.node._scheduler.settings = type(alice.node._settings)(peers=(address,))
    await alice.post(community)
    outcomes = await alice.node._scheduler.sync_all(alice.in_(community))
    assert not isinstance(outcomes[address], Exception)
    assert seed.events
    seed.broken = True
    outcomes = await alice.node._scheduler.sync_all(alice.in_(community))
    assert isinstance(outcomes[address], Exception)
    assert alice.node.book.address(community, address).failures == 1


async def hashes(hosted: Any) -> set[str]:
    from accord.community.store import events_for_seed

    log = hosted.log
    rows = await log.store.read(lambda c: list(events_for_seed(c, log.number, -1, None, None)))
    return {"blake3:" + position.digest.hex() for position, _ in rows}
