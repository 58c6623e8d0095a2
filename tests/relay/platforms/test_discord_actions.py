"""What agents do on Discord, and what they are told when it does not work."""

import pytest
from pydantic import SecretStr
from tests.fakes.discord.channels import Channel
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.people import User
from tests.fakes.discord.rest.api import Rate, RateTerms
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.discord.world import Permission
from tests.relay.platforms.discord_bots import Bot, opened

from accord.relay.connector import Platform
from accord.relay.gateway import is_rate_limited
from accord.relay.platforms import discord
from accord.relay.rules import Action, Edit, FollowUp, GetChatInfo, Send, Typing


async def test_it_is_a_platform_whose_id_is_known_without_asking(
    fake: FakeDiscord, bot: Bot
) -> None:
    platform: Platform = bot.platform
    assert (platform.name, platform.bot_id, platform.idempotent) == ("discord", fake.bot.id, True)
    assert platform.descriptor() is discord.DESCRIPTOR
    assert fake.api.asked == []


async def test_an_agent_says_something_once_under_one_key(
    fake: FakeDiscord, bot: Bot, general: Channel
) -> None:
    first = await bot.platform.perform(Send(general.id, "hello"), "k1")
    again = await bot.platform.perform(Send(general.id, "hello"), "k1")
    other = await bot.platform.perform(Send(general.id, "hello"), "k2")
    assert first.success
    assert first == again != other
    assert fake.said(general) == ["hello", "hello"]


async def test_an_answer_that_was_lost_does_not_double_the_message(
    fake: FakeDiscord, bot: Bot, general: Channel
) -> None:
    fake.lose_answers(1)
    assert (await bot.platform.perform(Send(general.id, "hello"), "k1")).success
    assert fake.said(general) == ["hello"]


async def test_a_reply_names_what_it_answers_and_wakes_nobody(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    asked = ada.write(general, "hello?")
    text = f"hello {ada.mention} @everyone"
    assert (await bot.platform.perform(Send(general.id, text, asked.id), "k")).success
    [said] = fake.messages(general)
    assert said.draft.reply_to is asked
    assert said.draft.allowed.users == frozenset()
    assert not said.draft.allowed.everyone
    assert not said.draft.allowed.all_users
    assert not said.draft.allowed.replied_user


async def test_a_reply_to_what_is_gone_is_said_all_the_same(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    asked = ada.write(general, "hello?")
    ada.delete(asked)
    assert (await bot.platform.perform(Send(general.id, "hello", asked.id), "k1")).success
    assert (await bot.platform.perform(Send(general.id, "again", "no id"), "k2")).success
    assert fake.said(general) == ["hello", "again"]


async def test_an_agent_changes_what_it_said_and_only_that(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    said = await bot.platform.perform(Send(general.id, "helo"), "k1")
    assert said.message_id is not None
    edited = await bot.platform.perform(Edit(general.id, said.message_id, "hello"), "k2")
    assert edited.success
    assert edited.message_id == said.message_id
    assert fake.said(general) == ["hello"]
    other = ada.write(general, "mine")
    refused = await bot.platform.perform(Edit(general.id, other.id, "not mine"), "k3")
    assert not refused.success
    assert "another user" in (refused.error or "")


async def test_an_agent_is_seen_typing(fake: FakeDiscord, bot: Bot, general: Channel) -> None:
    assert (await bot.platform.perform(Typing(general.id), "k")).success
    assert fake.typed(general) == 1


async def test_an_agent_asks_what_a_chat_is(
    fake: FakeDiscord, bot: Bot, ada: User, guild: Guild, general: Channel
) -> None:
    thread, direct = general.thread("plans", ada), fake.dm(ada)
    infos = [
        (await bot.platform.perform(GetChatInfo(place.id), "k")).chat_info
        for place in (general, thread, direct)
    ]
    assert infos == [
        {"name": "general", "type": "group", "scope_id": guild.id},
        {"name": "plans", "type": "thread", "scope_id": guild.id, "parent_chat_id": general.id},
        {"name": "ada", "type": "dm"},
    ]


@pytest.mark.parametrize("chat_id", ["", "x", "1/../../users/@me", "1?a=b", "9" * 21, "12345"])
async def test_a_chat_that_is_not_there_is_a_failure_with_a_sentence(
    fake: FakeDiscord, bot: Bot, chat_id: str
) -> None:
    actions: list[Action] = [
        Send(chat_id, "hello"),
        Edit(chat_id, "1", "hello"),
        Edit("1", chat_id, "hello"),
        Typing(chat_id),
        GetChatInfo(chat_id),
    ]
    for action in actions:
        result = await bot.platform.perform(action, "k")
        assert not result.success
        assert result.error
    assert all(each.path.startswith("/channels/") for each in fake.api.asked)


async def test_a_deleted_channel_and_missing_permissions_are_told(
    bot: Bot, guild: Guild, general: Channel
) -> None:
    general.overwrite(guild.everyone, deny=Permission.SEND_MESSAGES)
    refused = await bot.platform.perform(Send(general.id, "hello"), "k1")
    assert refused.error == "Discord refused it: Missing Permissions"
    general.delete()
    gone = await bot.platform.perform(Send(general.id, "hello"), "k2")
    assert gone.error == "Discord refused it: Unknown Channel"


async def test_a_service_that_fails_is_a_failure_without_the_token(
    fake: FakeDiscord, bot: Bot, general: Channel
) -> None:
    fake.outage()
    result = await bot.platform.perform(Send(general.id, "hello"), "k")
    assert result.error == "Discord fails: it answered 500"
    fake.recover()
    fake.revoke_token()
    result = await bot.platform.perform(Send(general.id, "hello"), "k")
    assert "refuses the bot's token" in (result.error or "")


async def test_what_was_sent_and_not_answered_has_an_unknown_outcome(
    fake: FakeDiscord, bot: Bot, general: Channel
) -> None:
    fake.lose_answers(2)
    with pytest.raises(TimeoutError):
        await bot.platform.perform(Send(general.id, "hello"), "k")
    # Asking again under the same key tells what became of it.
    assert (await bot.platform.perform(Send(general.id, "hello"), "k")).success
    assert fake.said(general) == ["hello"]


async def test_a_service_that_cannot_be_reached_has_done_nothing(
    fake: FakeDiscord, general: Channel
) -> None:
    async with opened(fake, api_url="http://127.0.0.1:9/api/v10") as bot:
        result = await bot.platform.perform(Send(general.id, "hello"), "k")
    assert result.error == "Discord cannot be reached (ConnectError)"


async def test_a_text_that_is_no_unicode_is_a_failure(
    fake: FakeDiscord, bot: Bot, general: Channel
) -> None:
    result = await bot.platform.perform(Send(general.id, "half a pair: \ud83d"), "k")
    assert not result.success
    assert fake.said(general) == []


async def test_a_short_rate_limit_is_waited_for() -> None:
    fake = FakeDiscord(rates=RateTerms(messages=Rate(2, 0.3)))
    async with fake.serving(), opened(fake) as bot:
        general = fake.guild("Harbour").channel("general")
        results = [
            await bot.platform.perform(Send(general.id, str(number)), f"k{number}")
            for number in range(5)
        ]
        assert all(each.success for each in results)
        assert fake.said(general) == ["0", "1", "2", "3", "4"]
        # What the headers said was enough: nothing was turned away.
        assert fake.api.invalid_requests == 0


async def test_a_refusal_that_no_header_foretold_is_waited_for() -> None:
    fake = FakeDiscord(rates=RateTerms(messages=Rate(50, 0.1), everything=Rate(3, 0.3)))
    async with fake.serving(), opened(fake) as bot:
        general = fake.guild("Harbour").channel("general")
        for number in range(5):
            assert (await bot.platform.perform(Send(general.id, str(number)), f"k{number}")).success
        assert fake.api.invalid_requests == 1


async def test_a_long_rate_limit_is_a_failure_at_once() -> None:
    fake = FakeDiscord(rates=RateTerms(messages=Rate(1, 60.0)))
    async with fake.serving(), opened(fake) as bot:
        general, other = (fake.guild("Harbour").channel(name) for name in ("general", "other"))
        assert (await bot.platform.perform(Send(general.id, "one"), "k1")).success
        refused = await bot.platform.perform(Send(general.id, "two"), "k2")
        assert not refused.success
        assert refused.error == "Discord is asked too often; retry after 60 seconds"
        assert is_rate_limited(refused), "a gateway would not wait and say it again"
        assert refused.retry_after == pytest.approx(60, abs=1)
        assert (await bot.platform.perform(Send(other.id, "three"), "k3")).success


@pytest.mark.parametrize(
    ("kind", "capability"),
    [
        ("discord.interaction_token", None),
        ("discord.interaction_token", SecretStr("../../channels/1")),
        ("discord.other", SecretStr("abc")),
    ],
)
async def test_a_follow_up_needs_a_token_of_an_interaction(
    fake: FakeDiscord, bot: Bot, kind: str, capability: SecretStr | None
) -> None:
    result = await bot.platform.perform(FollowUp("s", kind, "hello"), "k", capability)
    assert not result.success
    assert fake.api.asked == []


async def test_a_follow_up_with_a_token_that_has_expired_is_a_failure(
    fake: FakeDiscord, bot: Bot
) -> None:
    action = FollowUp("s", "discord.interaction_token", "hello")
    result = await bot.platform.perform(action, "k", SecretStr("expired"))
    assert result.error == "Discord refused it: Invalid Webhook Token"
