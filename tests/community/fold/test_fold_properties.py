"""The same events come to the same state, in whatever order, batches and company they arrive."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.fakes.histories import hostile, realistic

from accord.community.errors import Code, CommunityError
from accord.community.rules import (
    Event,
    MemoryHistory,
    NeedsHistoryError,
    Replay,
    Status,
    Verdict,
    fold_events,
    fold_history,
    read_state,
    replay,
    state_bytes,
    state_object,
)
from accord.kernel import canonical

seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=120)


def a_history(seed: int, most: int = 80) -> tuple[random.Random, str, list[Event]]:
    chance = random.Random(seed)
    community_id, events = hostile(chance, chance.randint(1, most))
    return chance, community_id, events


def in_batches(chance: random.Random, events: list[Event]) -> Iterator[list[Event]]:
    """The events in some order, with some of them given twice."""
    order = [*events, *chance.choices(events, k=3)]
    if chance.random() < 0.7:
        chance.shuffle(order)
    while order:
        size = chance.randint(1, 12)
        yield order[:size]
        order = order[size:]


@few
@given(seeds)
def test_order_and_repetition_make_no_difference(seed: int) -> None:
    chance, community_id, events = a_history(seed)
    shuffled = [*events, *chance.choices(events, k=5)]
    chance.shuffle(shuffled)
    once, again = fold_events(events, community_id), fold_events(shuffled, community_id)
    assert state_bytes(once.state) == state_bytes(again.state)
    assert once.verdicts == again.verdicts


@few
@given(seeds)
def test_every_event_has_a_verdict_and_is_counted(seed: int) -> None:
    _, community_id, events = a_history(seed)
    folded = fold_events(events, community_id)
    assert folded.verdicts.keys() == {event.digest for event in events}
    counts = dict.fromkeys(Status, 0)
    for verdict in folded.verdicts.values():
        counts[verdict.status] += 1
    state = folded.state
    assert counts == {
        status: state.content.counts[status] + state.membership_counts[status] for status in Status
    }


def check_incremental(seed: int) -> None:
    chance, community_id, events = a_history(seed)
    replay, memory = Replay(community_id), MemoryHistory()
    verdicts: dict[bytes, Verdict] = {}
    for batch in in_batches(chance, events):
        fresh = memory.add(batch)
        advance = replay.advance(memory, fresh)
        positions = [event.position for event, _ in advance.changed]
        assert positions == sorted(set(positions))
        changes = {event.digest: verdict for event, verdict in advance.changed}
        assert all(verdicts.get(digest) is not verdict for digest, verdict in changes.items()), (
            "an event was told of that is judged as before"
        )
        verdicts |= changes
        full = fold_events(memory.in_order(), community_id)
        assert state_object(advance.state) == state_object(full.state)
        assert verdicts == full.verdicts


@few
@given(seeds)
@example(3996)  # somebody is revoked by its own hand in the middle of a quarrel
def test_batch_by_batch_comes_to_the_same_as_all_at_once(seed: int) -> None:
    check_incremental(seed)


@pytest.mark.parametrize("window", [1, 3, 8])
@settings(max_examples=40)
@given(seed=seeds)
def test_it_does_wherever_the_past_is_undone_or_copied(window: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "REWIND_WINDOW", window)
        check_incremental(seed)


@few
@given(seeds)
def test_a_snapshot_and_what_follows_come_to_the_whole_or_say_that_they_cannot(seed: int) -> None:
    chance, community_id, events = a_history(seed)
    lamport = chance.choice(events).lamport
    before = [event for event in events if event.lamport <= lamport]
    snapshot = read_state(state_bytes(fold_history(MemoryHistory(before), community_id)))
    memory = MemoryHistory(before)
    try:
        replay, _ = Replay.resume(snapshot, MemoryHistory(events))
    except NeedsHistoryError:
        return
    whole = state_object(fold_history(MemoryHistory(events), community_id))
    assert state_object(replay.state) == whole
    replay, _ = Replay.resume(snapshot, memory)
    for batch in in_batches(chance, events):
        try:
            replay.advance(memory, memory.add(batch))
        except NeedsHistoryError:
            return
    assert state_object(replay.state) == whole


def test_an_honest_tail_never_needs_the_history() -> None:
    community_id, stream = realistic(600, seed=3)
    events = list(stream)
    whole = state_bytes(fold_history(MemoryHistory(events), community_id))
    for size in (0, 1, 50, 599, 600):
        snapshot = read_state(state_bytes(fold_history(MemoryHistory(events[:size]), community_id)))
        replay, advance = Replay.resume(snapshot, MemoryHistory(events))
        assert state_bytes(replay.state) == whole
        assert len(advance.changed) == sum(
            not event.event_type.startswith("community.") for event in events[size:]
        )


def test_an_honest_history_stands() -> None:
    community_id, events = realistic(2000)
    state = fold_history(MemoryHistory(events), community_id)
    assert state.content.counts[Status.ACCEPTED] + state.membership_counts[Status.ACCEPTED] == 2000


def test_signed_histories_are_verified_and_folded_alike() -> None:
    from accord.community.rules import parse_event, verify_event

    community_id, stream = realistic(60, members=5, signed=True)
    events = list(stream)
    for event in events:
        verify_event(parse_event(event.encode()))
    state = fold_history(
        MemoryHistory(map(parse_event, (event.encode() for event in events))), community_id
    )
    assert state.content.counts[Status.REFUSED] == state.membership_counts[Status.REFUSED] == 0


@few
@given(seeds)
def test_a_state_is_read_back_as_it_was_written(seed: int) -> None:
    _, community_id, events = a_history(seed)
    raw = state_bytes(fold_history(MemoryHistory(events), community_id))
    assert state_bytes(read_state(raw)) == raw


values: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 2**53, 1.5, "", "x", [], {}, [{}], "blake3:zz", 0]
)


@settings(max_examples=300)
@given(seeds, st.data())
def test_nothing_else_is_read_as_a_state(seed: int, data: st.DataObject) -> None:
    _, community_id, events = a_history(seed, most=30)
    written = canonical.decode(state_bytes(fold_history(MemoryHistory(events), community_id)))
    at: Any = written
    while True:
        keys = sorted(at) if isinstance(at, dict) else list(range(len(at)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
            break
        at = at[key]
    at[key] = data.draw(values)
    try:
        state = read_state(canonical.encode(written))
    except CommunityError as error:
        assert error.code is Code.BAD_REQUEST
        return
    assert state_bytes(state) == canonical.encode(written)
    # What is read can be used: no member has a form that a fold could not have written.
    with contextlib.suppress(NeedsHistoryError):
        Replay.resume(state, MemoryHistory(events))


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"[]", b"null", b'{"version":1}', b"\xff", b"[" * 5000]
)
def test_what_is_no_state_is_refused(raw: bytes) -> None:
    with pytest.raises(CommunityError, match="not a state"):
        read_state(raw)
