"""What strangers, and those who are only invited, may learn of a node at the port of its bus."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.community.node.conftest import House, Street

from accord.community.errors import Code, CommunityError
from accord.community.rules import Level, check_community, wire
from accord.testing import VirtualClock

MEMBERS_ONLY = ("/community/manifest", "/metrics")


@pytest.fixture
async def street(tmp_path: Path) -> AsyncIterator[Street]:
    async with AsyncExitStack() as opened:
        yield Street(tmp_path, VirtualClock(), opened)


async def refusal(caller: House, asked: House, community: str, path: str) -> Code:
    async with caller.client(community, asked) as client:
        with pytest.raises(CommunityError) as refused:
            await client.get(path)
    return refused.value.code


@pytest.mark.parametrize("path", MEMBERS_ONLY)
async def test_nobody_reads_roster_or_figures_unsigned(street: Street, path: str) -> None:
    alice = await street.house("alice")
    community = await street.found(alice)
    async with httpx.AsyncClient(base_url=alice.url, trust_env=False) as http:
        for named in ({}, {wire.COMMUNITY: community}):
            answer = await http.get(path, headers=named)
            assert answer.status_code in (400, 401)
            assert alice.id not in answer.text


@pytest.mark.parametrize("path", MEMBERS_ONLY)
async def test_strangers_and_those_invited_read_neither(street: Street, path: str) -> None:
    alice, eve, guest = [await street.house(name) for name in ("alice", "eve", "guest")]
    community = await street.found(alice)
    await street.invite(alice, guest.id, community)
    assert await refusal(eve, alice, community, path) is Code.UNAUTHORIZED
    assert await refusal(guest, alice, community, path) is Code.UNAUTHORIZED


async def test_members_read_both_and_what_is_needed_to_join_stays_open(street: Street) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)  # a joiner needs no more than the node's manifest
    async with bob.client(community, alice) as client:
        roster: dict[str, Any] = await client.get("/community/manifest")
        assert check_community(roster, community, {alice.id: Level.ANCHOR}) == alice.id
        assert {each["node_id"] for each in roster["members"]} == {alice.id, bob.id}
        assert b"accord_bus_in_hand" in await client.get_bytes("/metrics")
    async with httpx.AsyncClient(base_url=alice.url, trust_env=False) as http:
        for path in ("/manifest", "/health", "/ready"):
            assert (await http.get(path)).status_code in (200, 503)


async def test_who_was_revoked_reads_neither(street: Street) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    chain = alice.in_(community).state.chains[bob.id]
    cut = {"target_last_seq": chain.head_seq, "target_last_hash": chain.head_hash}
    data = street.revocation(community, bob.id, [alice.key], **cut)
    await alice.node.act(community, "community.member.revoked", data)
    for path in MEMBERS_ONLY:
        assert await refusal(bob, alice, community, path) is Code.REVOKED
