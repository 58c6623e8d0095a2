"""Content that is judged in parts comes to the very verdicts and bytes of the whole."""

import pickle
import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.histories import HistoryWriter, hostile, realistic

from accord.community.rules import (
    ACCEPTED,
    CONTENT_RULES,
    MEMBERSHIP_TYPES,
    NAMING_TYPES,
    VERDICTS,
    Content,
    Event,
    FoldBasis,
    MemoryHistory,
    StateItem,
    Verdict,
    assemble_state,
    fold_events,
    judge_events,
    read_basis,
    state_bytes,
    state_items,
    state_object,
    subject,
)
from accord.kernel import canonical

seeds = st.integers(0, 2**32 - 1)


def judged(on: FoldBasis, part: Iterable[Event]) -> tuple[dict[bytes, Verdict], Content]:
    verdicts: dict[bytes, Verdict] = {}
    content = Content()

    def note(event: Event, verdict: Verdict) -> None:
        verdicts[event.digest] = verdict

    judge_events(on, content, part, note)
    return verdicts, content


def in_parts(
    events: list[Event], community_id: str, chance: random.Random, count: int
) -> tuple[dict[bytes, Verdict], bytes]:
    """Every group of events in one of so many parts, by chance, and what they come to."""
    memory = MemoryHistory(events)
    on = pickle.loads(pickle.dumps(read_basis(memory, community_id)))
    places: dict[object, int] = {}

    def part_of(group: object) -> int:
        return places.setdefault(group, chance.randrange(count))

    first: list[list[Event]] = [[] for _ in range(count)]
    second: list[list[Event]] = [[] for _ in range(count)]
    verdicts: dict[bytes, Verdict] = {}
    for event in memory.in_order():
        if event.event_type in NAMING_TYPES:
            first[part_of((event.event_type, event.author))].append(event)
    for part in first:
        verdicts |= judged(on, part)[0]
    fallen = {digest for digest, verdict in verdicts.items() if verdict is not ACCEPTED}
    for event in memory.in_order():
        if event.digest not in fallen:
            second[part_of(subject(event))].append(event)
    found: list[StateItem] = []
    for part in second:
        again, content = judged(on, part)
        assert all(verdicts.get(digest, verdict) is verdict for digest, verdict in again.items())
        verdicts |= again
        found += state_items(content)
    found.sort(key=lambda item: item[:3])
    last = [event.position for event in memory.in_order() if event.lamport <= on.reach]
    frame = state_object(on.state(Content(head=last[-1] if last else None)))
    counted = Counter(
        verdicts[event.digest].status.value
        for event in memory.in_order()
        if event.event_type not in MEMBERSHIP_TYPES or event.lamport > on.reach
    )
    frame["counts"]["content"] |= counted
    return verdicts, assemble_state(
        frame, ((item.section, canonical.encode(item.value)) for item in found)
    )


def check(seed: int, most: int) -> None:
    chance = random.Random(seed)
    community_id, events = hostile(chance, chance.randint(1, most))
    whole = fold_events(events, community_id)
    verdicts, written = in_parts(events, community_id, chance, chance.randint(1, 9))
    assert verdicts == whole.verdicts
    assert written == state_bytes(whole.state)


@settings(max_examples=150)
@given(seeds)
def test_any_parts_that_break_up_no_group_come_to_the_whole(seed: int) -> None:
    check(seed, 120)


@pytest.mark.long
@settings(max_examples=2000, deadline=None)
@given(seeds)
def test_any_parts_come_to_the_whole_over_many_longer_histories(seed: int) -> None:
    check(seed, 400)


def test_an_honest_history_in_parts_comes_to_the_whole() -> None:
    community_id, stream = realistic(3000, seed=5)
    events = list(stream)
    whole = fold_events(events, community_id)
    verdicts, written = in_parts(events, community_id, random.Random(5), 7)
    assert (verdicts, written) == (whole.verdicts, state_bytes(whole.state))


def test_an_empty_log_is_written_from_no_parts() -> None:
    community_id = HistoryWriter().community_id
    assert in_parts([], community_id, random.Random(0), 1)[1] == state_bytes(
        fold_events([], community_id).state
    )


def test_every_content_rule_has_its_subject_and_what_is_not_known_is_about_itself() -> None:
    scribe = HistoryWriter()
    founder = scribe.pen("founder")
    scribe.found(founder)
    for event_type in CONTENT_RULES:
        newer = scribe.write(founder, event_type, {}, version=2)
        assert subject(newer) == ("event", newer.hash)
    strange = scribe.write(founder, "weather.report.made", {})
    assert subject(strange) == ("event", strange.hash)


def test_an_authors_ids_and_those_who_name_them_are_about_one_subject() -> None:
    scribe = HistoryWriter()
    founder, other = scribe.pen("founder"), scribe.pen("other")
    post = scribe.post(founder)
    same = scribe.post(other, event_id=post.event_id)
    data = {"client_id": "c", "target_event_id": post.event_id}
    ended = scribe.write(other, "market.post.expired", {**data, "reason": "withdrawn"})
    assert subject(post) == subject(same) == subject(ended) == ("post", post.event_id)
    message = scribe.say(founder, other, event_id=post.event_id)
    assert subject(message) == ("message", post.event_id)


def test_a_pickled_verdict_comes_back_as_itself() -> None:
    for verdict in VERDICTS.values():
        assert pickle.loads(pickle.dumps(verdict)) is verdict
