"""A bot that listens to Discord: nothing is lost and nothing doubled, whatever the gateway does."""

import pytest
from tests.fakes.discord.channels import Channel
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.intents import Intent
from tests.fakes.discord.messages import Attachment
from tests.fakes.discord.opcodes import GatewayTerms, Op
from tests.fakes.discord.people import User
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.platform import KeptContext
from tests.relay.platforms.discord_bots import Bot, identifies, opened, resumes

from accord.relay.connector import PlatformState
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import discord
from accord.relay.platforms.discord.rules import protocol
from accord.storage import StoreError


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No time between two sessions."""
    monkeypatch.setattr(discord.edge, "_ANEW_SECONDS", 0.01)


async def test_what_people_write_is_taken(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    thread = general.thread("plans", ada)
    async with bot.listening():
        await bot.is_ready()
        ada.write(general, "hello")
        ada.write(general, "you", mentions=[fake.bot])
        ada.write(thread, "in a thread")
        ada.write(fake.dm(ada), "in private")
        await bot.context.until(lambda: len(bot.context.taken) == 4)
    # The order of a chat is kept, not that among chats.
    taken = {each.event.text: each for each in bot.context.taken}
    assert bot.context.texts.index("hello") < bot.context.texts.index(f"{fake.bot.mention} you")
    texts = ("hello", f"{fake.bot.mention} you", "in a thread", "in private")
    plain, named, threaded, direct = (taken[text] for text in texts)
    assert [taken[text].addressed for text in texts] == [False, True, False, True]
    assert plain.event.source.chat_name == "general"
    assert plain.event.source.user_name == "Ada"
    assert named.event.source.scope_id == general.guild.id if general.guild else None
    assert threaded.event.source.parent_chat_id == general.id
    assert threaded.event.source.thread_id == thread.id
    assert direct.event.source.chat_type == "dm"


async def test_it_asks_for_no_more_than_it_needs(fake: FakeDiscord, bot: Bot) -> None:
    async with bot.listening():
        await bot.is_ready()
    [(_, told)] = [each for each in fake.gateway.received if each[0] == Op.IDENTIFY]
    wanted = Intent.GUILDS | Intent.GUILD_MESSAGES | Intent.DIRECT_MESSAGES | Intent.MESSAGE_CONTENT
    assert told["intents"] == wanted
    assert told["shard"] == [0, 1]


async def test_attachments_come_as_references(bot: Bot, ada: User, general: Channel) -> None:
    async with bot.listening():
        await bot.is_ready()
        ada.write(general, "look", attachments=[Attachment("cat.png", "image/png")])
        await bot.heard("look")
    assert bot.context.taken[0].event.media_urls[0].startswith("https://cdn.discordapp.com/")


async def test_its_own_messages_and_edits_are_not_handed_on(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    async with bot.listening():
        await bot.is_ready()
        first = ada.write(general, "first")
        fake.bot.write(general, "mine")
        ada.edit(first, "changed")
        ada.write(general, "last")
        await bot.heard("first", "last")


async def test_a_cut_socket_is_resumed_and_what_was_missed_comes_in_order(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    async with bot.listening():
        await bot.is_ready()
        ada.write(general, "one")
        await bot.heard("one")
        fake.drop_sockets()
        ada.write(general, "two")
        ada.write(general, "three")
        await bot.heard("one", "two", "three")
    assert (resumes(fake), identifies(fake)) == (1, 1)
    assert fake.gateway.paths[-1].startswith("/resume/?v=10&encoding=json")
    assert bot.context.repeated == []


async def test_a_wish_to_reconnect_is_followed_without_trouble(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    async with bot.listening():
        await bot.is_ready()
        fake.ask_to_reconnect()
        await bot.is_ready(2)
        ada.write(general, "still here")
        await bot.heard("still here")
    assert (resumes(fake), identifies(fake)) == (1, 1)
    assert all(state is PlatformState.READY for state, _ in bot.context.standings)


async def test_a_gateway_that_no_longer_answers_heartbeats_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(protocol, "_LEAST_INTERVAL", 0.05)
    fake = FakeDiscord(terms=GatewayTerms(heartbeat_interval=200))
    async with fake.serving(), opened(fake) as bot, bot.listening():
        await bot.is_ready()
        fake.silence_acks()
        await fake.until(lambda: resumes(fake) == 1)
        fake.silence_acks(silent=False)
        await bot.is_ready(2)
    assert identifies(fake) == 1


async def test_a_gateway_that_answers_heartbeats_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "_LEAST_INTERVAL", 0.5)
    fake = FakeDiscord(terms=GatewayTerms(heartbeat_interval=500))
    async with fake.serving(), opened(fake) as bot, bot.listening():
        await bot.is_ready()
        await fake.until(lambda: sum(op == Op.HEARTBEAT for op, _ in fake.gateway.received) >= 4)
    assert (resumes(fake), identifies(fake)) == (0, 1)


async def test_a_heartbeat_is_sent_when_the_gateway_asks_for_one(
    fake: FakeDiscord, bot: Bot
) -> None:
    async with bot.listening():
        await bot.is_ready()
        before = sum(op == Op.HEARTBEAT for op, _ in fake.gateway.received)
        fake.gateway.ask_for_heartbeats()
        await fake.until(
            lambda: sum(op == Op.HEARTBEAT for op, _ in fake.gateway.received) > before
        )


async def test_an_invalid_session_that_can_be_resumed_is_resumed(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    async with bot.listening():
        await bot.is_ready()
        fake.gateway.invalidate(resumable=True)
        ada.write(general, "meanwhile")
        await bot.heard("meanwhile")
    assert (resumes(fake), identifies(fake)) == (1, 1)


async def test_after_a_lost_session_what_was_missed_is_read_in_every_kind_of_place(
    fake: FakeDiscord, bot: Bot, ada: User, guild: Guild, general: Channel
) -> None:
    thread, other = general.thread("plans", ada), guild.channel("other")
    async with bot.listening():
        await bot.is_ready()
        for place in (general, thread, fake.dm(ada)):
            ada.write(place, "before")
        await bot.heard("before", "before", "before")
        bot.context.stale.clear()
        fake.expire_sessions()
        fake.drop_sockets()
        for number in range(3):
            ada.write(general, f"g{number}")
            ada.write(thread, f"t{number}")
            ada.write(fake.dm(ada), f"d{number}")
        ada.write(other, "where nobody had written")
        await bot.context.until(lambda: len(bot.context.taken) == 13)
    by_place: dict[str, list[str]] = {}
    for each in bot.context.taken[3:]:
        by_place.setdefault(each.event.source.chat_id, []).append(each.event.text)
    assert by_place == {
        general.id: ["g0", "g1", "g2"],
        thread.id: ["t0", "t1", "t2"],
        fake.dm(ada).id: ["d0", "d1", "d2"],
        other.id: ["where nobody had written"],
    }
    assert bot.context.taken[-1].event.source.scope_id == guild.id
    assert bot.context.stale[0] is None, "whoever saw something before may not see it now"


async def test_more_than_a_page_of_missed_messages_is_read_in_order(
    fake: FakeDiscord, bot: Bot, ada: User, general: Channel
) -> None:
    async with bot.listening():
        await bot.is_ready()
        ada.write(general, "before")
        await bot.heard("before")
        fake.expire_sessions()
        fake.drop_sockets()
        missed = [str(number) for number in range(250)]
        for text in missed:
            ada.write(general, text)
        await bot.heard("before", *missed)


async def test_a_bot_that_starts_for_the_first_time_reads_no_history(
    bot: Bot, ada: User, general: Channel
) -> None:
    ada.write(general, "long ago")
    async with bot.listening():
        await bot.is_ready()
        ada.write(general, "now")
        await bot.heard("now")


@pytest.mark.parametrize("expired", [False, True], ids=["resumed", "begun anew"])
async def test_a_bot_that_was_restarted_goes_on_where_it_was(
    fake: FakeDiscord, ada: User, general: Channel, expired: bool
) -> None:
    context = KeptContext()
    thread = general.thread("plans", ada)
    async with opened(fake, context) as first, first.listening():
        await first.is_ready()
        ada.write(general, "one")
        ada.write(thread, "two")
        await first.heard("one", "two")
    if expired:
        fake.expire_sessions()
    ada.write(general, "three")
    ada.write(thread, "four")
    async with opened(fake, context) as second, second.listening():
        await context.until(lambda: len(context.taken) == 4)
        ada.write(general, "five")
        await second.heard("one", "two", "three", "four", "five")
    assert identifies(fake) == (2 if expired else 1)
    # A bot that resumes is told nothing of its channels; it asked.
    assert context.taken[3].event.source.parent_chat_id == general.id


async def test_what_could_not_be_stored_is_not_passed_over(
    fake: FakeDiscord, ada: User, general: Channel
) -> None:
    context = KeptContext()
    async with opened(fake, context) as bot:
        async with bot.listening() as task:
            await bot.is_ready()
            ada.write(general, "one")
            await bot.heard("one")
            context.refusing = StoreError("the disk is full")
            ada.write(general, "two")
            ada.write(general, "three")
            with pytest.raises(StoreError):
                await task
        context.refusing = None
        async with bot.listening():
            await bot.heard("one", "two", "three")
    assert identifies(fake) == 1


async def test_what_can_never_be_kept_is_passed_over(
    fake: FakeDiscord, ada: User, general: Channel
) -> None:
    async with opened(fake, checkpoint_seconds=1.0) as bot, bot.listening():
        await bot.is_ready()
        bot.context.refusing = RelayError(Code.BAD_REQUEST, "no store could keep it")
        before = bot.context.remembered
        ada.write(general, "poison")
        await bot.context.until(lambda: bot.context.remembered != before)
        bot.context.refusing = None
        ada.write(general, "well")
        await bot.heard("well")
