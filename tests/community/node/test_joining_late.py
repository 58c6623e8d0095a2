"""Joining a community that has let go of its oldest content."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.community.node.conftest import post

from accord.community import retention, snapshots, sync
from accord.community.errors import Code, CommunityError
from accord.community.rules import Snapshot, sign_snapshot
from accord.community.settings import LogLimits
from accord.kernel import canonical
from accord.kernel.clock import format_time

DAY = 24 * 3600.0
POSTS = 1100


async def fill(host: Any, community: str) -> None:
    await asyncio.gather(*(host.post(community, number) for number in range(POSTS)))
    await retention.maintain_log(host.in_(community).log)


async def prune(street: Any, host: Any, community: str) -> None:
    """Let the content of a log grow old, and be pruned behind a snapshot."""
    street.clock.advance(40 * DAY)
    await host.post(community, POSTS)
    done = await retention.maintain_log(host.in_(community).log)
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
    await retention.maintain_log(carol.in_(community).log)
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


async def test_parts_of_a_snapshot_make_up_the_whole(
    street: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PART_BYTES", 10_000)
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await fill(alice, community)
    await prune(street, alice, community)
    link = await street.invite(alice, bob.id, community)
    async with bob.client(community, alice) as client:
        # As a node of version 0.2 asks for it.
        whole = await client.post("/sync/v1/snapshot", {"lamport": None})
        found = await snapshots.fetch_snapshot(client, None)
        assert found is not None
        assert found.encode() == canonical.encode(whole)
        assert len(found.encode()) > 20 * 10_000
        assert await snapshots.fetch_snapshot(client, 7) is None
        for offset in (-1, 2**40, "0", 1.5):
            with pytest.raises(CommunityError) as refused:
                await client.post("/sync/v1/snapshot", {"lamport": None, "offset": offset})
            assert refused.value.code is Code.BAD_REQUEST
    await bob.node.join(link)
    assert await bob.state(community) == await alice.state(community)


class Telling:
    """A node that tells parts as a test has them."""

    community = "ed25519:" + "A" * 43

    def __init__(self, *parts: Any) -> None:
        self._parts = list(parts)

    async def post(self, _path: str, _body: Any) -> Any:
        return self._parts.pop(0)


def part(offset: int = 0, **members: Any) -> dict[str, Any]:
    return {
        "lamport": 1000,
        "size_bytes": 6,
        "digest": "blake3:" + "0" * 64,
        "offset": offset,
        "data_b64": "YWJj",
        **members,
    }


@pytest.mark.parametrize(
    "parts",
    [
        [[]],
        [{"lamport": 1000}],
        [part(size_bytes=2**40)],
        [part(size_bytes=0)],
        [part(size_bytes="6")],
        [part(data_b64="")],
        [part(data_b64="!")],
        [part(data_b64="YWJjYWJjYWJj")],
        [part(), part(0)],
        [part(), part(3, digest="blake3:" + "1" * 64)],
        [part(), part(3, lamport=2000)],
        [part(), part(3)],
    ],
)
async def test_parts_that_are_none_or_do_not_fit_together_are_refused(parts: list[Any]) -> None:
    client: Any = Telling(*parts)
    with pytest.raises(CommunityError):
        await snapshots.fetch_snapshot(client, None)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_snapshot_of_sixty_mebibytes_is_fetched_by_a_joiner(street: Any) -> None:
    unlimited = LogLimits(0, 0)
    alice, bob = [await street.house(name, log=unlimited) for name in ("alice", "bob")]
    community = await street.found(alice)
    carol = await street.house("carol", log=unlimited)
    await street.admit(alice, carol, community)
    head = alice.in_(community).state.chains[carol.id]
    seq, prev = head.head_seq, head.head_hash
    raws = []
    for number in range(1, 3201):
        event = street.event(
            carol.key,
            community,
            "market.post.created",
            {**post(number), "body": "x" * 20_000},
            seq=seq + number,
            prev=prev,
            lamport=head.head_lamport + number,
        )
        prev = event.hash
        raws.append(event.encode())
    assert (await alice.in_(community).log.receive(raws)).accepted == 3200
    await retention.maintain_log(alice.in_(community).log)
    street.clock.advance(40 * DAY)
    await alice.post(community, 9999)
    assert (await retention.maintain_log(alice.in_(community).log)).pruned > 0
    link = await street.invite(alice, bob.id, community)
    offered = await retention.offered_snapshot(alice.in_(community).log, None)
    assert offered is not None
    assert len(offered.encode()) >= 60 * 1024 * 1024
    await bob.node.join(link)
    assert await bob.state(community) == await alice.state(community)


async def test_a_member_makes_no_other_begin_again_by_a_state_in_which_it_is_an_anchor(
    street: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob, mallory = [await street.house(name) for name in ("alice", "bob", "mallory")]
    community = await street.found(alice)
    for house in (bob, mallory):
        await street.admit(alice, house, community)
    await alice.post(community)
    for house in (bob, mallory):
        await house.node.sync(community)
    before = await bob.state(community)
    state = canonical.decode(await mallory.state(community))
    for member in state["members"]:
        member["level"] = "anchor" if member["node_id"] == mallory.id else "member"
    floor = {"lamport": 1, "heads": [], "state_digest": "blake3:" + "0" * 64, "by": state["head"]}
    state |= {"floors": [floor], "market": []}
    forged = sign_snapshot(
        mallory.key,
        community_id=community,
        lamport=state["head"]["lamport"],
        wall_clock=format_time(street.clock.now()),
        state=canonical.encode(state),
    )

    async def offer(_log: Any, _lamport: int | None) -> Snapshot:
        return forged

    monkeypatch.setattr(snapshots, "offered_snapshot", offer)
    async with bob.client(community, mallory) as client:
        with pytest.raises(CommunityError) as refused:
            await sync.begin_with_snapshot(bob.in_(community), client, bob.node.dialler)
    assert refused.value.code is Code.UNAUTHORIZED
    await bob.in_(community).log.refold()
    assert await bob.state(community) == before
