"""Snapshots: signed by an anchor, the same on every node, and with their tail the whole."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection

from accord.community import retention, store
from accord.community.errors import Code, CommunityError
from accord.community.queries import verify_log
from accord.community.rules import (
    SNAPSHOT_LAMPORTS,
    SNAPSHOTS_KEPT,
    check_snapshot_author,
    choose_snapshot,
    read_snapshot,
    sign_snapshot,
    snapshot_due,
    snapshot_step,
    state_bytes,
)
from accord.community.store import sync_bodies, sync_items
from accord.kernel.signing import SigningKey

POST = "market.post.created"
GUEST = SigningKey(b"guest".ljust(32, b"."))


async def promote(log: Any, target: SigningKey, level: str) -> Any:
    data = {
        "client_id": f"promote {level}",
        "target_node_id": target.id,
        "new_level": level,
        "co_signers": [],
    }
    return await log.append("community.member.promoted", data)


async def everything(log: Any) -> list[bytes]:
    def read(connection: Connection) -> list[bytes]:
        wanted = list(sync_items(connection, log.number))
        held = sync_bodies(connection, log.number, wanted)
        return [body.raw for body in held if body is not None and not body.is_stub]

    return await log.store.read(read)  # type: ignore[no-any-return]


def test_a_snapshot_is_due_every_thousand_lamports_and_every_day() -> None:
    assert snapshot_due(-1, now=0.0, last=None) is None
    assert snapshot_due(999, now=100_000.0, last=None) == 999
    assert snapshot_due(1000, now=0.0, last=None) == SNAPSHOT_LAMPORTS
    assert snapshot_due(2345, now=10.0, last=(1000, 9.0)) == 2000
    assert snapshot_due(2345, now=10.0, last=(2000, 9.0)) is None
    assert snapshot_due(2345, now=90_000.0, last=(2000, 9.0)) == 2345


def test_snapshots_of_a_long_log_are_further_apart_and_still_at_common_places() -> None:
    assert [snapshot_step(head) for head in (0, 63_999, 64_000, 130_000)] == [
        1000,
        1000,
        2000,
        4000,
    ]
    assert snapshot_due(1_000_000, now=10.0, last=(900_000, 9.0)) == 992_000
    for head in range(0, 3_000_000, 7919):
        step = snapshot_step(head)
        assert step % SNAPSHOT_LAMPORTS == 0
        # There are always a few, and never many.
        assert head < 64_000 or 32 <= head // step < 64
    assert snapshot_due(2345, now=9e9, last=(2345, 9.0)) is None


async def test_snapshot_and_tail_are_the_whole_byte_for_byte(
    town: Any, where: str, post_data: Callable[..., Any]
) -> None:
    async with town.log(where=where) as log:
        await town.found(log)
        for number in range(30):
            await log.append(POST, post_data(f"p{number}"))
            if number % 10 == 5:
                assert await retention.take_snapshot(log, log.head_lamport - 3)
        whole = await log.view(state_bytes)
        assert len(await retention.signed_snapshots(log)) == 3
        assert (await verify_log(log)).findings == ()
    async with town.log(where=where) as log:
        assert await log.view(state_bytes) == whole


async def test_two_anchors_make_the_same_snapshot_and_a_joiner_begins_with_it(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as host, town.log(GUEST) as guest:
        await town.found(host)
        await town.admit(host, GUEST)
        await promote(host, GUEST, "anchor")
        for number in range(20):
            await host.append(POST, post_data(f"p{number}"))
        await guest.receive(await everything(host))
        for log in (host, guest):
            assert await retention.take_snapshot(log, 15)
        theirs = [(await retention.signed_snapshots(log))[0] for log in (host, guest)]
        assert theirs[0].state == theirs[1].state
        anchors = {town.founder.id, GUEST.id}
        read = [read_snapshot(each.encode(), town.id) for each in theirs]
        agreed = choose_snapshot(read, anchors)
        assert (agreed.lamport, agreed.state) == (15, theirs[0].state)
        with pytest.raises(CommunityError) as error:
            choose_snapshot(read[:1], anchors)
        assert error.value.code is Code.UNAUTHORIZED
        assert choose_snapshot(read[:1], {town.founder.id}) is read[0]

        joiner = SigningKey(b"joiner".ljust(32, b"."))
        async with town.log(joiner) as log:
            await retention.adopt_snapshot(log, agreed, frozenset(anchors))
            assert await log.view(state_bytes) == agreed.state
            with pytest.raises(CommunityError, match="still lacks"):
                await log.append(POST, post_data("early"))
            await log.receive(await everything(host))
            await log.recovered()
            assert await log.view(state_bytes) == await host.view(state_bytes)
            await retention.adopt_snapshot(log, agreed, frozenset(anchors))
            assert await log.view(state_bytes) == await host.view(state_bytes)


async def test_a_forged_snapshot_is_refused(town: Any, post_data: Callable[..., Any]) -> None:
    async with town.log() as log:
        await town.found(log)
        _, _ = await town.admit(log, GUEST)
        await log.append(POST, post_data("a"))
        await retention.take_snapshot(log, log.head_lamport)
        [real] = await retention.signed_snapshots(log)
    anchors = {town.founder.id}
    raw = json.loads(real.encode())

    def code(payload: Any) -> Code:
        with pytest.raises(CommunityError) as error:
            check_snapshot_author(read_snapshot(json.dumps(payload).encode(), town.id), anchors)
        return error.value.code

    changed = json.loads(real.encode())
    changed["state"]["name"] = "Toll"
    assert code(changed) is Code.INVALID_SIGNATURE
    assert code({**raw, "author": GUEST.id}) is Code.INVALID_SIGNATURE
    assert code({**raw, "lamport": 99}) is Code.BAD_REQUEST
    assert code({**raw, "community_id": GUEST.id}) is Code.BAD_REQUEST
    assert code([]) is Code.BAD_REQUEST
    assert code({**raw, "more": 1}) is Code.BAD_REQUEST
    by_a_member = sign_snapshot(
        GUEST,
        community_id=town.id,
        lamport=real.lamport,
        wall_clock=real.wall_clock,
        state=real.state,
    )
    assert code(json.loads(by_a_member.encode())) is Code.UNAUTHORIZED
    nonsense = {"state": {"members": []}, "lamport": 3, "covers_events_up_to": 3}
    payload = {**raw, **nonsense}
    del payload["signature"]
    from accord.kernel.signing import sign

    assert code(sign(payload, town.founder)) is Code.BAD_REQUEST
    with pytest.raises(CommunityError) as error:
        choose_snapshot([by_a_member], anchors)
    assert error.value.code is Code.UNAUTHORIZED


async def test_an_anchor_by_the_snapshots_own_word_is_not_one_by_ours(
    town: Any, post_data: Callable[..., Any]
) -> None:
    """Somebody founds a look-alike in which it is the anchor."""
    async with town.log() as log:
        await town.found(log)
        await retention.take_snapshot(log, 0)
        [real] = await retention.signed_snapshots(log)
    state = json.loads(real.state)
    state["members"][0]["node_id"] = GUEST.id
    from accord.kernel import canonical

    forged = sign_snapshot(
        GUEST,
        community_id=town.id,
        lamport=0,
        wall_clock=real.wall_clock,
        state=canonical.encode(state),
    )
    with pytest.raises(CommunityError) as error:
        check_snapshot_author(read_snapshot(forged.encode(), town.id), {town.founder.id})
    assert error.value.code is Code.UNAUTHORIZED


async def test_a_late_event_takes_the_snapshots_away_that_lack_it(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await town.found(log)
        _, joined = await town.admit(log, GUEST)
        for number in range(10):
            await log.append(POST, post_data(f"p{number}"))
        for lamport in (3, 6, 9):
            assert await retention.take_snapshot(log, lamport)
        [late] = town.chain(GUEST, joined, 1, lamport=5)
        await log.receive([late.encode()])
        kept = await log.store.read(lambda c: store.all_snapshots(c, log.number))
        assert [each.lamport for each in kept] == [3]
        assert (await verify_log(log)).ok


async def test_only_the_newest_snapshots_are_kept(town: Any, post_data: Callable[..., Any]) -> None:
    async with town.log() as log:
        await town.found(log)
        for number in range(12):
            await log.append(POST, post_data(f"p{number}"))
            assert await retention.take_snapshot(log, log.head_lamport)
        kept = await retention.signed_snapshots(log)
        assert [each.lamport for each in kept] == list(range(12, 12 - SNAPSHOTS_KEPT, -1))


async def test_a_snapshot_that_was_overtaken_is_not_kept(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await town.found(log)
        _, joined = await town.admit(log, GUEST)
        await log.append(POST, post_data("a"))
        state = await log.view(state_bytes)
        at = log.head_lamport
        [late] = town.chain(GUEST, joined, 1, lamport=at)
        await log.receive([late.encode()])
        kept = store.StoredSnapshot(at, "2026-01-01T00:00:00Z", state, is_base=False)
        assert not await log.store.write(
            lambda c: store.store_snapshot(c, log.number, kept, arrival=4)
        )


async def test_upkeep_takes_what_is_due(town: Any, post_data: Callable[..., Any]) -> None:
    async with town.log() as log:
        await town.found(log)
        await asyncio.gather(*(log.append(POST, post_data(f"p{n}")) for n in range(10)))
        assert (await retention.maintain_log(log)).snapshot == 10
        assert (await retention.maintain_log(log)).snapshot is None
        town.clock.advance(86_400)
        assert (await retention.maintain_log(log)).snapshot is None, "nothing has happened since"
        await log.append(POST, post_data("later"))
        assert (await retention.maintain_log(log)).snapshot == 11


def test_any_bytes_as_a_snapshot_are_refused_or_read(town: Any) -> None:
    for raw in (b"", b"\xff", b"[" * 1000, b"{}", b'{"state":1}', b"null"):
        with pytest.raises(CommunityError) as error:
            read_snapshot(raw, town.id)
        assert error.value.code is Code.BAD_REQUEST


def test_nobody_agrees_about_nothing(town: Any) -> None:
    with pytest.raises(CommunityError) as error:
        choose_snapshot([], {town.founder.id})
    assert error.value.code is Code.UNAUTHORIZED
