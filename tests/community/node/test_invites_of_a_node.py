"""Invites by the capability: the same one is not written twice, and one can be taken back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from accord.community import queries
from accord.community.client import Client, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.rules import Invite
from accord.kernel.clock import format_time


@asynccontextmanager
async def owner(street: Any, house: Any, community: str) -> AsyncIterator[Client]:
    transport = LocalTransport(house.node.application())
    async with Client(
        "http://node", house.key, community, house.id, transport=transport, clock=street.clock
    ) as client:
        yield client


async def invite(client: Client, guest: str, **more: Any) -> dict[str, Any]:
    answer = await client.call("community.invite", {}, {"invitee_node_id": guest, **more})
    return {**answer["meta"], "invite": Invite.parse(answer["output"]["invite_blob"])}


async def open_invites(house: Any, community: str) -> list[dict[str, Any]]:
    return list((await queries.describe_community(house.in_(community)))["invites"])


async def test_the_same_invite_asked_for_again_is_the_one_that_stands(street: Any) -> None:
    alice = await street.house("alice")
    community = await street.found(alice)
    guest = street.key("bob").id
    async with owner(street, alice, community) as client:
        first = await invite(client, guest, display_name="kitchen")
        street.clock.advance(5)
        again = await invite(client, guest, display_name="kitchen")
    assert again["event_id"] == first["event_id"]
    assert again["invite"] == first["invite"]
    (standing,) = await open_invites(alice, community)
    assert standing["display_name"] == "kitchen"


@pytest.mark.parametrize(
    "more", [{"initial_level": "trusted"}, {"display_name": "attic"}, {"hours": 72}]
)
async def test_another_invite_for_the_same_node_replaces_the_one_before(
    street: Any, more: dict[str, Any]
) -> None:
    alice = await street.house("alice")
    community = await street.found(alice)
    guest = street.key("bob").id
    wanted = {name: value for name, value in more.items() if name != "hours"}
    if "hours" in more:
        wanted["expires_at"] = format_time(street.clock.now() + more["hours"] * 3600)
    async with owner(street, alice, community) as client:
        first = await invite(client, guest)
        second = await invite(client, guest, **wanted)
    assert second["event_id"] != first["event_id"]
    assert [each["event_id"] for each in await open_invites(alice, community)] == [
        second["event_id"]
    ]


async def test_a_withdrawn_invite_is_refused_by_every_node(street: Any) -> None:
    alice, bob, carol = [await street.house(name) for name in ("alice", "bob", "carol")]
    community = await street.found(alice)
    await street.admit(alice, carol, community)
    link = await street.invite(alice, bob.id, community)
    await alice.node.sync(community)
    assert carol.in_(community).is_invited(bob.id)
    async with owner(street, alice, community) as client:
        given = {"invitee_node_id": bob.id}
        answer = await client.call("experimental.community.withdraw", {}, given)
    assert len(answer["output"]["withdrawn"]) == 1
    await alice.node.sync(community)
    assert not carol.in_(community).is_invited(bob.id)
    with pytest.raises(CommunityError) as refused:
        await bob.node.join(link)
    assert refused.value.code in (Code.UNAUTHORIZED, Code.NOT_FOUND)
    assert await alice.state(community) == await carol.state(community)


async def test_only_whoever_invited_or_is_trusted_withdraws(street: Any) -> None:
    alice, carol = [await street.house(name) for name in ("alice", "carol")]
    community = await street.found(alice)
    await street.admit(alice, carol, community)
    guest = street.key("bob").id
    await street.invite(alice, guest, community)
    await alice.node.sync(community)
    given = {"invitee_node_id": guest}
    # By a call at the node of whoever invited, and at one's own.
    async with carol.client(community, alice) as client:
        with pytest.raises(CommunityError) as refused:
            await client.call("experimental.community.withdraw", {}, given)
    assert refused.value.code is Code.UNAUTHORIZED
    async with owner(street, carol, community) as client:
        with pytest.raises(CommunityError) as refused:
            await client.call("experimental.community.withdraw", {}, given)
    assert refused.value.code is Code.UNAUTHORIZED
    state = alice.in_(community).state
    assert state.open_invites(guest, street.clock.now())
