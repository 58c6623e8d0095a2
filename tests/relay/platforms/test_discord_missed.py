"""What a bot missed: read where it must be, asked for nowhere else, and taken once."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from tests.fakes.discord.channels import Channel
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.opcodes import Op
from tests.fakes.discord.people import User
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.discord.world import Permission
from tests.fakes.platform import KeptContext
from tests.relay.platforms.discord_bots import Bot, opened

from accord.kernel.clock import SystemClock
from accord.relay.connector import InboundEvent
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import discord


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time between two sessions, and every step remembered."""
    monkeypatch.setattr(discord.edge, "_ANEW_SECONDS", 0.01)


def lose(fake: FakeDiscord) -> None:
    fake.expire_sessions()
    fake.drop_sockets()


def questions(fake: FakeDiscord) -> list[str]:
    return [each.path for each in fake.api.asked if each.path.endswith("/messages")]


async def test_a_thread_that_fell_asleep_again_is_read(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    thread = general.thread("plans", ada)
    async with bot.listening():
        await bot.is_ready()
        ada.write(thread, "one")
        await bot.heard("one")
        lose(fake)
        ada.write(thread, "two")
        thread.archive()
        await bot.heard("one", "two")
    assert bot.context.taken[1].event.source.parent_chat_id == general.id


async def test_channels_without_news_and_channels_that_the_bot_cannot_see_are_not_asked_for(
    fake: FakeDiscord, bot: Bot, ada: User, guild: Guild, general: Channel
) -> None:
    quiet, closed = guild.channel("quiet"), guild.channel("closed", private=True)
    closed.overwrite(ada, allow=Permission.VIEW_CHANNEL | Permission.SEND_MESSAGES)
    last = guild.channel("last")
    async with bot.listening():
        await bot.is_ready()
        ada.write(quiet, "one")
        await bot.heard("one")
        lose(fake)
        ada.write(closed, "not for bots")
        ada.write(general, "two")
        ada.write(last, "three")
        await bot.context.until(lambda: len(bot.context.taken) == 3)
        assert sorted(bot.context.texts) == ["one", "three", "two"]
    assert len(questions(fake)) == 2
    assert fake.api.invalid_requests == 0


async def test_messages_from_before_the_bot_was_let_in_are_not_read(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    async with bot.listening():
        await bot.is_ready()
        ada.write(general, "one")
        await bot.heard("one")
        lose(fake)
        other = fake.guild("Elsewhere", bot=False)
        other.join(ada)
        place = other.channel("place")
        ada.write(place, "among ourselves")
        # Ids tell milliseconds, and so does the time of joining.
        await asyncio.sleep(0.01)
        other.join(fake.bot)
        ada.write(place, "welcome")
        await bot.heard("one", "welcome")


async def test_messages_that_are_too_old_are_not_read(
    fake: FakeDiscord, ada: User, general: Channel
) -> None:
    async with opened(fake, backfill_hours=0.0) as bot, bot.listening():
        await bot.is_ready()
        ada.write(general, "one")
        await bot.heard("one")
        lose(fake)
        ada.write(general, "missed")
        await asyncio.sleep(0.01)
        await bot.is_ready(2)
        ada.write(general, "two")
        await bot.heard("one", "two")


@dataclass(slots=True)
class Recording(KeptContext):
    """A connector that keeps every state that it was asked to remember."""

    states: list[dict[str, str]] = field(default_factory=list)

    async def remember(self, state: Mapping[str, str]) -> None:
        await KeptContext.remember(self, state)
        self.states.append(dict(state))


@pytest.mark.parametrize("expired", [False, True], ids=["resumed", "begun anew"])
async def test_whatever_was_remembered_last_nothing_is_lost_or_doubled(
    fake: FakeDiscord, ada: User, guild: Guild, general: Channel, expired: bool
) -> None:
    context, other = Recording(), guild.channel("other")
    async with opened(fake, context) as bot, bot.listening():
        await bot.is_ready()
        for number in range(4):
            ada.write(general if number % 2 else other, str(number))
            known = len(context.states)
            await context.until(lambda known=known: len(context.states) > known)  # type: ignore[misc]
    ada.write(general, "while nobody listened")
    assert len(context.states) >= 5
    for state in context.states:
        if expired:
            fake.expire_sessions()
        # What was taken is on disk; what was remembered may be older than that.
        after = KeptContext(taken=list(context.taken), remembered=dict(state))
        async with opened(fake, after) as again, again.listening():
            await after.until(lambda after=after: len(after.taken) == 5)  # type: ignore[misc]
            assert sorted(after.texts) == ["0", "1", "2", "3", "while nobody listened"]


@dataclass(slots=True)
class Slow(KeptContext):
    """A connector that takes nothing before events of so many chats wait at the same time."""

    wanted: int = 1
    most: int = 0
    under_way: Counter[str] = field(default_factory=Counter)
    enough: asyncio.Event = field(default_factory=asyncio.Event)

    async def ingest(self, inbound: InboundEvent) -> bool:
        chat = inbound.event.source.chat_id
        self.under_way[chat] += 1
        assert self.under_way[chat] == 1, "two messages of one chat at the same time"
        waiting = sum(self.under_way.values())
        self.most = max(self.most, waiting)
        if waiting >= self.wanted:
            self.enough.set()
        await self.enough.wait()
        try:
            return await KeptContext.ingest(self, inbound)
        finally:
            self.under_way[chat] -= 1


async def test_missed_channels_are_read_at_the_same_time_and_each_in_order(
    fake: FakeDiscord, ada: User, guild: Guild, general: Channel
) -> None:
    channels = [general, *(guild.channel(f"more-{number}") for number in range(5))]
    first = KeptContext()
    async with opened(fake, first) as bot, bot.listening():
        await bot.is_ready()
    fake.expire_sessions()
    for number in range(5):
        for channel in channels:
            ada.write(channel, f"{channel.id} {number}")
    context = Slow(remembered=dict(first.remembered), wanted=3)
    async with (
        asyncio.timeout(20),
        opened(fake, context, catch_up_channels=3, catch_up_page=2) as bot,
        bot.listening(),
    ):
        await context.until(lambda: len(context.taken) == 30)
    assert context.most == 3
    for channel in channels:
        texts = [each for each in context.texts if each.startswith(channel.id)]
        assert texts == [f"{channel.id} {number}" for number in range(5)]


async def test_one_channel_that_cannot_be_stored_ends_the_reading_and_all_is_read_again(
    fake: FakeDiscord, ada: User, guild: Guild, general: Channel
) -> None:
    other = guild.channel("other")
    context = KeptContext()
    async with opened(fake, context) as bot, bot.listening():
        await bot.is_ready()
    fake.expire_sessions()
    ada.write(general, "one")
    ada.write(other, "two")
    context.refuse(Code.CONFLICT)
    async with opened(fake, context) as bot, bot.listening() as task:
        with pytest.raises(RelayError, match="the test says no"):
            await task
    context.refusing = None
    async with opened(fake, context) as bot, bot.listening():
        await context.until(lambda: sorted(context.texts) == ["one", "two"])
    assert context.repeated == []


async def test_a_session_is_known_before_its_first_message(
    fake: FakeDiscord, ada: User, general: Channel
) -> None:
    context = KeptContext()
    async with opened(fake, context) as bot, bot.listening():
        await context.until(lambda: bool(context.remembered))
        assert context.taken == []
        state = dict(context.remembered)
        ada.write(general, "one")
        await bot.heard("one")
    # It dies now, and the first message with it; Discord forgets the session, too.
    fake.expire_sessions()
    async with opened(fake, KeptContext(remembered=state)) as again, again.listening():
        await again.heard("one")


async def test_a_new_session_is_remembered_at_once(
    fake: FakeDiscord,
) -> None:
    async with opened(fake, checkpoint_seconds=60.0) as bot, bot.listening():
        await bot.context.until(lambda: bool(bot.context.remembered))
        first = bot.context.remembered["session"]
        lose(fake)
        await bot.context.until(lambda: bot.context.remembered["session"] != first)
        assert any(name in bot.context.remembered["session"] for name in fake.gateway.sessions)


async def test_a_gateway_that_stays_silent_after_the_greeting_is_left(
    fake: FakeDiscord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fake.gateway, "introduce", lambda session, sharded: None)
    async with opened(fake, greeting_seconds=0.05) as bot, bot.listening():
        await fake.until(
            lambda: sum(op == Op.IDENTIFY for op, _ in fake.gateway.received) >= 2, within=10
        )


async def test_more_than_can_be_held_is_dealt_with_piece_by_piece(
    fake: FakeDiscord, ada: User, general: Channel
) -> None:
    texts = [f"{number} {'x' * 1000}" for number in range(100)]
    async with opened(fake, payload_bytes=64 * 1024) as bot, bot.listening():
        await bot.is_ready()
        for text in texts:
            ada.write(general, text)
        await bot.heard(*texts)
    assert any(op == Op.RESUME for op, _ in fake.gateway.received)


def test_of_a_guild_that_cannot_be_read_nothing_counts_as_hidden(
    guild: Guild, fake: FakeDiscord
) -> None:
    secret = guild.channel("secret", private=True)
    described = guild.event_json()
    now = SystemClock().now()
    assert discord.hidden_channels(described, fake.bot.id, now) == {secret.id}
    for name in ("members", "channels", "roles", "owner_id"):
        assert discord.hidden_channels({**described, name: None}, fake.bot.id, now) == frozenset()
    assert discord.hidden_channels(described, "5", now) == frozenset()
    assert discord.hidden_channels(
        {**described, "members": [{"user": {"id": fake.bot.id}}]}, fake.bot.id, now
    ) == (frozenset())
