"""Interactions with Discord itself: how they come in, how they are promised and answered."""

import logging
import traceback
from functools import partial

import pytest
from pydantic import SecretStr
from tests.fakes.discord.channels import Channel
from tests.fakes.discord.interactions import CallbackType
from tests.fakes.discord.people import User
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.platform import KeptContext
from tests.relay.platforms.discord_bots import Bot, opened, served

from accord.relay.connector import InboundKind
from accord.relay.rules import FollowUp
from accord.storage import StoreError


async def test_discord_accepts_the_endpoint_and_its_answers(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    async with served(bot) as endpoint:
        assert (await fake.ping(endpoint)).kind is CallbackType.PONG
        answered = await fake.interact(ada, general, "ask", {"what": "time?"}, endpoint=endpoint)
    assert answered.kind is CallbackType.DEFERRED_CHANNEL_MESSAGE_WITH_SOURCE
    assert bot.context.texts == ["ask time?"]


async def test_the_first_follow_up_fills_in_the_promised_answer_and_others_come_after(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    async with served(bot) as endpoint:
        answered = await fake.interact(ada, general, "ask", endpoint=endpoint)
    [found] = bot.context.taken[0].found
    interaction = answered.interaction
    assert interaction is not None

    async def follow(platform_of: Bot, text: str) -> None:
        action = FollowUp("session", found.kind, text)
        result = await platform_of.platform.perform(action, text, found.value)
        assert result.success
        assert result.message_id == interaction.answers[-1].id

    await follow(bot, "one")
    await follow(bot, "two")
    # Another process knows nothing of the first ones.
    async with opened(fake) as other:
        await follow(other, "three")
    assert interaction.texts == ["one", "two", "three"]
    methods = [each.method for each in fake.api.asked]
    assert methods == ["GET", "PATCH", "POST", "GET", "POST"]


async def test_a_promised_answer_that_is_filled_in_again_is_not_doubled(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    async with served(bot) as endpoint:
        answered = await fake.interact(ada, general, "ask", endpoint=endpoint)
    [found] = bot.context.taken[0].found
    action = FollowUp("session", found.kind, "one")
    first = await bot.platform.perform(action, "k", found.value)
    async with opened(fake) as restarted:
        again = await restarted.platform.perform(action, "k", found.value)
    assert first == again
    assert answered.interaction is not None
    assert answered.interaction.texts == ["one"]


async def test_a_bot_without_a_public_key_has_no_endpoint(fake: FakeDiscord) -> None:
    async with opened(fake, public_key="") as bot:
        assert list(bot.platform.routes) == []


async def test_no_error_shows_the_token_of_an_interaction(fake: FakeDiscord, bot: Bot) -> None:
    token = SecretStr("very-secret-token")
    action = FollowUp("session", "discord.interaction_token", "one")
    for trouble in (fake.outage, partial(fake.drop_requests, 3)):
        trouble()
        result = await bot.platform.perform(action, "k", token)
        assert not result.success
        assert "very-secret" not in (result.error or "")
        fake.recover()


async def test_a_follow_up_that_was_not_answered_has_an_unknown_outcome_and_shows_no_token(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    async with served(bot) as endpoint:
        await fake.interact(ada, general, "ask", endpoint=endpoint)
    [found] = bot.context.taken[0].found
    first, second = (FollowUp("session", found.kind, text) for text in ("one", "two"))
    assert (await bot.platform.perform(first, "k1", found.value)).success
    fake.lose_answers(1)
    with pytest.raises(TimeoutError) as unknown:
        await bot.platform.perform(second, "k2", found.value)
    shown = "".join(traceback.format_exception(unknown.value))
    assert found.value.get_secret_value() not in shown


async def test_a_bot_without_an_endpoint_is_told_of_commands_by_the_gateway(
    fake: FakeDiscord, ada: User, general: Channel
) -> None:
    async with opened(fake, public_key="") as bot, bot.listening():
        await bot.is_ready()
        asked = fake.interact_by_gateway(ada, general, "ask", {"what": "time?"})
        await fake.until(lambda: asked.original is not None)
        ada.write(general, "and more")
        await bot.heard("ask time?", "and more")
        taken = bot.context.taken[0]
        assert taken.kind is InboundKind.PASSTHROUGH
        assert "token" not in (taken.forward.body.decode() if taken.forward else "token")
        [found] = taken.found
        action = FollowUp("session", found.kind, "noon")
        assert (await bot.platform.perform(action, "k", found.value)).success
        assert asked.texts == ["noon"]


async def test_a_command_that_cannot_be_promised_an_answer_stays_taken(
    fake: FakeDiscord, ada: User, general: Channel
) -> None:
    async with opened(fake, public_key="") as bot, bot.listening():
        await bot.is_ready()
        fake.drop_requests(1)
        fake.interact_by_gateway(ada, general, "ask")
        [heard] = fake.gateway.sessions.values()
        heard.dispatch("INTERACTION_CREATE", {"id": "1", "type": 2, "token": "../x"})
        ada.write(general, "and more")
        await bot.heard("ask", "and more")


async def test_a_command_by_the_gateway_that_could_not_be_stored_comes_again(
    fake: FakeDiscord, ada: User, general: Channel
) -> None:
    context = KeptContext(refusing=StoreError("the disk is full"))
    async with opened(fake, context, public_key="") as bot:
        async with bot.listening() as task:
            await bot.is_ready()
            fake.interact_by_gateway(ada, general, "ask")
            with pytest.raises(StoreError):
                await task
        context.refusing = None
        async with bot.listening():
            await bot.heard("ask")


async def test_no_log_shows_a_token(
    fake: FakeDiscord,
    bot: Bot,
    ada: User,
    general: Channel,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    async with bot.listening(), served(bot) as endpoint:
        await bot.is_ready()
        await fake.interact(ada, general, "ask", endpoint=endpoint)
        [found] = bot.context.taken[0].found
        action = FollowUp("session", found.kind, "one")
        assert (await bot.platform.perform(action, "k", found.value)).success
        assert (await bot.platform.perform(action, "k", found.value)).success
    written = caplog.text + capsys.readouterr().out
    assert "/webhooks/" in written
    assert found.value.get_secret_value() not in written
    assert fake.token not in written
