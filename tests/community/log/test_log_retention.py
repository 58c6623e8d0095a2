"""Behind a floor bodies go and stubs stay; the state does not notice."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, func, select

from accord.community import retention, store
from accord.community.errors import Code, CommunityError
from accord.community.queries import verify_log
from accord.community.rules import (
    Stub,
    SyncBody,
    fold_events,
    parse_event,
    read_state,
    read_stub,
    state_bytes,
)
from accord.community.store import events, sync_bodies, sync_items
from accord.kernel.signing import SigningKey

POST = "market.post.created"
GUEST = SigningKey(b"guest".ljust(32, b"."))
DAY = 86_400


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "SNAPSHOT_LAMPORTS", 10)


async def held(log: Any) -> list[SyncBody]:
    def read(connection: Connection) -> list[SyncBody | None]:
        return list(sync_bodies(connection, log.number, list(sync_items(connection, log.number))))

    return [body for body in await log.store.read(read) if body is not None]


async def places(log: Any) -> list[Any]:
    return await log.store.read(lambda c: list(sync_items(c, log.number)))  # type: ignore[no-any-return]


async def raws(log: Any) -> list[bytes]:
    return [body.raw for body in await held(log) if not body.is_stub]


async def stubs(log: Any) -> list[Stub]:
    return [read_stub(body.raw) for body in await held(log) if body.is_stub]


async def verdict_on(log: Any, event: Any) -> tuple[str, str | None]:
    query = select(events.c.status, events.c.rule).where(events.c.digest == event.digest)
    return await log.store.read(lambda c: tuple(c.execute(query).one()))  # type: ignore[no-any-return]


async def counted(log: Any) -> int:
    counts = json.loads(await log.view(state_bytes))["counts"]
    return sum(sum(each.values()) for each in counts.values())


async def newest_snapshot(log: Any) -> Any:
    assert await retention.take_snapshot(log, log.head_lamport)
    return (await retention.signed_snapshots(log))[0]


async def grow(town: Any, log: Any, post_data: Callable[..., Any]) -> Any:
    """A month and a half of a small town's life."""
    await town.found(log)
    _, joined = await town.admit(log, GUEST)
    for number in range(20):
        await log.append(POST, post_data(f"old {number}"))
    guests = town.chain(GUEST, joined, 4, name="guest")
    await log.receive([event.encode() for event in guests])
    town.clock.advance(31 * DAY)
    for number in range(5):
        await log.append(POST, post_data(f"new {number}"))
    return guests[-1]


async def decide(town: Any, log: Any, days: int) -> None:
    policy = {"policy": {**log.state.roster.policy, "retention_days": days}}
    await log.append("community.policy.updated", policy, key=town.root)


async def test_the_policy_says_how_long_bodies_stay(
    town: Any, where: str, post_data: Callable[..., Any]
) -> None:
    async with town.log(where=where) as log, town.log(GUEST) as other:
        await grow(town, log, post_data)
        await decide(town, log, 0)
        assert (await retention.maintain_log(log)).floor is None
        await decide(town, log, 32)
        assert (await retention.maintain_log(log)).floor is None
        town.clock.advance(DAY + 60)
        done = await retention.maintain_log(log)
        assert (done.floor, done.pruned) == (22, 24)
        assert (await verify_log(log)).findings == ()
        after = await log.view(state_bytes)
        assert json.loads(after)["policy"]["retention_days"] == 32
        assert state_bytes(read_state(after)) == after
        with pytest.raises(CommunityError, match="retention_days"):
            await decide(town, log, -1)
        assert retention.retention_days(other.state) == retention.RETENTION_DAYS


async def test_an_anchor_floors_and_every_node_prunes_to_the_same_state(
    town: Any, where: str, post_data: Callable[..., Any]
) -> None:
    async with town.log(where=where) as log, town.log(GUEST) as other:
        await grow(town, log, post_data)
        before = await raws(log)
        done = await retention.maintain_log(log)
        assert done.floor == 22
        assert done.pruned == 24
        after = await log.view(state_bytes)
        unpruned = [*before, *(raw for raw in await raws(log) if raw not in before)]
        assert after == state_bytes(fold_events(map(parse_event, unpruned), town.id).state)
        left = {json.loads(raw)["event_type"] for raw in (await raws(log))[:4]}
        assert left == {
            "community.created",
            "community.member.invited",
            "community.member.joined",
            POST,
        }
        assert len(await stubs(log)) == 24
        assert (await verify_log(log)).findings == ()
        assert (await retention.maintain_log(log)).pruned == 0

        await other.receive(unpruned)
        assert await other.view(state_bytes) == after
        assert (await retention.maintain_log(other)).pruned == 24
        assert await other.view(state_bytes) == after
        event = await log.append(POST, post_data("after"))
        await other.receive([event.encode()])
        assert await other.view(state_bytes) == await log.view(state_bytes)
    async with town.log(where=where) as log:
        assert await counted(log) == len(unpruned) + 1
        assert (await verify_log(log)).ok
        assert (await log.append(POST, post_data("restarted"))).author_seq == event.author_seq + 1


async def test_a_node_that_lacks_events_below_the_floor_does_not_prune(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log, town.log(GUEST) as other:
        last = await grow(town, log, post_data)
        everything = await raws(log)
        await retention.maintain_log(log)
        floor = [raw for raw in await raws(log) if raw not in everything]
        lacking = [raw for raw in everything if parse_event(raw).digest != last.digest]
        await other.receive([*lacking, *floor])
        assert await retention.prune_log(other) == 0
        await other.receive([last.encode()])
        assert await retention.prune_log(other) == 24


async def test_what_comes_late_below_the_floor_is_void_also_where_it_was_pruned(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log, town.log(GUEST) as other:
        last = await grow(town, log, post_data)
        before = await raws(log)
        await retention.maintain_log(log)
        await other.receive(before)
        await other.receive(await raws(log))
        late = town.chain(GUEST, last, 1, lamport=last.lamport + 1, name="late")[0]
        for each in (log, other):
            assert (await each.receive([late.encode()])).accepted == 1
            assert await verdict_on(each, late) == ("void", "floor")
            assert late.event_id not in each.state.content.posts
        assert await log.view(state_bytes) == await other.view(state_bytes)
        assert len(log.state.content.posts) == 29
        after = town.chain(GUEST, late, 1, lamport=log.head_lamport + 1, name="after")[0]
        for each in (log, other):
            await each.receive([after.encode()])
            assert await verdict_on(each, after) == ("accepted", None)
        assert await log.view(state_bytes) == await other.view(state_bytes)
    async with town.log() as log:
        assert after.event_id in log.state.content.posts


async def test_a_pruned_event_that_comes_again_is_a_duplicate(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await grow(town, log, post_data)
        before = await raws(log)
        await retention.maintain_log(log)
        receipt = await log.receive(before)
        assert (receipt.accepted, receipt.duplicates) == (0, len(before))
        assert len(await stubs(log)) == 24


async def test_stubs_are_taken_from_a_peer_only_where_a_floor_has_settled_the_past(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log, town.log(GUEST) as other:
        await grow(town, log, post_data)
        await retention.maintain_log(log)
        given = [stub.encode() for stub in await stubs(log)]
        assert [read_stub(raw).encode() for raw in given] == given

        async def refused(raw: bytes) -> Code:
            with pytest.raises(CommunityError) as error:
                await retention.receive_stubs(other, [*given[:2], raw])
            return error.value.code

        with pytest.raises(CommunityError, match="settled"):
            await retention.receive_stubs(other, given)
        await retention.adopt_snapshot(
            other, await newest_snapshot(log), frozenset({town.founder.id})
        )
        await other.receive(await raws(log))
        one = json.loads(given[0])
        assert await refused(b"nonsense") is Code.BAD_REQUEST
        for change in (
            {"lamport": 23},
            {"event_type": "community.member.joined"},
            {"author_seq": 1000},
            {"author_seq": None},
            {"author": town.id},
            {"author": "somebody"},
            {"hash": "blake3:00"},
            {"more": 1},
        ):
            assert await refused(json.dumps({**one, **change}).encode()) is Code.BAD_REQUEST
        assert await stubs(other) == []
        assert await retention.receive_stubs(other, given) == 24
        assert await retention.receive_stubs(other, given) == 0
        assert await places(other) == await places(log)


async def test_a_stub_never_replaces_an_event_and_an_event_always_its_stub(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log, town.log(GUEST) as other:
        await grow(town, log, post_data)
        before = await raws(log)
        await retention.maintain_log(log)
        await retention.adopt_snapshot(
            other, await newest_snapshot(log), frozenset({town.founder.id})
        )
        await other.receive(await raws(log))
        real = next(stub for stub in await stubs(log) if stub.author == GUEST.id)
        lie = json.loads(real.encode()) | {"hash": "blake3:" + "0" * 64}
        await retention.receive_stubs(other, [json.dumps(lie).encode()])
        assert len(await stubs(other)) == 1
        await other.receive(before)
        assert await stubs(other) == []
        assert await retention.receive_stubs(other, [json.dumps(lie).encode(), real.encode()]) == 0
        await other.recovered()
        assert await other.view(state_bytes) == await log.view(state_bytes)


async def test_a_joiner_of_a_pruned_community_comes_to_the_same_state(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await grow(town, log, post_data)
        await retention.maintain_log(log)
        await log.append(POST, post_data("behind the floor"))
        snapshot = await newest_snapshot(log)
        await log.append(POST, post_data("behind the snapshot"))
        joiner = SigningKey(b"joiner".ljust(32, b"."))
        async with town.log(joiner) as other:
            await retention.adopt_snapshot(other, snapshot, frozenset({town.founder.id}))
            await other.receive(await raws(log))
            await retention.receive_stubs(other, [stub.encode() for stub in await stubs(log)])
            await other.recovered()
            assert await other.view(state_bytes) == await log.view(state_bytes)
            assert await places(other) == await places(log)
            event = await log.append(POST, post_data("last"))
            await other.receive([event.encode()])
            assert await other.view(state_bytes) == await log.view(state_bytes)
        async with town.log(joiner) as other:
            assert await other.view(state_bytes) == await log.view(state_bytes)


async def test_a_second_floor_prunes_further(town: Any, post_data: Callable[..., Any]) -> None:
    async with town.log() as log:
        await grow(town, log, post_data)
        await retention.maintain_log(log)
        for number in range(20):
            await log.append(POST, post_data(f"more {number}"))
        town.clock.advance(31 * DAY)
        await log.append(POST, post_data("much later"))
        state = await log.view(state_bytes)
        done = await retention.maintain_log(log)
        assert done.floor is not None
        assert done.pruned > 20
        bases = await log.store.read(lambda c: store.base_snapshot(c, log.number))
        assert bases.lamport == done.floor
        assert json.loads(state)["market"] == json.loads(await log.view(state_bytes))["market"]
        assert (await verify_log(log)).ok
        count = select(func.count()).where(events.c.body.is_(None))
        assert await log.store.read(lambda c: c.execute(count).scalar_one()) == 24 + done.pruned
