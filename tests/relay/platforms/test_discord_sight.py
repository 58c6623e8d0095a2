"""What people see and may manage on Discord, as the connector asks it."""

from collections.abc import AsyncIterator

import pytest
from tests.fakes.discord.channels import Channel, Overwrite
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.people import User
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.discord.world import Permission
from tests.relay.platforms.discord_bots import Bot


@pytest.fixture
async def fake() -> AsyncIterator[FakeDiscord]:
    made = FakeDiscord()
    async with made.serving():
        yield made


@pytest.fixture
def guild(fake: FakeDiscord) -> Guild:
    made = fake.guild("Harbour")
    # A bot that may see everything, so that what it is told does not depend on itself.
    made.change_roles(fake.bot, [made.role("bots", Permission.ADMINISTRATOR)])
    return made


async def test_members_see_a_public_channel_and_others_do_not(
    fake: FakeDiscord, bot: Bot, guild: Guild, ada: User, general: Channel
) -> None:
    stranger = fake.user("stranger")
    assert await bot.platform.can_view(ada.id, guild.id, general.id) is True
    assert await bot.platform.can_view(stranger.id, guild.id, general.id) is False
    assert await bot.platform.can_manage(ada.id, guild.id, general.id) is False
    assert await bot.platform.can_manage(guild.owner_id, guild.id, general.id) is True


async def test_a_private_channel_is_for_those_whom_it_lets_in(
    bot: Bot, guild: Guild, ada: User
) -> None:
    crew = guild.role("crew")
    secret = guild.channel(
        "secret", private=True, overwrites=[Overwrite(crew.id, allow=Permission.VIEW_CHANNEL)]
    )
    assert await bot.platform.can_view(ada.id, guild.id, secret.id) is False
    guild.change_roles(ada, [crew])
    assert await bot.platform.can_view(ada.id, guild.id, secret.id) is True


async def test_a_role_that_was_taken_away_counts_no_more_at_the_next_question(
    bot: Bot, guild: Guild, ada: User, general: Channel
) -> None:
    boss = guild.role("boss", Permission.MANAGE_CHANNELS)
    guild.change_roles(ada, [boss])
    assert await bot.platform.can_manage(ada.id, guild.id, general.id) is True
    guild.change_roles(ada, [])
    assert await bot.platform.can_manage(ada.id, guild.id, general.id) is False


async def test_a_change_of_a_channel_counts_as_soon_as_it_was_told(
    bot: Bot, guild: Guild, ada: User, general: Channel
) -> None:
    async with bot.listening():
        await bot.is_ready()
        await bot.context.until(lambda: guild.id in bot.context.stale)
        assert await bot.platform.can_view(ada.id, guild.id, general.id) is True
        known = len(bot.context.stale)
        general.overwrite(guild.everyone, deny=Permission.VIEW_CHANNEL)
        await bot.context.until(lambda: len(bot.context.stale) > known)
        assert await bot.platform.can_view(ada.id, guild.id, general.id) is False


async def test_threads_are_seen_as_their_channel_and_private_ones_by_those_in_them(
    fake: FakeDiscord, bot: Bot, guild: Guild, ada: User, general: Channel
) -> None:
    bob = fake.user("bob")
    guild.join(bob)
    public = general.thread("public", bob)
    private = general.thread("private", bob, private=True)
    assert await bot.platform.can_view(ada.id, guild.id, public.id) is True
    assert await bot.platform.can_view(ada.id, guild.id, private.id) is False
    assert await bot.platform.can_view(bob.id, guild.id, private.id) is True
    private.add_to_thread(ada)
    assert await bot.platform.can_view(ada.id, guild.id, private.id) is True


async def test_a_time_out_takes_the_right_to_manage_and_leaves_the_sight(
    bot: Bot, guild: Guild, ada: User, general: Channel
) -> None:
    guild.change_roles(ada, [guild.role("boss", Permission.MANAGE_CHANNELS)])
    guild.time_out(ada, 60)
    assert await bot.platform.can_view(ada.id, guild.id, general.id) is True
    assert await bot.platform.can_manage(ada.id, guild.id, general.id) is False


async def test_a_direct_chat_is_seen_by_who_is_in_it_and_managed_by_nobody(
    fake: FakeDiscord, bot: Bot, guild: Guild, ada: User
) -> None:
    direct = fake.dm(ada)
    assert await bot.platform.can_view(ada.id, None, direct.id) is True
    assert await bot.platform.can_view(guild.owner_id, None, direct.id) is False
    assert await bot.platform.can_view(ada.id, guild.id, direct.id) is False
    assert await bot.platform.can_manage(ada.id, None, direct.id) is False


async def test_a_channel_is_seen_in_its_own_guild_only(
    fake: FakeDiscord, bot: Bot, guild: Guild, ada: User, general: Channel
) -> None:
    other = fake.guild("Elsewhere")
    other.join(ada)
    assert await bot.platform.can_view(ada.id, other.id, general.id) is False
    assert await bot.platform.can_view(ada.id, None, general.id) is False


async def test_a_deleted_channel_is_seen_by_nobody(
    bot: Bot, guild: Guild, ada: User, general: Channel
) -> None:
    general.delete()
    assert await bot.platform.can_view(ada.id, guild.id, general.id) is False


@pytest.mark.parametrize("name", ["", "x", "1/2", "@me", "9" * 30])
async def test_ids_that_are_none_are_a_no_and_ask_nothing(
    fake: FakeDiscord, bot: Bot, name: str
) -> None:
    assert await bot.platform.can_view(name, "1", "2") is False
    assert await bot.platform.can_view("1", "1", name) is False
    assert fake.api.asked == []


async def test_what_cannot_be_found_out_is_not_guessed(
    fake: FakeDiscord, bot: Bot, guild: Guild, ada: User, general: Channel
) -> None:
    fake.outage()
    assert await bot.platform.can_view(ada.id, guild.id, general.id) is None
    fake.recover()
    guild.change_roles(fake.bot, [])
    hidden = guild.channel("hidden", private=True)
    assert await bot.platform.can_view(ada.id, guild.id, hidden.id) is None
    fake.revoke_token()
    assert await bot.platform.can_view(ada.id, guild.id, general.id) is None
