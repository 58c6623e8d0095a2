"""Two logs become equal, whatever they held and whatever is lost on the way."""

import random
from collections.abc import Iterable, Iterator, Sequence

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from accord.community.errors import Code, CommunityError
from accord.community.rules import (
    SyncBody,
    SyncIndex,
    SyncInitiator,
    SyncItem,
    SyncLimits,
    respond_sync,
)

SALT = b"8 bytes!"
EVENT_BYTES = 700
TINY = SyncLimits(message=3 * EVENT_BYTES)


def item(number: int) -> SyncItem:
    """An item whose digest tells its number; three share a lamport, two of them an event id."""
    name = number.to_bytes(8)
    return number // 3, f"01HXR{number % 3 // 2:021d}", blake3(name).digest(24) + name


class Node:
    """A log that keeps nothing but its index: bodies are made from items and back."""

    def __init__(self, index: SyncIndex) -> None:
        self.index = index
        self.received = 0
        self.event_bytes = EVENT_BYTES

    def fetch(self, items: Sequence[SyncItem]) -> Iterator[SyncBody]:
        for each in items:
            number = int.from_bytes(each[2][24:])
            assert each == item(number)
            yield SyncBody(b"%020d" % number + b"." * (self.event_bytes - 20), number % 5 == 0)

    def accept(self, bodies: Iterable[SyncBody]) -> None:
        numbers = [int(body.raw[:20]) for body in bodies]
        self.received += len(numbers)
        assert self.index.insert(map(item, numbers)) == len(numbers), "a body that was not lacking"

    @property
    def records(self) -> list[bytes]:
        return list(self.index.records(0, len(self.index)))


def node(numbers: Iterable[int]) -> Node:
    return Node(SyncIndex(map(item, numbers)))


class Traffic:
    """What a session cost."""

    def __init__(self) -> None:
        self.rounds = 0
        self.bytes = 0
        self.most = 0

    def count(self, *messages: bytes) -> None:
        self.bytes += sum(map(len, messages))
        self.most = max(self.most, *map(len, messages))


def reconcile(left: Node, right: Node, limits: SyncLimits | None = None) -> Traffic:
    traffic = Traffic()
    session = SyncInitiator(left.index, SALT, left.fetch, limits)
    while (request := session.request()) is not None:
        answer = respond_sync(right.index, request, right.fetch, limits)
        right.accept(answer.received)
        left.accept(session.receive(answer.reply))
        traffic.count(request, answer.reply)
        traffic.rounds = session.rounds
    return traffic


# Runs of numbers beside single ones: differences come in both kinds.
runs = st.builds(
    lambda start, length: range(start, start + length), st.integers(0, 900), st.integers(1, 120)
)
numbers = st.lists(
    st.one_of(runs, st.integers(0, 1000).map(lambda n: range(n, n + 1))), max_size=8
).map(lambda parts: frozenset(number for part in parts for number in part))
lots = st.integers(0, 2**32)
limits = st.sampled_from(
    (None, TINY, SyncLimits(message=1), SyncLimits(looks=1), SyncLimits(message=20_000))
)


@given(numbers, numbers, limits)
@settings(max_examples=200)
def test_any_two_logs_become_equal(
    left: frozenset[int], right: frozenset[int], limit: SyncLimits | None
) -> None:
    first, second = node(left), node(right)

    reconcile(first, second, limit)

    assert first.records == second.records == node(left | right).records
    assert (first.received, second.received) == (len(right - left), len(left - right))


@given(numbers, numbers, limits, lots)
@settings(max_examples=100)
def test_lost_messages_and_broken_sessions_lose_nothing(
    left: frozenset[int], right: frozenset[int], limit: SyncLimits | None, lot: int
) -> None:
    first, second = node(left), node(right)
    chance = random.Random(lot)

    for salt in (b"session1", b"session2", b"the last"):
        session = SyncInitiator(first.index, salt, first.fetch, limit)
        while (request := session.request()) is not None:
            fate = chance.choice(("ask lost", "reply lost", "arrives", "arrives", "breaks"))
            if fate == "breaks" and salt != b"the last":
                break
            if fate == "ask lost":
                continue
            answer = respond_sync(second.index, request, second.fetch, limit)
            second.index.insert(item(int(body.raw[:20])) for body in answer.received)
            if fate != "reply lost":
                first.index.insert(
                    item(int(body.raw[:20])) for body in session.receive(answer.reply)
                )

    assert first.records == second.records == node(left | right).records


@given(st.lists(numbers, min_size=3, max_size=3), lots)
@settings(max_examples=50)
def test_three_logs_that_meet_in_pairs_become_equal(held: list[frozenset[int]], lot: int) -> None:
    nodes = [node(each) for each in held]
    pairs = [(a, b) for a in range(3) for b in range(3) if a != b]
    random.Random(lot).shuffle(pairs)

    for a, b in [*pairs, *pairs]:
        reconcile(nodes[a], nodes[b])

    whole = node(frozenset().union(*held)).records
    assert [each.records for each in nodes] == [whole] * 3


@given(numbers, numbers, numbers)
@settings(max_examples=50)
def test_a_log_that_grows_during_a_session_keeps_what_it_got(
    left: frozenset[int], right: frozenset[int], news: frozenset[int]
) -> None:
    first, second = node(left), node(right)
    session = SyncInitiator(first.index, SALT, first.fetch, TINY)
    while (request := session.request()) is not None:
        answer = respond_sync(second.index, request, second.fetch, TINY)
        second.index.insert(item(int(body.raw[:20])) for body in answer.received)
        first.index.insert(item(int(body.raw[:20])) for body in session.receive(answer.reply))
        first.index.insert(map(item, news))

    assert second.index.rank(b"\xff" * 8) >= len(left | right)
    reconcile(Node(first.index), Node(second.index))
    assert first.records == second.records == node(left | right | news).records


def test_different_events_at_one_head_cross_over() -> None:
    left, right = node(range(99)), node(range(98))
    right.index.insert([item(98 + 2)])

    traffic = reconcile(left, right)

    assert left.records == right.records
    assert len(left.index) == 100
    assert traffic.rounds <= 3


@pytest.mark.parametrize("count", [0, 1, 12, 13, 500, 5000])
def test_equal_logs_part_after_one_round_trip(count: int) -> None:
    traffic = reconcile(node(range(count)), node(range(count)))

    assert traffic.rounds == 1
    assert traffic.bytes < 200


@pytest.mark.parametrize("count", [1, 12, 13, 100, 1000, 3000])
@pytest.mark.parametrize("who_lacks", ["asks", "answers"])
def test_one_difference_takes_three_round_trips_at_most(count: int, who_lacks: str) -> None:
    for lacking in {0, count // 2, count - 1}:
        pair = node(set(range(count)) - {lacking}), node(range(count))
        traffic = reconcile(*(pair if who_lacks == "asks" else reversed(pair)))

        assert pair[0].records == pair[1].records
        assert traffic.rounds <= 3


def test_an_empty_log_is_filled_in_messages_of_bounded_size() -> None:
    for left, right in ((range(0), range(2000)), (range(2000), range(0))):
        first, second = node(left), node(right)
        traffic = reconcile(first, second, SyncLimits(message=100_000))

        assert first.records == second.records
        assert traffic.most <= 100_000
        assert traffic.bytes <= 1.02 * 2000 * EVENT_BYTES


def test_long_events_are_not_asked_for_again_and_again() -> None:
    left, right = node(number for number in range(9000) if number % 6), node(range(9000))
    right.event_bytes = 8000

    traffic = reconcile(left, right, SyncLimits(message=64 * 1024))

    assert left.records == right.records
    assert traffic.bytes <= 1.05 * 1500 * 8000


def test_a_stub_travels_as_a_stub() -> None:
    left, right = node([5]), node([])
    request = SyncInitiator(left.index, SALT, left.fetch).request()
    assert request is not None
    reply = respond_sync(right.index, request, right.fetch).reply

    session = SyncInitiator(left.index, SALT, left.fetch)
    session.request()
    session.receive(reply)
    last = session.request()

    assert last is not None
    (body,) = respond_sync(right.index, last, right.fetch).received
    assert body.is_stub


def test_an_event_that_is_gone_or_too_long_is_left_out() -> None:
    left, right = node(range(10)), node([])

    def fetch(items: Sequence[SyncItem]) -> Iterator[SyncBody | None]:
        for _, _, digest in items:
            number = digest[-1]
            yield (
                None
                if number == 3
                else SyncBody(b"%020d" % number + b"." * (10**6 * (number == 4)))
            )

    session = SyncInitiator(left.index, SALT, fetch)
    while (request := session.request()) is not None:
        answer = respond_sync(right.index, request, right.fetch)
        right.accept(answer.received)
        session.receive(answer.reply)

    assert right.records == node(set(range(10)) - {3, 4}).records


def test_a_session_ends_after_its_round_trips() -> None:
    left, right = node(range(100)), node(range(100, 200))

    with pytest.raises(CommunityError) as refused:
        reconcile(left, right, SyncLimits(message=1, rounds=5))

    assert refused.value.code is Code.CAPACITY_EXCEEDED
    reconcile(left, right)
    assert left.records == right.records
