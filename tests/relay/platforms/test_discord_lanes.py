"""Chats of one Discord shard are handled at the same time, and nothing is passed over."""

import asyncio
from typing import Any

import pytest
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.platform import KeptContext
from tests.relay.platforms.discord_bots import identifies, opened, resumes

from accord.relay.connector import InboundEvent
from accord.relay.connector.store import KeyedLock
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


def of_guild(seq: int, guild: str, channel: str) -> Dispatch:
    data = {"guild_id": guild, "channel_id": channel, "id": str(1000 + seq)}
    return Dispatch("MESSAGE_CREATE", seq, data)


def whole(seq: int, guild: str) -> Dispatch:
    return Dispatch("GUILD_CREATE", seq, {"id": guild})


async def test_a_whole_guild_comes_after_what_was_before_it_there_and_before_what_follows() -> None:
    handler, passed = Handler(), list[int]()
    async with asyncio.TaskGroup() as group:
        lanes = DispatchLanes(handler, group, lambda each: passed.append(each.seq))  # type: ignore[arg-type]
        for each in (of_guild(1, "7", "11"), whole(2, "7"), of_guild(3, "7", "22"), whole(4, "7")):
            await lanes.take(each)
        await turns()
        for seq in (1, 2, 3, 4):
            assert handler.begun == list(range(1, seq + 1))
            handler.finish(seq)
            await turns()
    assert passed == [1, 2, 3, 4]


async def test_other_guilds_do_not_wait_for_a_guild_that_is_read() -> None:
    handler, passed = Handler(catch_up_guilds=2), list[int]()
    async with asyncio.TaskGroup() as group:
        lanes = DispatchLanes(handler, group, lambda each: passed.append(each.seq))  # type: ignore[arg-type]
        for each in (whole(1, "7"), whole(2, "8"), whole(3, "9"), of_guild(4, "8", "11")):
            await lanes.take(each)
        await lanes.take(of_guild(5, "10", "22"))
        await lanes.take(message(6, "33"))
        await turns()
        # No more guilds at once than the setting says; other chats are not held up.
        assert handler.begun == [1, 2, 5, 6]
        handler.finish(2, 5, 6)
        await turns()
        assert (handler.begun, passed) == ([1, 2, 5, 6, 4, 3], [])
        handler.finish(1, 3, 4)
        await turns()
    assert passed == [1, 2, 3, 4, 5, 6]


async def test_a_channel_that_is_deleted_holds_up_its_own_guild_alone() -> None:
    handler, passed = Handler(), list[int]()
    async with asyncio.TaskGroup() as group:
        lanes = DispatchLanes(handler, group, lambda each: passed.append(each.seq))  # type: ignore[arg-type]
        await lanes.take(of_guild(1, "7", "11"))
        await lanes.take(Dispatch("CHANNEL_DELETE", 2, {"id": "11", "guild_id": "7"}))
        await lanes.take(of_guild(3, "8", "22"))
        await turns()
        assert handler.begun == [1, 3]
        handler.finish(1, 2, 3)
    assert passed == [1, 2, 3]


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
