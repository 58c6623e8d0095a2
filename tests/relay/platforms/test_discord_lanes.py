"""Chats of one Discord shard are handled at the same time, and nothing is passed over."""

import asyncio
from typing import Any

import pytest
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.platform import KeptContext
from tests.relay.platforms.discord_bots import identifies, opened, resumes

from accord.relay.connector import InboundEvent
from accord.relay.connector.limits import KeyedLock
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.discord.edge import DispatchLanes
from accord.relay.platforms.discord.gateway import Dispatch
from accord.relay.platforms.settings import DiscordSettings


class Handler:
    """Handles a dispatch when a test says so."""

    def __init__(self, **limits: Any) -> None:
        self.begun: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.failing: set[int] = set()
        self.settings = DiscordSettings(application_id="1", **limits)

    async def take(self, dispatch: Dispatch) -> None:
        self.begun.append(dispatch.seq)
        await self.gates.setdefault(dispatch.seq, asyncio.Event()).wait()
        if dispatch.seq in self.failing:
            raise RelayError(Code.CONFLICT, "the lease is lost")

    def finish(self, *seqs: int) -> None:
        for seq in seqs:
            self.gates.setdefault(seq, asyncio.Event()).set()


def message(seq: int, channel: str) -> Dispatch:
    return Dispatch("MESSAGE_CREATE", seq, {"channel_id": channel, "id": str(1000 + seq)})


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_only_what_is_handled_without_a_gap_is_passed() -> None:
    handler, passed = Handler(), list[int]()
    async with asyncio.TaskGroup() as group:
        lanes = DispatchLanes(handler, group, lambda each: passed.append(each.seq))  # type: ignore[arg-type]
        for seq, channel in ((1, "11"), (2, "22"), (3, "11"), (4, "33")):
            await lanes.take(message(seq, channel))
        await turns()
        # The second message of the first chat waits for the first one.
        assert handler.begun == [1, 2, 4]
        handler.finish(2, 4)
        await turns()
        assert passed == []
        handler.finish(1)
        await turns()
        assert (passed, handler.begun) == ([1, 2], [1, 2, 4, 3])
        handler.finish(3)
        await turns()
        assert passed == [1, 2, 3, 4]
        assert not lanes.is_busy


async def test_a_whole_guild_comes_after_everything_before_it() -> None:
    handler, passed = Handler(), list[int]()
    handler.finish(2)
    async with asyncio.TaskGroup() as group:
        lanes = DispatchLanes(handler, group, lambda each: passed.append(each.seq))  # type: ignore[arg-type]
        await lanes.take(message(1, "11"))
        waiting = asyncio.create_task(lanes.take(Dispatch("GUILD_CREATE", 2, {"id": "7"})))
        await turns()
        assert handler.begun == [1]
        handler.finish(1)
        await waiting
        assert passed == [1, 2]


async def test_one_that_fails_ends_the_group_and_is_not_passed() -> None:
    handler, passed = Handler(), list[int]()
    handler.failing.add(1)

    async def follow() -> None:
        async with asyncio.TaskGroup() as group:
            lanes = DispatchLanes(handler, group, lambda each: passed.append(each.seq))  # type: ignore[arg-type]
            await lanes.take(message(1, "11"))
            await lanes.take(message(2, "22"))
            handler.finish(2)
            await turns()
            handler.finish(1)
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup):
        await follow()
    assert passed == []


async def test_no_more_than_so_many_are_under_way() -> None:
    handler, passed = Handler(dispatches=2), list[int]()
    async with asyncio.TaskGroup() as group:
        lanes = DispatchLanes(handler, group, lambda each: passed.append(each.seq))  # type: ignore[arg-type]
        await lanes.take(message(1, "11"))
        await lanes.take(message(2, "22"))
        third = asyncio.create_task(lanes.take(message(3, "33")))
        await turns()
        assert not third.done()
        handler.finish(1, 2, 3)
        await third
    assert passed == [1, 2, 3]


async def test_a_turn_that_is_entered_after_the_one_before_it_ended_does_not_hang() -> None:
    locks = KeyedLock()
    first = locks.turn("a")
    async with first:
        second = locks.turn("a")
    async with asyncio.timeout(20), second:
        pass


class SlowContext(KeptContext):
    """Keeps the events of one chat from being stored."""

    stuck: str = ""

    async def ingest(self, inbound: InboundEvent) -> bool:
        if inbound.event.source.chat_id == self.stuck:
            await asyncio.Event().wait()
        return await super().ingest(inbound)


async def test_after_a_stop_the_session_goes_on_at_what_was_not_stored() -> None:
    fake = FakeDiscord()
    async with fake.serving():
        guild, ada = fake.guild("Harbour"), fake.user("ada")
        guild.join(ada)
        slow, quick = guild.channel("slow"), guild.channel("quick")
        context: Any = SlowContext()
        context.stuck = slow.id
        async with opened(fake, context) as bot:
            async with bot.listening():
                await bot.is_ready()
                ada.write(slow, "first")
                ada.write(quick, "second")
                ada.write(quick, "third")
                # The other chat does not wait for the first one.
                await bot.heard("second", "third")
            context.stuck = ""
            async with bot.listening():
                await context.until(lambda: len(context.taken) == 3)
        assert context.texts == ["second", "third", "first"]
        assert (resumes(fake), identifies(fake)) == (1, 1)
