"""A member that nobody can dial is reached through an anchor, which only carries what is sealed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import pytest
from websockets.exceptions import ConnectionClosed

from accord.community.bus import Call, Frame
from accord.community.errors import Code, CommunityError
from accord.community.rules import read_descriptor
from accord.community.rules.tunnels import CONNECT, HOLD, TunnelLimits, relayed_address

pytestmark = pytest.mark.slow

COUNT = read_descriptor(
    {
        "name": "experimental.count",
        "version": "1.0",
        "stability": "experimental",
        "trust": "member",
        "idempotent": False,
        "request_schema": {"type": "object"},
        "stream_schema": {"type": "object"},
    }
)


async def count(call: Call) -> AsyncIterator[Frame]:
    for number in range(call.body["input"]["upto"]):
        yield Frame("token", {"number": number, "text": "x" * 5000})
    yield Frame("done", {"output": {}})


def hide(house: Any) -> None:
    """Let a node name an address that nobody dials."""
    (true,) = house.node.presence.endpoints
    house.node.presence.endpoints = (replace(true, host="192.0.2.9"),)


async def neighbours(street: Any, limits: TunnelLimits | None = None) -> Any:
    """An anchor that relays, two members behind NAT, and their community."""
    anchor = await street.house("anchor", tls=True, relay=limits or TunnelLimits())
    community = await street.found(anchor)
    members = []
    for name in ("bob", "carol"):
        member = await street.house(name, tls=True)
        hide(member)
        await street.admit(anchor, member, community)
        member.node.bus.registry.register(COUNT, count)
        members.append(member)
    return anchor, *members, community


async def until(is_so: Any) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.01)


@asynccontextmanager
async def tunnelled(anchor: Any, *members: Any) -> AsyncIterator[None]:
    """The members hold tunnels, and know of each other's."""
    try:
        for member in members:
            member.node.keeper.accept = member.server.accept
            await member.node.keeper.look()
        await until(lambda: len(anchor.node.tunnels) == len(members))
        for member in members:
            await member.node.keeper.look()
        yield
    finally:
        for member in members:
            await member.node.keeper.close()


async def test_two_members_behind_nat_sync_call_and_stream_through_an_anchor(street: Any) -> None:
    anchor, bob, carol, community = await neighbours(street)
    async with tunnelled(anchor, bob, carol):
        # Bob learns from the anchor that Carol is a member.
        await bob.node.sync(community)
        await bob.post(community)
        met = {each["node"]: each for each in (await carol.node.sync(community))["met"]}
        assert "error" not in met[bob.id]
        assert await carol.state(community) == await bob.state(community)
        (seen,) = [
            each
            for each in (await carol.node.peers(community))["peers"]
            if each["node_id"] == bob.id
        ]
        assert seen["reached"] == {"how": "relayed", "anchor": anchor.id}
        address = relayed_address(anchor.id, bob.id)
        link = await carol.node.dialler.connect(address, community, node_id=bob.id)
        try:
            answer = await link.client.call("experimental.echo", {}, {"text": "hello"})
            assert answer["output"] == {"text": "hello"}
            assert answer["meta"]["caller"] == carol.id
            frames = [
                each async for each in link.client.stream("experimental.count", {}, {"upto": 300})
            ]
            assert [each.data["number"] for each in frames[:-1]] == list(range(300))
            # Both at a time, over one tunnel.
            answers = await asyncio.gather(
                *(
                    link.client.call("experimental.echo", {}, {"n": n, "text": "x" * 200_000})
                    for n in range(8)
                )
            )
            assert sorted(each["output"]["n"] for each in answers) == list(range(8))
        finally:
            await link.close()
        await until(lambda: anchor.node.tunnels.streams <= 2)


async def test_without_a_tunnel_they_do_not_meet(street: Any) -> None:
    _, bob, carol, community = await neighbours(street)
    met = {each["node"]: each for each in (await carol.node.sync(community))["met"]}
    assert met[bob.id]["error"] in ("partition", "bad_request")


async def test_another_node_behind_the_tunnel_is_refused(street: Any) -> None:
    """The anchor leads callers to somebody else: the certificate is not the one that was signed."""
    anchor, bob, carol, community = await neighbours(street)
    async with tunnelled(anchor, bob, carol):
        held = anchor.node.tunnels._held
        held[community, bob.id] = held[community, carol.id]
        with pytest.raises(CommunityError) as refused:
            await carol.node.dialler.connect(
                relayed_address(anchor.id, bob.id), community, node_id=bob.id
            )
        assert refused.value.code is Code.INVALID_SIGNATURE


async def test_only_members_hold_tunnels_and_connect(street: Any) -> None:
    anchor, bob, carol, community = await neighbours(street)
    stranger = await street.house("stranger", tls=True)
    async with tunnelled(anchor, bob, carol):
        way = bob.node.dialler.relays.get(community, anchor.id).way
        with pytest.raises(CommunityError) as refused:
            async with stranger.node.keeper.dialler.socket(way, community, anchor.id, HOLD):
                pass
        assert refused.value.code is Code.UNAUTHORIZED
        with pytest.raises(CommunityError) as refused:
            await bob.node.dialler.connect(relayed_address(anchor.id, stranger.id), community)
        assert refused.value.code is Code.NOT_FOUND


async def test_an_anchor_carries_no_more_than_its_limits(street: Any) -> None:
    anchor, bob, carol, community = await neighbours(street, TunnelLimits(members=1, streams=1))
    async with tunnelled(anchor, bob):
        carol.node.keeper.accept = carol.server.accept
        await carol.node.keeper.look()
        way = carol.node.dialler.relays.get(community, anchor.id).way
        with pytest.raises(CommunityError) as refused:
            async with carol.node.keeper.dialler.socket(way, community, anchor.id, HOLD):
                pass
        assert refused.value.code is Code.CAPACITY_EXCEEDED
        query = f"to={quote(bob.id, safe='')}"
        dial = partial(carol.node.keeper.dialler.socket, way, community, anchor.id, CONNECT, query)
        async with dial():
            with pytest.raises(CommunityError) as refused:
                async with dial():
                    pass
            assert refused.value.code is Code.CAPACITY_EXCEEDED
        await until(lambda: anchor.node.tunnels.streams == 0)
        async with dial():
            pass
        await carol.node.keeper.close()


async def test_a_member_holds_one_tunnel_and_a_new_one_ends_the_old(street: Any) -> None:
    anchor, bob, carol, community = await neighbours(street)
    async with tunnelled(anchor, bob, carol):
        way = bob.node.dialler.relays.get(community, anchor.id).way
        dial = partial(bob.node.keeper.dialler.socket, way, community, anchor.id, HOLD)
        async with dial() as first, dial():
            async with asyncio.timeout(10):
                with pytest.raises(ConnectionClosed):
                    await first.recv()
        assert len(anchor.node.tunnels) <= 2


async def test_what_comes_through_a_tunnel_has_no_rights_of_this_machine(street: Any) -> None:
    """The owner's own key, used from elsewhere, is limited like any other member's."""
    anchor, bob, carol, community = await neighbours(street)
    async with tunnelled(anchor, bob, carol):
        link = await carol.node.dialler.connect(
            relayed_address(anchor.id, bob.id), community, node_id=bob.id
        )
        try:
            link.client._key = bob.key
            with pytest.raises(CommunityError):
                await link.client.get("/node/v1/peers")
        finally:
            await link.close()


async def test_a_tunnel_that_breaks_ends_its_calls_and_comes_back(street: Any) -> None:
    anchor, bob, carol, community = await neighbours(street)
    async with tunnelled(anchor, bob, carol):
        address = relayed_address(anchor.id, bob.id)
        link = await carol.node.dialler.connect(address, community, node_id=bob.id)
        try:
            await bob.node.keeper.close()
            await until(lambda: len(anchor.node.tunnels) == 1)
            with pytest.raises(CommunityError):
                await link.client.call("experimental.echo", {}, {})
        finally:
            await link.close()
        await bob.node.keeper.look()
        await until(lambda: len(anchor.node.tunnels) == 2)
        link = await carol.node.dialler.connect(address, community, node_id=bob.id)
        await link.close()
