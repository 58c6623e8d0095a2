"""Joining a community that has let go of its oldest content."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from accord.community.errors import Code, CommunityError
from accord.community.fold.vouching import Snapshot
from accord.community.log import upkeep

DAY = 24 * 3600.0
POSTS = 1100


async def fill(host: Any, community: str) -> None:
    await asyncio.gather(*(host.post(community, number) for number in range(POSTS)))
    await upkeep.maintain(host.in_(community).log)


async def prune(street: Any, host: Any, community: str) -> None:
    """Let the content of a log grow old, and be pruned behind a snapshot."""
    street.clock.advance(40 * DAY)
    await host.post(community, POSTS)
    done = await upkeep.maintain(host.in_(community).log)
    assert done.pruned > 0


async def test_a_joiner_begins_with_a_snapshot_and_comes_to_the_same_state(street: Any) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await fill(alice, community)
    await prune(street, alice, community)
    await bob.node.join(await street.invite(alice, bob.id, community))
    await bob.node.sync(community)
    assert await bob.state(community) == await alice.state(community)
    # It is a member like any other, and its own events stand.
    await bob.post(community, 1)
    await bob.node.sync(community)
    assert await bob.state(community) == await alice.state(community)


async def test_who_was_away_for_long_begins_again_with_a_snapshot(street: Any) -> None:
    alice, carol = await street.house("alice"), await street.house("carol")
    community = await street.found(alice)
    await street.admit(alice, carol, community, "anchor")
    await fill(alice, community)
    await prune(street, alice, community)
    await carol.node.sync(community)
    assert await carol.state(community) == await alice.state(community)
    await carol.post(community, 1)
    await carol.node.sync(community)
    assert await carol.state(community) == await alice.state(community)


async def test_where_there_are_two_anchors_both_must_say_the_same(street: Any) -> None:
    alice, carol, bob = [await street.house(name) for name in ("alice", "carol", "bob")]
    community = await street.found(alice)
    await street.admit(alice, carol, community, "anchor")
    await fill(alice, community)
    await carol.node.sync(community)
    await prune(street, alice, community)
    link = await street.invite(alice, bob.id, community)
    with pytest.raises(CommunityError) as refused:  # carol has no such snapshot yet
        await bob.node.join(link)
    assert refused.value.code is Code.UNAUTHORIZED
    await carol.node.sync(community)
    await upkeep.maintain(carol.in_(community).log)
    await bob.node.join(link)
    assert await bob.state(community) == await alice.state(community)


async def test_a_forged_snapshot_begins_nothing(
    street: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await fill(alice, community)
    await prune(street, alice, community)
    link = await street.invite(alice, bob.id, community)
    encode = Snapshot.encode

    def forged(snapshot: Snapshot) -> bytes:
        return encode(replace(snapshot, wall_clock="2020-01-01T00:00:00Z"))

    monkeypatch.setattr(Snapshot, "encode", forged)
    with pytest.raises(CommunityError) as refused:
        await bob.node.join(link)
    assert refused.value.code is Code.INVALID_SIGNATURE
    assert not bob.in_(community).is_member
