"""Rounds of meetings on virtual time, over a simulated network: nobody waits for anybody else."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from accord.community import scheduler
from accord.community.dialler import Link, Links
from accord.community.errors import Code, CommunityError
from accord.community.peers import Endpoint as Place
from accord.community.peers import OwnManifests, PeerBook
from accord.community.relays import RelayTable
from accord.community.rules import Level, manifests
from accord.community.scheduler import NodeScheduler
from accord.community.settings import NodeSettings
from accord.community.sync import SyncResult
from accord.kernel.signing import SigningKey
from accord.testing import NetworkMessage, SimulatedNetwork, VirtualClock, run_virtual

OWN, ROOT = (SigningKey.from_seed(bytes([number]) * 32) for number in (201, 202))
DIAL_SECONDS = 10.0


def key_of(number: int) -> SigningKey:
    return SigningKey.from_seed(number.to_bytes(32, "big"))


class Members:
    """A community whose members listen at 10.0.0.x; some answer, some are silent."""

    community_id = ROOT.id
    is_member = False  # it has no manifest to publish here

    def __init__(self, clock: VirtualClock, *, silent: int, answering: int) -> None:
        self.clock = clock
        self.keys = [key_of(number) for number in range(silent + answering)]
        self.silent = [self._place(number).url for number in range(silent)]
        self.answering = [self._place(silent + number).url for number in range(answering)]
        self.state = SimpleNamespace(
            is_founded=True,
            content=SimpleNamespace(
                manifests={
                    key.id: SimpleNamespace(endpoints=[("https", *self._at(number), None)])
                    for number, key in enumerate(self.keys)
                }
            ),
        )
        self.log = self
        self.relays = RelayTable()
        self.network = SimulatedNetwork(seed=7)
        self.asked: Counter[str] = Counter()
        self.met: list[tuple[float, str]] = []
        self.meeting: Callable[[str], Awaitable[None]] | None = None

    def join(self) -> None:
        """Bring everybody up, once the loop runs."""
        for url in self.silent:
            self.network.join(url)
        for number, url in enumerate(self.answering):
            self.network.join(url, self._answer(len(self.silent) + number))
        self.endpoint = self.network.join("own")

    def _at(self, number: int) -> tuple[str, int]:
        return f"10.0.0.{number + 1}", 7080

    def _place(self, number: int) -> Place:
        return Place("https", *self._at(number))

    def _answer(self, number: int) -> Callable[[NetworkMessage], Awaitable[bytes]]:
        async def answer(_: NetworkMessage) -> bytes:
            return str(number).encode()

        return answer

    # What rounds ask of a community and its log.
    def level_of(self, _node_id: str) -> Level:
        return Level.MEMBER

    async def view(self, look: Callable[[Any], Any]) -> Any:
        return look(self.state)

    async def recovered(self) -> None:
        pass

    # What rounds ask of a dialler.
    async def connect(self, address: str, _community: str, *, node_id: str | None) -> Link:
        self.asked[address] += 1
        try:
            answer = await self.endpoint.request(address, b"manifest", timeout=DIAL_SECONDS)
        except TimeoutError:
            raise CommunityError(Code.PARTITION, "nobody answers") from None
        place = self._place(int(answer))
        about = {
            "display_name": "member",
            "community_id": ROOT.id,
            "profile": "member",
            "endpoints": [{"transport": "https", "host": place.host, "port": place.port}],
            "capabilities": [],
            "extensions": ["to"],
        }
        manifest = manifests.sign_node(self.keys[int(answer)], about, now=self.clock.now())
        assert node_id in (None, manifest["node_id"])
        client: Any = SimpleNamespace(node_id=manifest["node_id"], address=address)
        unused: Any = None
        return Link(address, client, manifest, unused, AsyncExitStack(), self.clock.monotonic())

    async def refresh(self, link: Link) -> None:
        fresh = await self.connect(link.address, ROOT.id, node_id=link.client.node_id)
        link.manifest, link.checked = fresh.manifest, fresh.checked

    async def meet(self, _hosted: Any, client: Any, _dialler: Any) -> SyncResult:
        if self.meeting is not None:
            await self.meeting(client.address)
        self.met.append((self.clock.monotonic(), client.address))
        return SyncResult()


@pytest.fixture(autouse=True)
def without_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(_log: Any) -> None:
        pass

    async def meet_from(hosted: Any, client: Any, dialler: Any) -> SyncResult:
        met: SyncResult = await hosted.meet(hosted, client, dialler)
        return met

    monkeypatch.setattr(scheduler, "sync_or_begin", meet_from)
    monkeypatch.setattr(scheduler, "maintain_log", nothing)


def rounds_of(members: Members, sync_seconds: float = 15.0) -> Any:
    members.join()
    communities: Any = {ROOT.id: members}
    dialler: Any = members
    unused: Any = None
    presence = OwnManifests(OWN, members.clock, unused, "own", unused)
    book = PeerBook(OWN.id)
    return NodeScheduler(
        own_id=OWN.id,
        communities=communities,
        book=book,
        links=Links(dialler=dialler, book=book, clock=members.clock),
        presence=presence,
        topics=unused,
        settings=NodeSettings(sync_seconds=sync_seconds),
        clock=members.clock,
        chance=Random(1),
    )


def live(members: Members, seconds: float, *, sync_seconds: float = 15.0) -> None:
    """Run the rounds of a node for so long."""

    async def main() -> None:
        running = asyncio.create_task(rounds_of(members, sync_seconds).run())
        await asyncio.sleep(seconds)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtual(main(), clock=members.clock)


def test_twelve_silent_members_do_not_delay_one_that_answers() -> None:
    members = Members(VirtualClock(), silent=12, answering=1)
    live(members, 60)
    times = [when for when, _ in members.met]
    assert times[0] < 1
    # A round every 15 seconds or a little sooner, as if nobody were silent.
    assert len(times) >= 4
    assert max(after - before for before, after in itertools.pairwise(times)) < 16


def test_two_hundred_silent_members_do_not_delay_those_that_answer() -> None:
    members = Members(VirtualClock(), silent=200, answering=3)
    live(members, 600)
    for url in members.answering:
        times = [when for when, met in members.met if met == url]
        assert times[0] < 40
        assert len(times) >= 35
        gaps = [after - before for before, after in itertools.pairwise(times)]
        assert max(gaps) < 16


def test_a_member_that_was_never_met_is_asked_more_and_more_seldom() -> None:
    members = Members(VirtualClock(), silent=12, answering=1)
    live(members, 3600)
    for url in members.silent:
        # After 2, 4, 8 ... 300 seconds; every round would be 240 times.
        assert 5 <= members.asked[url] <= 22


def test_a_member_that_begins_to_answer_is_met() -> None:
    members = Members(VirtualClock(), silent=1, answering=0)
    (url,) = members.silent

    async def main() -> None:
        running = asyncio.create_task(rounds_of(members).run())
        await asyncio.sleep(100)
        members.network.crash(url)
        members.network.join(url, members._answer(0))
        await asyncio.sleep(400)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    run_virtual(main(), clock=members.clock)
    assert members.met


def test_a_meeting_that_never_ends_delays_no_other_and_is_broken_off() -> None:
    members = Members(VirtualClock(), silent=0, answering=3)
    slow = members.answering[0]
    ended: list[float] = []

    async def meeting(address: str) -> None:
        if address == slow:
            try:
                await asyncio.sleep(10**6)
            finally:
                ended.append(members.clock.monotonic())

    members.meeting = meeting
    live(members, 400)
    for url in members.answering[1:]:
        times = [when for when, met in members.met if met == url]
        assert len(times) >= 25
    assert ended
    assert ended[0] <= 301


def test_news_during_a_meeting_is_brought_by_another_one() -> None:
    members = Members(VirtualClock(), silent=0, answering=1)
    news: Any = None

    async def meeting(_address: str) -> None:
        await asyncio.sleep(5)

    async def main() -> None:
        members.meeting = meeting
        running = rounds_of(members, sync_seconds=3600)
        task = asyncio.create_task(running.run())
        await asyncio.sleep(2)
        running.notice(news)
        await asyncio.sleep(10)
        assert [round(when) for when, _ in members.met] == [5, 10]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(main(), clock=members.clock)


def test_the_owner_hears_of_everybody_and_waits_for_nobody_too_long() -> None:
    members = Members(VirtualClock(), silent=40, answering=2)
    slow = members.answering[0]

    async def meeting(address: str) -> None:
        if address == slow:
            await asyncio.sleep(10**6)

    members.meeting = meeting

    async def main() -> dict[str, Any]:
        made = rounds_of(members)
        hosted: Any = members
        try:
            outcomes: dict[str, Any] = await made.sync_all(hosted)
            return outcomes
        finally:
            await made.close()

    outcomes = run_virtual(main(), clock=members.clock)
    assert members.clock.monotonic() <= 31
    assert len(outcomes) == 42
    late = [each for each in outcomes.values() if getattr(each, "code", None) is Code.TIMEOUT]
    assert len(late) == 1
    assert [each for each in outcomes.values() if isinstance(each, SyncResult)] == [SyncResult()]


def test_what_breaks_a_meeting_ends_the_rounds() -> None:
    members = Members(VirtualClock(), silent=0, answering=1)

    async def meeting(_address: str) -> None:
        raise RuntimeError("the store is gone")

    members.meeting = meeting

    async def main() -> None:
        with pytest.raises(ExceptionGroup) as failed:
            await rounds_of(members).run()
        assert failed.group_contains(RuntimeError, match="the store is gone")

    run_virtual(main(), clock=members.clock)
