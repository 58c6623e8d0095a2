"""Links on virtual time: kept open, raced over addresses, dropped when they fail."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from accord.community.dialler import Link, Links
from accord.community.errors import Code, CommunityError
from accord.community.peers import PeerBook
from accord.testing import VirtualClock, run_virtual

COMMUNITY = "community"


class Places:
    """A dialler to made-up addresses; each answers after some seconds, or never (None)."""

    def __init__(self, clock: VirtualClock, **answers: float | None) -> None:
        self.clock = clock
        self.answers = answers
        self.dialled: Counter[str] = Counter()
        self.refreshed = 0
        self.open: list[str] = []

    async def connect(self, address: str, _community: str, *, node_id: str | None) -> Link:
        self.dialled[address] += 1
        seconds = self.answers[address]
        await asyncio.sleep(10 if seconds is None else seconds)
        if seconds is None:
            raise CommunityError(Code.PARTITION, f"{address} is silent")
        opened = AsyncExitStack()
        self.open.append(address)
        opened.callback(self.open.remove, address)
        client: Any = SimpleNamespace(node_id=node_id or f"node at {address}")
        unused: Any = None
        return Link(address, client, {}, unused, opened, self.clock.monotonic())

    async def refresh(self, link: Link) -> None:
        self.refreshed += 1
        if self.answers[link.address] is None:
            raise CommunityError(Code.PARTITION, "silent now")
        link.checked = self.clock.monotonic()


def living(
    work: Callable[[Places, Links], Awaitable[None]], most: int = 64, **answers: Any
) -> None:
    clock = VirtualClock()
    places = Places(clock, **answers)
    dialler: Any = places

    async def main() -> None:
        links = Links(dialler=dialler, book=PeerBook("own"), clock=clock, most=most)
        try:
            await work(places, links)
        finally:
            await links.close()
        assert places.open == []

    run_virtual(main(), clock=clock)


def test_a_link_serves_many_syncs_and_its_manifest_is_looked_at_now_and_then() -> None:
    async def work(places: Places, links: Links) -> None:
        for _ in range(10):
            async with links.reach(COMMUNITY, ["a"], "n"):
                await asyncio.sleep(5)
        assert places.dialled == {"a": 1}
        assert places.refreshed == 2

    living(work, a=0.1)


def test_a_silent_address_delays_the_next_one_by_a_second() -> None:
    async def work(places: Places, links: Links) -> None:
        async with links.reach(COMMUNITY, ["silent", "slow", "good"], "n") as link:
            assert link.address == "good"
        assert places.clock.monotonic() < 2.2
        # Whoever was slower is neither kept nor held against it.
        assert places.open == ["good"]
        assert links.book.address(COMMUNITY, "slow").failures == 0
        assert links.book.address(COMMUNITY, "good").answered is not None

    living(work, silent=None, slow=5, good=0.1)


def test_an_address_that_fails_at_once_does_not_delay_the_next() -> None:
    async def work(places: Places, links: Links) -> None:
        async def refuse(address: str, community: str, *, node_id: str | None) -> Link:
            if address == "bad":
                raise CommunityError(Code.PARTITION, "refused")
            return await Places.connect(places, address, community, node_id=node_id)

        places.connect = refuse  # type: ignore[method-assign,assignment]
        async with links.reach(COMMUNITY, ["bad", "good"], "n") as link:
            assert link.address == "good"
        assert places.clock.monotonic() < 0.5
        assert links.book.address(COMMUNITY, "bad").failures == 1

    living(work, good=0.1)


def test_when_nobody_answers_every_address_has_a_pause() -> None:
    async def work(_: Places, links: Links) -> None:
        with pytest.raises(CommunityError, match="silent"):
            async with links.reach(COMMUNITY, ["a", "b"], "n"):
                pass
        assert [links.book.address(COMMUNITY, each).failures for each in "ab"] == [1, 1]

    living(work, a=None, b=None)


def test_a_sync_that_fails_closes_its_link_and_counts_against_the_address() -> None:
    async def work(places: Places, links: Links) -> None:
        with pytest.raises(CommunityError):
            async with links.reach(COMMUNITY, ["a"], "n"):
                raise CommunityError(Code.TIMEOUT, "no reply")
        assert len(links) == 0
        assert links.book.address(COMMUNITY, "a").failures == 1
        with pytest.raises(asyncio.CancelledError):
            async with links.reach(COMMUNITY, ["a"], "n"):
                raise asyncio.CancelledError
        # Being cancelled says nothing about the node.
        assert links.book.address(COMMUNITY, "a").failures == 0
        assert places.dialled == {"a": 2}

    living(work, a=0.1)


def test_a_node_that_fell_asleep_is_dialled_anew() -> None:
    async def work(places: Places, links: Links) -> None:
        async with links.reach(COMMUNITY, ["a"], "n"):
            pass
        await asyncio.sleep(60)
        places.answers |= {"a": None, "b": 0.1}
        async with links.reach(COMMUNITY, ["a", "b"], "n") as link:
            assert link.address == "b"
        assert places.open == ["b"]

    living(work, a=0.1, b=None)


def test_the_link_that_was_not_used_for_longest_makes_room_and_one_in_use_does_not() -> None:
    async def work(places: Places, links: Links) -> None:
        async with links.reach(COMMUNITY, ["a"], "na"):
            for address in "bcbd":
                async with links.reach(COMMUNITY, [address], f"n{address}"):
                    pass
            assert sorted(places.open) == ["a", "b", "d"]
        assert len(links) == 3

    living(work, most=3, a=0.1, b=0.1, c=0.1, d=0.1)


def test_a_link_whose_manifest_is_being_fetched_does_not_make_room_for_another() -> None:
    async def work(places: Places, links: Links) -> None:
        async with links.reach(COMMUNITY, ["a"], "na"):
            pass
        await asyncio.sleep(60)
        refresh = places.refresh

        async def slow(link: Link) -> None:
            await asyncio.sleep(5)
            await refresh(link)

        places.refresh = slow  # type: ignore[method-assign]

        async def use(address: str) -> str:
            async with links.reach(COMMUNITY, [address], f"n{address}") as link:
                return link.address

        assert list(await asyncio.gather(use("a"), use("b"))) == ["a", "b"]
        assert sorted(places.open) == ["a", "b"]

    living(work, most=1, a=0.1, b=0.1)


def test_another_node_at_a_known_address_gets_a_link_of_its_own() -> None:
    async def work(places: Places, links: Links) -> None:
        async with (
            links.reach(COMMUNITY, ["a"], "one"),
            links.reach(COMMUNITY, ["a"], "two") as two,
        ):
            assert two.client.node_id == "two"
        assert places.dialled == {"a": 2}
        assert places.open == ["a"]

    living(work, a=0.1)
