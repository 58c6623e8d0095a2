"""A log's state is what its events come to, in whatever order and however often they came."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select, update

from accord.community import retention, store
from accord.community.errors import Code, CommunityError
from accord.community.log import LogUpdate
from accord.community.log_state import LogState
from accord.community.rules import CommunityState, Event, fold_events, fold_history, state_bytes
from accord.community.store import ProvenEvent, StoreHistory, events
from accord.kernel.signing import SigningKey

POST = "market.post.created"
GUESTS = [SigningKey(f"guest {n}".encode().ljust(32, b".")) for n in range(3)]


async def a_history(town: Any, path: Any) -> list[Event]:
    """A history with a bit of everything: forks, gaps, poison, strangers, a late revocation."""
    made: list[Event] = []
    async with town.log(SigningKey(b"w" * 32)) as log:
        log.key = town.founder
        made.append(await town.found(log))
        joins = []
        for guest in GUESTS:
            invite, joined = await town.admit(log, guest)
            made += [invite, joined]
            joins.append(joined)
        first = town.chain(GUESTS[0], joins[0], 12, name="a")
        fork = town.chain(GUESTS[1], joins[1], 4, name="b") + town.chain(
            GUESTS[1], joins[1], 3, name="c"
        )
        gap = town.chain(GUESTS[2], joins[2], 6, name="d")
        del gap[2]
        [poison] = town.chain(GUESTS[0], first[-1], 1, lamport=7_000_000, name="e")
        stranger = town.chain(SigningKey(b"x" * 32), None, 2, name="f")
        revoked = await log.append(
            "community.member.revoked",
            {
                "target_node_id": GUESTS[0].id,
                "reason": "compromised",
                "client_id": "r",
                "target_last_seq": first[7].author_seq,
                "target_last_hash": first[7].hash,
                "co_signers": [],
            },
        )
        posts = [
            await log.append(POST, {**first[0].data, "client_id": f"own {n}"}) for n in range(3)
        ]
    return [*made, *first, *fork, *gap, poison, *stranger, revoked, *posts]


async def written(log: Any) -> dict[bytes, tuple[str, str | None]]:
    query = select(events.c.digest, events.c.status, events.c.rule)
    return {
        row[0]: (row[1], row[2]) for row in await log.store.read(lambda c: c.execute(query).all())
    }


def said(history: list[Event], community_id: str) -> dict[bytes, tuple[str, str | None]]:
    verdicts = fold_events(history, community_id).verdicts
    return {
        digest: (verdict.status.value, None if verdict.rule == "accepted" else verdict.rule)
        for digest, verdict in verdicts.items()
    }


@pytest.mark.parametrize("seed", range(6))
async def test_any_order_of_arrival_gives_the_same_state_and_verdicts(
    seed: int, town: Any, where: str, tmp_path: Any
) -> None:
    history = await a_history(town, tmp_path)
    chance = random.Random(seed)
    chance.shuffle(history)
    expected = fold_events(history, town.id).state
    async with town.log(where=where) as log:
        while history:
            count = chance.randrange(1, 9)
            part, history = history[:count], history[count:]
            await log.receive([event.encode() for event in part])
            if chance.random() < 0.1:
                await retention.take_snapshot(log, chance.randrange(0, 30))
        assert await log.view(state_bytes) == state_bytes(expected)
        whole = await log.store.read(
            lambda c: state_bytes(fold_history(StoreHistory(c, log.number), town.id))
        )
        assert whole == state_bytes(expected)
        everything = await log.store.read(
            lambda c: list(StoreHistory(c, log.number).in_order(None))
        )
        assert await written(log) == said(everything, town.id)
    async with town.log(where=where) as log:
        assert await log.view(state_bytes) == state_bytes(expected)
        assert await written(log) == said(everything, town.id)


@pytest.mark.parametrize("seed", range(12))
async def test_what_is_stored_before_it_is_folded_has_its_right_verdict_written(
    seed: int, town: Any, tmp_path: Any
) -> None:
    history = await a_history(town, tmp_path)
    chance = random.Random(seed)
    chance.shuffle(history)
    parts: list[list[Event]] = [[] for _ in range(chance.randrange(2, 9))]
    for event in history:
        chance.choice(parts).append(event)
    async with town.log() as log:
        folding = LogState(log.store, log.number, town.id, town.clock, log.key.id)
        await folding.open()
        told: list[Event] = []
        with folding.at_hand(chance.sample(history, len(history) // 2)):
            for part in parts:
                proven = [ProvenEvent(event, event.encode().decode()) for event in part]
                await log.store.write(
                    lambda c, p=proven: store.add_events(c, log.number, p, now_ms=0, source="")
                )
                if chance.random() < 0.5:
                    told += await folding.take(fresh=True)
            told += await folding.take(fresh=True)
        right = said(history, town.id)
        assert await written(log) == right
        assert state_bytes(folding.state) == state_bytes(fold_events(history, town.id).state)
        standing = {digest for digest, (status, _) in right.items() if status == "accepted"}
        assert {event.digest for event in told} >= standing


async def test_verdicts_that_a_crash_left_unwritten_are_written_at_the_next_start(
    town: Any, tmp_path: Any
) -> None:
    history = await a_history(town, tmp_path)
    async with town.log() as log:
        await log.receive([event.encode() for event in history])
        right = await written(log)
        assert len(set(right.values())) > 3
        swapped = update(events).values(status="accepted", rule=None)
        await log.store.write(lambda c: c.execute(swapped).close())
        wrong = update(events).where(events.c.lamport == 0).values(status="void", rule="floor")
        await log.store.write(lambda c: c.execute(wrong).close())
    async with town.log() as log:
        assert await written(log) == right


async def test_listeners_hear_once_of_what_stands_and_of_all_that_arrived(
    town: Any, post_data: Callable[..., Any]
) -> None:
    heard: list[LogUpdate] = []
    async with town.log() as log:
        end = log.subscribe(heard.append)
        created = await town.found(log)
        invite, joined = await town.admit(log, GUESTS[0])
        one, two, three = town.chain(GUESTS[0], joined, 3)
        await log.receive([three.encode()])
        await log.receive([three.encode(), two.encode()])
        assert [event for news in heard[3:] for event in news.accepted] == []
        await log.receive([one.encode()])
        assert heard[-1].accepted == (one, two, three)
        arrived = [position for news in heard for position in news.arrived]
        assert arrived == [e.position for e in (created, invite, joined, three, two, one)]
        end()
        await log.append(POST, post_data("unheard"))
        assert len(heard) == 6


async def test_a_watcher_follows_and_one_that_is_too_slow_is_let_go(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await town.found(log)
        watcher = log.watch(behind=2)
        next_one = asyncio.ensure_future(anext(watcher))
        await asyncio.sleep(0)
        first = await log.append(POST, post_data("a"))
        assert (await next_one).accepted == (first,)
        for number in range(4):
            await log.append(POST, post_data(f"b{number}"))
        with pytest.raises(CommunityError) as error:
            async for _ in watcher:
                pass
        assert error.value.code is Code.CAPACITY_EXCEEDED
        assert log._listeners == []


async def test_views_are_asked_of_a_state_that_stands_still(
    town: Any, post_data: Callable[..., Any]
) -> None:
    async with town.log() as log:
        await town.found(log)
        writers = asyncio.gather(*(log.append(POST, post_data(f"p{n}")) for n in range(60)))
        while not writers.done():
            shown = await log.view(lambda state: state.market(town.clock.now()))
            assert len({post["event_id"] for post in shown}) == len(shown)
            await asyncio.sleep(0)
        await writers
        assert len(await log.view(lambda state: state.market(town.clock.now()))) == 60
        assert [member["level"] for member in await log.view(CommunityState.members)] == ["anchor"]
