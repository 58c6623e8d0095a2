"""What a member or an invited node could gain by what it writes into the log."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.community.node.conftest import House, Street, post

from accord.community.errors import Code, CommunityError
from accord.community.rules import Event, compose_event, sign_node
from accord.community.settings import LogLimits
from accord.kernel.clock import format_time
from accord.kernel.signing import SigningKey
from accord.testing import VirtualClock

DAY = 86_400
POSTED = "market.post.created"


@pytest.fixture
async def street(tmp_path: Path) -> AsyncIterator[Street]:
    async with AsyncExitStack() as opened:
        yield Street(tmp_path, VirtualClock(), opened)


async def push(sender: House, receiver: House, community: str, *events: Event) -> Any:
    async with sender.client(community, receiver) as client:
        body = {"events": [json.loads(event.encode()) for event in events]}
        return await client.post("/sync/v1/events", body)


def next_event(street: Street, house: House, community: str, ago: float) -> Event:
    """The next post of a member, dated as it likes."""
    chain = house.in_(community).state.chains[house.id]
    return street.event(
        house.key,
        community,
        POSTED,
        post(),
        seq=chain.head_seq + 1,
        prev=chain.head_hash,
        lamport=chain.head_lamport + 1,
        ago=ago,
    )


def joining(street: Street, guest: House, host: House, community: str, ago: float) -> Event:
    """A guest's joining, dated and placed as if it had come right behind the invite."""
    invites = host.in_(community).state.roster.invites
    (event_id, invite), *_ = [
        (name[0], each[0]) for name, each in invites.items() if name[1] == guest.id
    ]
    about = {
        "display_name": "guest",
        "community_id": community,
        "profile": "anchor",
        "endpoints": [],
        "capabilities": [],
    }
    manifest = sign_node(guest.key, about, now=street.clock.now() - ago)
    data = {"invite_event_id": event_id, "node_manifest": manifest}
    return street.event(
        guest.key,
        community,
        "community.member.joined",
        data,
        lamport=invite.lamport + 1,
        ago=ago,
    )


async def test_an_expired_invite_is_not_redeemed_by_a_date_of_yesterday(street: Street) -> None:
    alice, bob, carol = [await street.house(name) for name in ("alice", "bob", "carol")]
    community = await street.found(alice, default_member_can_invite=False)
    await street.admit(alice, bob, community)
    await street.invite(alice, carol.id, community, "trusted")
    await bob.node.sync(community)
    street.clock.advance(2 * DAY)
    backdated = joining(street, carol, alice, community, ago=2 * DAY - 60)
    # Carol is no member and may not push; Bob is one, and helps her.
    await push(bob, alice, community, backdated)
    assert await alice.verdicts(community, backdated) == ("refused", "invite.unwitnessed")
    await push(alice, bob, community, backdated)
    assert await bob.verdicts(community, backdated) == ("refused", "invite.unwitnessed")
    assert await alice.state(community) == await bob.state(community)


async def test_who_cannot_have_given_an_invite_witnesses_nothing(street: Street) -> None:
    alice, bob, carol = [await street.house(name) for name in ("alice", "bob", "carol")]
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    await street.invite(alice, carol.id, community, "trusted")
    street.clock.advance(2 * DAY)
    invites = alice.in_(community).state.roster.invites
    (event_id,) = [name[0] for name in invites if name[1] == carol.id]
    chain = alice.in_(community).state.chains[bob.id]
    seen = street.event(
        bob.key,
        community,
        "community.invite.witnessed",
        {"invite_event_id": event_id, "invitee_node_id": carol.id},
        seq=chain.head_seq + 1,
        prev=chain.head_hash,
        lamport=alice.in_(community).state.lamport + 1,
        ago=2 * DAY - 60,
    )
    await push(bob, alice, community, seen)
    assert await alice.verdicts(community, seen) == ("refused", "membership.above")


async def test_a_post_does_not_outlive_its_time_by_a_date_in_the_future(street: Street) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    future = next_event(street, bob, community, ago=-365 * DAY)
    answer = await push(bob, alice, community, future)
    assert (answer["accepted"], answer["rejected_reasons"][0]["error"]) == (0, "expired")
    # One who holds it already does not show it, and nothing is lost: it is taken in its time.
    street.clock.advance(365 * DAY)
    assert (await push(bob, alice, community, future))["accepted"] == 1
    state, now = alice.in_(community).state, street.clock.now()
    assert [each["event_id"] for each in state.market(now)] == [future.event_id]
    assert state.market(now - DAY) == []
    assert state.market(now + DAY) == []


async def test_a_clock_that_is_a_little_ahead_hinders_nobody(street: Street) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    ahead = next_event(street, bob, community, ago=-300)
    assert (await push(bob, alice, community, ahead))["accepted"] == 1


def long_posts(
    street: Street, key: SigningKey, community: str, count: int, head: Any = None
) -> list[Event]:
    """Posts of some 20 kB each, in a row."""
    events: list[Event] = []
    seq, prev, lamport = (
        (0, None, 500) if head is None else (head.head_seq, head.head_hash, head.head_lamport)
    )
    for number in range(count):
        event = compose_event(
            key,
            POSTED,
            {**post(number), "body": "x" * 20_000},
            event_id=street.ids.new(),
            lamport=lamport + number + 1,
            wall_clock=format_time(street.clock.now()),
            community_id=community,
            author_seq=seq + number + 1,
            prev=prev,
        )
        prev = event.hash
        events.append(event)
    return events


LIMITS = LogLimits(author_bytes_per_day=100_000, min_free_bytes=0)


async def test_one_member_cannot_fill_the_logs_of_others(street: Street) -> None:
    alice, bob, carol = [await street.house(name, log=LIMITS) for name in ("alice", "bob", "carol")]
    community = await street.found(alice)
    for house in (bob, carol):
        await street.admit(alice, house, community)
    flood = long_posts(street, bob.key, community, 10, bob.in_(community).state.chains[bob.id])
    answer = await push(bob, alice, community, *flood)
    assert 1 <= answer["accepted"] <= 4
    refused = answer["rejected_reasons"]
    assert {each["error"] for each in refused} == {"capacity_exceeded"}
    assert answer["accepted"] + len(refused) == 10
    # Neither others nor a revocation of the flood's author wait for it.
    chain = carol.in_(community).state.chains[carol.id]
    one = long_posts(street, carol.key, community, 1, chain)
    assert (await push(carol, alice, community, *one))["accepted"] == 1
    assert alice.in_(community).log.quota.refused["quota"] == len(refused)
    assert alice.in_(community).log.quota.largest_share > 0.5


async def test_what_a_quota_refuses_comes_later_and_all_agree_in_the_end(street: Street) -> None:
    alice, bob, carol = [await street.house(name, log=LIMITS) for name in ("alice", "bob", "carol")]
    community = await street.found(alice)
    for house in (bob, carol):
        await street.admit(alice, house, community)
    flood = long_posts(street, bob.key, community, 10, bob.in_(community).state.chains[bob.id])
    # Each of the others has another part of it.
    await push(bob, alice, community, *flood)
    await push(bob, carol, community, *flood[:2])
    for _ in range(4):
        street.clock.advance(DAY)
        for receiver in (alice, carol):
            await push(bob, receiver, community, *flood)
            await receiver.node.sync(community)
    posts = alice.in_(community).state.content.posts
    assert {each.event_id for each in flood} <= posts.keys()
    assert await alice.state(community) == await carol.state(community)


async def test_made_up_authors_share_one_budget(street: Street) -> None:
    alice, bob = [await street.house(name, log=LIMITS) for name in ("alice", "bob")]
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    made_up = [
        long_posts(street, street.key(f"nobody {number}"), community, 1)[0] for number in range(10)
    ]
    answer = await push(bob, alice, community, *made_up)
    assert answer["accepted"] <= 4
    assert (await alice.post(community))["event_id"]


async def test_a_node_writes_no_more_than_others_would_take(street: Street) -> None:
    alice = await street.house("alice", log=LIMITS)
    community = await street.found(alice)

    async def write(count: int) -> None:
        for number in range(count):
            data = {**post(number), "body": "x" * 20_000}
            await alice.node.act(community, POSTED, data)

    with pytest.raises(CommunityError) as refused:
        await write(10)
    assert refused.value.code is Code.CAPACITY_EXCEEDED
    assert 1 <= len(alice.in_(community).state.content.posts) <= 6
    # Membership has a budget of its own, and tomorrow is another day.
    assert await street.invite(alice, street.key("guest").id, community)
    street.clock.advance(DAY)
    assert await alice.post(community, 99)


async def test_a_nearly_full_disk_takes_no_content_and_still_lets_go_of_members(
    street: Street,
) -> None:
    bob = await street.house("bob")
    full = LogLimits(min_free_bytes=2**62)
    alice = await street.house("alice", log=full)
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    chain = bob.in_(community).state.chains[bob.id]
    answer = await push(bob, alice, community, *long_posts(street, bob.key, community, 1, chain))
    assert answer["rejected_reasons"][0]["error"] == "capacity_exceeded"
    with pytest.raises(CommunityError) as refused:
        await alice.post(community)
    assert refused.value.code is Code.CAPACITY_EXCEEDED
    chain = alice.in_(community).state.chains[bob.id]
    cut = {"target_last_seq": chain.head_seq, "target_last_hash": chain.head_hash}
    data = street.revocation(community, bob.id, [alice.key], **cut)
    assert await alice.node.act(community, "community.member.revoked", data)
