"""Everything that a node must not be talked into, tried on real nodes over real sockets."""

import json
from typing import Any

import pytest

from accord.community.errors import Code, CommunityError
from accord.community.retention import take_snapshot
from accord.community.rules import check_snapshot_author, read_snapshot, sign_snapshot
from accord.kernel import canonical
from accord.kernel.clock import format_time

POST = "market.post.created"
REVOKED = "community.member.revoked"


def a_post(number: int = 0) -> dict[str, Any]:
    return {
        "client_id": f"forged {number}",
        "category": "offer",
        "title": "A bridge",
        "body": "For sale.",
        "tags": [],
        "ttl_seconds": 86400,
    }


async def two(street: Any) -> tuple[Any, Any, str]:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    return alice, bob, community


def cut(house: Any, community: str, target: str) -> dict[str, Any]:
    """Where a revocation that takes nothing back cuts its target's chain."""
    chain = house.in_(community).state.chains[target]
    return {"target_last_seq": chain.head_seq, "target_last_hash": chain.head_hash}


async def push(pusher: Any, to: Any, community: str, *events: Any) -> Any:
    async with pusher.client(community, to) as client:
        body = {"events": [json.loads(event.encode()) for event in events]}
        return await client.post("/sync/v1/events", body)


async def test_a_revoked_member_cannot_act_by_backdating(street: Any) -> None:
    alice, bob, community = await two(street)
    carol = await street.house("carol")
    await street.admit(alice, carol, community)
    joined = alice.in_(community).state.chains[bob.id]
    backdated = street.event(
        bob.key,
        community,
        POST,
        a_post(),
        seq=joined.head_seq + 1,
        prev=joined.head_hash,
        lamport=joined.head_lamport + 1,
        ago=3600,
    )
    here = cut(alice, community, bob.id)
    data = street.revocation(community, bob.id, [alice.key], **here)
    await alice.node.act(community, REVOKED, data)

    with pytest.raises(CommunityError) as refused:
        await push(bob, alice, community, backdated)
    assert refused.value.code is Code.REVOKED
    # Carol has not heard of the revocation, takes the event for good, and passes it on.
    await push(bob, carol, community, backdated)
    assert await carol.verdicts(community, backdated) == ("accepted", None)
    await alice.node.sync(community)
    assert await alice.verdicts(community, backdated) == ("void", "revoked.cutoff")
    assert await carol.verdicts(community, backdated) == ("void", "revoked.cutoff")
    assert await alice.state(community) == await carol.state(community)
    async with bob.client(community, carol) as client:
        with pytest.raises(CommunityError) as refused:
            await client.call("experimental.echo", {}, {})
    assert refused.value.code is Code.REVOKED


async def test_a_forged_revocation_does_nothing(street: Any) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice, min_signatures_to_revoke=2)
    await street.admit(alice, bob, community, level="trusted")
    before = await alice.state(community)
    here = cut(alice, community, alice.id)
    forged = street.revocation(community, alice.id, [bob.key], **here)
    # Bob puts Alice's name under a signature of his own.
    forged["co_signers"] = [{**forged["co_signers"][0], "node_id": alice.id}]
    async with bob.client(community, alice) as client:
        with pytest.raises(CommunityError) as refused:
            await client.call("community.revoke", {}, forged)
    assert refused.value.code is Code.INVALID_SIGNATURE
    chain = alice.in_(community).state.chains[bob.id]
    place = {"seq": 2, "prev": chain.head_hash, "lamport": 90}
    event = street.event(bob.key, community, REVOKED, forged, **place)
    answer = await push(bob, alice, community, event)
    assert (answer["accepted"], answer["rejected"]) == (0, 1)
    assert answer["rejected_reasons"][0]["error"] == "invalid_signature"
    assert await alice.state(community) == before

    # With his own signature twice he is still one.
    honest = street.revocation(community, alice.id, [bob.key], **here)
    event = street.event(bob.key, community, REVOKED, honest, **place)
    assert (await push(bob, alice, community, event))["accepted"] == 1
    assert await alice.verdicts(community, event) == ("refused", "membership.signatures")
    assert alice.in_(community).is_member


async def test_three_colluding_new_members_revoke_nobody(street: Any) -> None:
    alice = await street.house("alice")
    community = await street.found(alice, min_signatures_to_revoke=3)
    gang = [await street.house(name) for name in ("mallory", "mike", "mona")]
    for each in gang:
        await street.admit(alice, each, community)
    await gang[0].node.sync(community)
    here = cut(gang[0], community, alice.id)
    data = street.revocation(community, alice.id, [each.key for each in gang], **here)
    async with gang[0].client(community, alice) as client:
        with pytest.raises(CommunityError) as refused:
            await client.call("community.revoke", {}, data)
    assert refused.value.code is Code.UNAUTHORIZED
    with pytest.raises(CommunityError) as refused:
        await gang[0].node.act(community, REVOKED, data)
    assert refused.value.code is Code.UNAUTHORIZED
    with pytest.raises(CommunityError) as refused:
        await gang[0].node.act(
            community,
            "community.member.promoted",
            {"target_node_id": gang[1].id, "new_level": "anchor"},
        )
    assert refused.value.code is Code.UNAUTHORIZED
    chain = alice.in_(community).state.chains[gang[0].id]
    event = street.event(
        gang[0].key, community, REVOKED, data, seq=2, prev=chain.head_hash, lamport=90
    )
    await push(gang[0], alice, community, event)
    assert await alice.verdicts(community, event) == ("refused", "membership.level")
    assert alice.in_(community).is_member


async def test_a_co_signature_from_another_community_counts_nowhere_else(street: Any) -> None:
    alice, bob, here = await two(street)
    there = await street.found(alice)
    await street.admit(alice, bob, there)
    data = street.revocation(there, bob.id, [alice.key], **cut(alice, there, bob.id))
    async with alice.client(here, alice) as client:
        with pytest.raises(CommunityError) as refused:
            await client.call("community.revoke", {}, data)
    assert refused.value.code is Code.INVALID_SIGNATURE
    chain = alice.in_(here).state.chains[alice.id]
    event = street.event(
        alice.key, here, REVOKED, data, seq=chain.head_seq + 1, prev=chain.head_hash, lamport=90
    )
    answer = await push(alice, bob, here, event)
    assert answer["rejected_reasons"][0]["error"] == "invalid_signature"
    assert bob.in_(here).is_member


async def test_an_event_of_another_community_is_not_let_in(street: Any) -> None:
    alice, bob, here = await two(street)
    there = await street.found(bob)
    foreign = street.event(bob.key, there, POST, a_post())
    answer = await push(bob, alice, here, foreign)
    assert (answer["accepted"], answer["rejected_reasons"][0]["error"]) == (0, "bad_request")


async def test_a_call_is_answered_once(street: Any) -> None:
    alice, bob, community = await two(street)
    sent = street.call(bob.key, community, alice.id)
    assert (await street.send(alice, sent)).status_code == 200
    again = await street.send(alice, sent)
    assert (again.status_code, again.json()["error"]) == (400, "bad_request")
    street.clock.advance(61)
    late = await street.send(alice, sent)
    assert (late.status_code, late.json()["error"]) == (410, "expired")


async def test_a_call_for_another_node_is_refused(street: Any) -> None:
    alice, bob, community = await two(street)
    carol = await street.house("carol")
    await street.admit(alice, carol, community)
    sent = street.call(bob.key, community, alice.id)
    stolen = await street.send(carol, sent)
    assert (stolen.status_code, stolen.json()["error"]) == (401, "invalid_signature")
    named, content = sent
    stripped = {name: value for name, value in named.items() if name != "X-HearthNet-To"}
    assert (await street.send(alice, (stripped, content))).json()["error"] == "invalid_signature"


async def test_whoever_has_declared_to_name_recipients_must(street: Any) -> None:
    alice, bob, community = await two(street)
    left_out = await street.send(alice, street.call(bob.key, community, None))
    assert (left_out.status_code, left_out.json()["error"]) == (401, "invalid_signature")


async def test_a_forged_snapshot_is_not_believed(street: Any) -> None:
    alice, bob, community = await two(street)
    await alice.post(community)
    await bob.node.sync(community)
    assert await take_snapshot(alice.in_(community).log, alice.in_(community).state.lamport)
    async with bob.client(community, alice) as client:
        genuine = canonical.encode(await client.post("/sync/v1/snapshot", {}))
    anchors = frozenset({alice.id})
    check_snapshot_author(read_snapshot(genuine, community), anchors)
    forged = genuine.replace(b"To lend.", b"To sell.")
    assert forged != genuine
    with pytest.raises(CommunityError) as refused:
        read_snapshot(forged, community)
    assert refused.value.code is Code.INVALID_SIGNATURE
    state = (await bob.state(community)).replace(b"To lend.", b"To sell.")
    own = sign_snapshot(
        bob.key,
        community_id=community,
        lamport=4,
        wall_clock=format_time(street.clock.now()),
        state=state,
    )
    with pytest.raises(CommunityError) as refused:
        check_snapshot_author(read_snapshot(own.encode(), community), anchors)
    assert refused.value.code is Code.UNAUTHORIZED


async def test_an_invitee_pushes_its_own_joining_and_nothing_else(street: Any) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.invite(alice, bob.id, community)
    async with bob.client(community, alice) as client:
        assert await client.get("/sync/v1/heads") == {}
    # Alice's node has witnessed that Bob came in time; it will not say so twice.
    before = await alice.state(community)
    with pytest.raises(CommunityError) as refused:
        await push(bob, alice, community, street.event(bob.key, community, POST, a_post()))
    assert refused.value.code is Code.UNAUTHORIZED
    assert await alice.state(community) == before


async def test_a_stranger_syncs_nothing(street: Any) -> None:
    alice, eve = await street.house("alice"), await street.house("eve")
    community = await street.found(alice)
    async with eve.client(community, alice) as client:
        for work in (
            client.get("/sync/v1/heads"),
            client.post("/sync/v1/snapshot", {}),
            client.post("/sync/v1/events", {"events": []}),
            client.post_bytes("/sync/v1/reconcile", b"anything"),
            client.call("experimental.echo", {}, {}),
            client.get("/pubsub/v1/subscribe", {"topic": "community.member.added"}),
        ):
            with pytest.raises(CommunityError) as refused:
                await work
            assert refused.value.code is Code.UNAUTHORIZED
