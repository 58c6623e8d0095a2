"""What a sync of a million events costs, in round trips and bytes."""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from blake3 import blake3

from accord.community.rules import (
    SyncBody,
    SyncIndex,
    SyncInitiator,
    SyncItem,
    SyncLimits,
    respond_sync,
)

pytestmark = pytest.mark.slow

COUNT = 1_000_000
DIFFERENCES = 10_000
EVENT_BYTES = 700


def item(number: int) -> SyncItem:
    """One of a log in which about three authors write at once, so that lamports tie."""
    name = number.to_bytes(8)
    digest = blake3(name).digest(24) + name
    return number // 3, f"01HX{number:06X}{digest[:8].hex().upper()}", digest


def fetch(items: Sequence[SyncItem]) -> Iterator[SyncBody]:
    return (SyncBody(digest.hex().encode().ljust(EVENT_BYTES, b".")) for _, _, digest in items)


def take(index: SyncIndex, bodies: Iterable[SyncBody]) -> int:
    return index.insert(item(int(body.raw[48:64], 16)) for body in bodies)


@dataclass
class Cost:
    rounds: int
    bytes: int
    events: int


def reconcile(left: SyncIndex, right: SyncIndex, limits: SyncLimits | None = None) -> Cost:
    session = SyncInitiator(left, b"8 bytes!", fetch, limits)
    size = events = 0
    while (request := session.request()) is not None:
        answer = respond_sync(right, request, fetch, limits)
        events += take(right, answer.received) + take(left, session.receive(answer.reply))
        size += len(request) + len(answer.reply)
    return Cost(session.rounds, size, events)


def content(index: SyncIndex) -> bytes:
    return b"".join(index.slices(0, len(index)))


@dataclass
class Logs:
    common: SyncIndex
    scattered: list[int]

    def without(self, *lacking: int) -> SyncIndex:
        """The log of a million events that lacks some of the scattered ones."""
        index = self.common.snapshot()
        index.insert(item(number) for number in self.scattered if number not in lacking)
        return index

    def with_some(self, some: Iterable[int]) -> SyncIndex:
        index = self.common.snapshot()
        index.insert(map(item, some))
        return index


@pytest.fixture(scope="module")
def logs() -> Logs:
    scattered = random.Random(4).sample(range(COUNT), DIFFERENCES)
    lacking = set(scattered)
    common = SyncIndex(item(number) for number in range(COUNT) if number not in lacking)
    return Logs(common, scattered)


def test_equal_logs_of_a_million_say_less_than_200_bytes(logs: Logs) -> None:
    cost = reconcile(logs.without(), logs.without())

    assert cost.rounds == 1
    assert cost.bytes < 200


@pytest.mark.parametrize("who_lacks", ["asks", "answers"])
def test_one_difference_in_a_million_takes_three_round_trips(logs: Logs, who_lacks: str) -> None:
    for lacking in logs.scattered[:5]:
        pair = logs.without(lacking), logs.without()
        cost = reconcile(*(pair if who_lacks == "asks" else reversed(pair)))

        assert content(pair[0]) == content(pair[1])
        assert cost.events == 1
        assert cost.rounds <= 3
        assert cost.bytes <= 4096


def test_ten_thousand_scattered_differences_in_a_million(logs: Logs) -> None:
    half = DIFFERENCES // 2
    left, right = (logs.with_some(some) for some in (logs.scattered[:half], logs.scattered[half:]))

    cost = reconcile(left, right)

    assert content(left) == content(right)
    assert cost.events == DIFFERENCES
    assert cost.bytes <= 1.2 * DIFFERENCES * EVENT_BYTES + 64 * 1024


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_ten_thousand_differences_at_the_tail(logs: Logs, share: float) -> None:
    chance = random.Random(7)
    tail = range(COUNT, COUNT + DIFFERENCES)
    lefts = {number for number in tail if chance.random() < share}
    left = logs.with_some(lefts)
    right = logs.with_some(number for number in tail if number not in lefts)

    cost = reconcile(left, right)

    assert content(left) == content(right)
    assert cost.events == DIFFERENCES
    assert cost.bytes <= 1.02 * DIFFERENCES * EVENT_BYTES


def test_small_messages_cost_round_trips_but_hardly_bytes(logs: Logs) -> None:
    left, right = logs.with_some(logs.scattered[:1000]), logs.common.snapshot()

    cost = reconcile(left, right, SyncLimits(message=64 * 1024))

    assert content(left) == content(right)
    assert cost.bytes <= 1.25 * 1000 * EVENT_BYTES + 64 * 1024
