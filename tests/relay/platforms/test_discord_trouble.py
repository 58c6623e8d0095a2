"""Trouble between a bot and Discord: told, outlived where that is possible, and else refused."""

import asyncio

import pytest
from tests.fakes.discord.channels import Channel
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.intents import Intent
from tests.fakes.discord.opcodes import Op
from tests.fakes.discord.people import User
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.discord.world import Permission
from tests.fakes.platform import KeptContext
from tests.relay.platforms.discord_bots import Bot, identifies, opened, resumes

from accord.relay.connector import PlatformState
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import discord


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time between two sessions."""
    monkeypatch.setattr(discord.edge, "_ANEW_SECONDS", 0.01)


async def test_a_revoked_token_is_refused_with_a_remedy(fake: FakeDiscord, bot: Bot) -> None:
    async with bot.listening() as task:
        await bot.is_ready()
        fake.revoke_token()
        with pytest.raises(RelayError) as refused:
            await task
    assert refused.value.code is Code.UNAUTHORIZED
    assert refused.value.mend
    fake.new_token("another")
    with pytest.raises(RelayError) as again:
        await bot.platform.run(KeptContext())
    assert again.value.code is Code.UNAUTHORIZED


async def test_an_intent_that_is_not_enabled_is_refused_with_a_remedy() -> None:
    fake = FakeDiscord(enabled=Intent(0))
    async with fake.serving(), opened(fake) as bot:
        with pytest.raises(RelayError, match="developer portal") as refused:
            await bot.platform.run(bot.context)
        assert refused.value.code is Code.UNAUTHORIZED
    async with fake.serving(), opened(fake, message_content=False) as modest, modest.listening():
        await modest.is_ready()


async def test_a_token_of_another_bot_is_noticed(fake: FakeDiscord) -> None:
    async with opened(fake, application_id="12345") as bot:
        with pytest.raises(RelayError, match=fake.bot.id) as refused:
            await bot.platform.run(bot.context)
    assert refused.value.code is Code.UNAUTHORIZED


async def test_an_outage_is_told_of_and_outlived(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    async with bot.listening() as task:
        await bot.is_ready()
        fake.outage()
        fake.drop_sockets()
        ada.write(general, "during the outage")
        await bot.context.until(lambda: bot.context.standings[-1][0] is PlatformState.TROUBLED)
        fake.recover()
        await bot.heard("during the outage")
        assert not task.done()
    assert bot.context.standings[-1][0] is PlatformState.READY


async def test_a_missed_message_waits_for_an_api_that_fails(
    fake: FakeDiscord, ada: User, general: Channel
) -> None:
    context = KeptContext()
    thread = general.thread("plans", ada)
    async with opened(fake, context) as first, first.listening():
        await first.is_ready()
        ada.write(general, "one")
        await first.heard("one")
    ada.write(thread, "two")
    fake.drop_requests(3)  # one question and its repeats
    async with opened(fake, context) as second, second.listening():
        await second.heard("one", "two")
    assert context.taken[1].event.source.parent_chat_id == general.id
    assert PlatformState.TROUBLED in [state for state, _ in context.standings]
    assert context.standings[-1][0] is PlatformState.READY


async def test_a_channel_that_was_deleted_keeps_nothing_back(
    fake: FakeDiscord, ada: User, guild: Guild, general: Channel
) -> None:
    context, doomed = KeptContext(), guild.channel("doomed")
    async with opened(fake, context) as first, first.listening():
        await first.is_ready()
    ada.write(doomed, "gone soon")
    doomed.delete()
    ada.write(general, "here")
    async with opened(fake, context) as second, second.listening():
        await second.heard("gone soon", "here")


async def test_changes_of_permissions_are_told(
    fake: FakeDiscord, ada: User, guild: Guild, general: Channel
) -> None:
    async with opened(fake, member_events=True) as bot, bot.listening():
        await bot.is_ready()
        context = bot.context
        await context.until(lambda: guild.id in context.stale)
        role = guild.role("crew")
        for change in (
            lambda: role.change(Permission.VIEW_CHANNEL),
            lambda: general.overwrite(role, deny=Permission.VIEW_CHANNEL),
            lambda: guild.change_roles(ada, [role]),
            lambda: general.thread("plans", ada),
            lambda: guild.change_owner(ada),
            lambda: guild.delete_role(role),
        ):
            await asyncio.sleep(0)
            known = len(context.stale)
            change()
            await context.until(lambda known=known: len(context.stale) > known)  # type: ignore[misc]
            assert set(context.stale[known:]) == {guild.id}


async def test_nonsense_from_the_gateway_stops_nothing(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    async with bot.listening():
        await bot.is_ready()
        [heard] = fake.gateway.sessions.values()
        assert heard.socket is not None
        for raw in (b"", b"{", b"[]", b"7", b'{"op": "x"}', b'{"op": 99}', b'\xff{"op": 0}'):
            heard.socket.send(raw)
        for name, data in (
            ("MESSAGE_CREATE", {}),
            ("MESSAGE_CREATE", {"channel_id": "../x", "id": "1"}),
            ("MESSAGE_CREATE", {"channel_id": general.id, "guild_id": 7}),
            ("MESSAGE_CREATE", {"channel_id": general.id, "guild_id": "1", "author": []}),
            ("GUILD_CREATE", {"id": None}),
            ("GUILD_CREATE", {"id": "5", "channels": [None, {}], "threads": 3, "joined_at": 1}),
            ("CHANNEL_UPDATE", {"id": [], "guild_id": "77"}),
            ("CHANNEL_DELETE", {"id": []}),
            ("THREAD_LIST_SYNC", {"guild_id": "5", "threads": [7]}),
            ("NEVER_HEARD_OF", {}),
        ):
            heard.dispatch(name, data)
        ada.write(general, "well")
        await bot.heard("well")
    assert resumes(fake) == 0
    assert "77" in bot.context.stale, "what cannot be read may have changed what people see"


async def test_a_session_that_cannot_be_read_is_begun_again(
    fake: FakeDiscord, bot: Bot, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = {"user": {"id": fake.bot.id}, "session_id": "s", "resume_gateway_url": "x"}
    monkeypatch.setattr(
        fake.gateway, "introduce", lambda began, sharded: began.dispatch("READY", {"guilds": 7})
    )
    with pytest.raises(RelayError, match="cannot be resumed"):
        await bot.platform.run(bot.context)
    monkeypatch.setattr(
        fake.gateway,
        "introduce",
        lambda began, sharded: began.dispatch("READY", {**ready, "guilds": 7}),
    )
    async with bot.listening():
        await bot.is_ready()
        # The address to resume at is none, so that nothing is sent there.
        fake.drop_sockets()
        await fake.until(lambda: identifies(fake) == 3)
    assert resumes(fake) == 0


async def test_a_shard_says_which_one_it_is(fake: FakeDiscord) -> None:
    async with opened(fake, shard=(1, 2)) as bot, bot.listening():
        await bot.is_ready()
    [told] = [data for op, data in fake.gateway.received if op == Op.IDENTIFY]
    assert told["shard"] == [1, 2]
