"""What a message of Discord is to the connector."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.connector import InboundEvent, InboundKind
from accord.relay.platforms import discord
from accord.relay.rules import MessageType, session_key

BOT, ADA, GUILD = "900", "2", "100"
GENERAL = discord.DiscordChat("300", 0, GUILD, None, "general", "Anything")
THREAD = discord.DiscordChat("400", 11, GUILD, "300", "plans")
DIRECT = discord.DiscordChat("500", 1)


def message(**more: Any) -> dict[str, Any]:
    author = {"id": ADA, "username": "ada", "global_name": "Ada", "bot": False}
    return {"id": "7000", "type": 0, "content": "hello", "author": author, **more}


def taken(place: discord.DiscordChat = GENERAL, **more: Any) -> InboundEvent:
    found = discord.message_inbound(message(**more), place, BOT)
    assert found is not None
    return found


def test_a_message_in_a_guild_names_guild_channel_author_and_itself() -> None:
    found = taken(member={"nick": "Countess"})
    source = found.event.source
    assert (found.platform, found.bot_id, found.event_id) == ("discord", BOT, "7000")
    assert (source.chat_id, source.chat_type, source.scope_id) == ("300", "group", GUILD)
    assert (source.chat_name, source.chat_topic) == ("general", "Anything")
    assert (source.user_id, source.user_name, source.message_id) == (ADA, "Countess", "7000")
    assert not found.addressed
    assert not found.author_is_bot
    assert found.kind is InboundKind.MESSAGE
    assert session_key(source) == "agent:main:discord:group:300:2"


def test_a_thread_is_a_chat_of_its_own_in_a_channel() -> None:
    source = taken(THREAD).event.source
    assert (source.chat_id, source.thread_id, source.parent_chat_id) == ("400", "400", "300")
    assert source.chat_type == "thread"
    assert session_key(source) == "agent:main:discord:thread:400:400"


def test_a_direct_message_has_no_scope_and_is_always_addressed() -> None:
    found = taken(DIRECT)
    assert (found.event.source.chat_type, found.event.source.scope_id) == ("dm", None)
    assert found.addressed


def test_a_mention_addresses_the_bot_and_stays_in_the_text() -> None:
    found = taken(content=f"<@{BOT}> hello", mentions=[{"id": BOT}])
    assert found.addressed
    assert found.event.text == f"<@{BOT}> hello"
    assert not taken(mentions=[{"id": ADA}]).addressed


def test_an_answer_to_the_bot_addresses_it_and_names_what_it_answers() -> None:
    answer: dict[str, Any] = {"type": 19, "message_reference": {"message_id": "6000"}}
    found = taken(**answer, referenced_message={"author": {"id": BOT}})
    assert found.addressed
    assert found.event.reply_to_message_id == "6000"
    assert not taken(**answer, referenced_message={"author": {"id": ADA}}).addressed
    assert not taken(**answer, referenced_message=None).addressed


def test_other_bots_and_webhooks_are_known_as_such() -> None:
    assert taken(author={"id": "8", "username": "other", "bot": True}).author_is_bot
    assert taken(webhook_id="8").author_is_bot


@pytest.mark.parametrize(
    "more",
    [
        {"author": {"id": BOT, "username": "me", "bot": True}},
        {"application_id": BOT, "webhook_id": BOT},
        {"type": 7},
        {"content": ""},
        {"content": None},
        {"author": None},
        {"author": {"id": 2}},
        {"id": "../7"},
    ],
    ids=["own", "own follow-up", "notice", "empty", "none", "no author", "number", "no id"],
)
def test_what_is_not_handed_on(more: dict[str, Any]) -> None:
    assert discord.message_inbound(message(**more), GENERAL, BOT) is None


@pytest.mark.parametrize(
    ("content_type", "flags", "expected"),
    [
        ("image/png", 0, MessageType.PHOTO),
        ("video/mp4", 0, MessageType.VIDEO),
        ("audio/ogg", 0, MessageType.AUDIO),
        ("audio/ogg", 1 << 13, MessageType.VOICE),
        ("application/pdf", 0, MessageType.DOCUMENT),
        (None, 0, MessageType.DOCUMENT),
    ],
)
def test_media_are_references_and_say_what_they_are(
    content_type: str | None, flags: int, expected: MessageType
) -> None:
    url = "https://cdn.discordapp.com/attachments/1/2/file"
    attachment = {"id": "1", "url": url, "content_type": content_type}
    event = taken(content="", flags=flags, attachments=[attachment, {"url": 7}, None]).event
    assert (event.message_type, event.media_urls) == (expected, (url,))


def test_a_sticker_is_a_reference_to_its_picture() -> None:
    event = taken(content="", sticker_items=[{"id": "77", "format_type": 4}]).event
    assert event.message_type is MessageType.STICKER
    assert event.media_urls == ("https://cdn.discordapp.com/stickers/77.gif",)


def test_stop_interrupts() -> None:
    assert taken(content=" /Stop ").kind is InboundKind.INTERRUPT


def test_places_are_read_from_what_the_api_says_of_channels() -> None:
    channel = {"id": "300", "type": 0, "name": "general", "last_message_id": "55"}
    assert discord.read_chat(channel, GUILD) == discord.DiscordChat(
        "300", 0, GUILD, None, "general", None, 55
    )
    thread = {"id": "400", "type": 11, "guild_id": GUILD, "parent_id": "300", "name": "plans"}
    assert discord.read_chat(thread) == THREAD
    under_category = {"id": "300", "type": 0, "guild_id": GUILD, "parent_id": "9"}
    found = discord.read_chat(under_category)
    assert found is not None
    assert found.parent_id is None
    assert discord.read_chat({"id": "300", "type": 0}) is None
    assert discord.read_chat({"id": "400", "type": 11, "guild_id": GUILD}) is None


def test_of_very_many_places_those_used_last_are_known() -> None:
    places = discord.ChatCache()
    for number in range(20_001):
        places.put(discord.DiscordChat(str(number), 0, GUILD))
        places.get("0")
    assert places.get("0") is not None
    assert places.get("1") is None


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
members = st.sampled_from(
    [*message(), "attachments", "mentions", "referenced_message", "flags", "member", "webhook_id"]
)


@given(st.dictionaries(members, values, max_size=4) | values)
def test_nonsense_never_fails(more: Any) -> None:
    whole = message(**more) if isinstance(more, dict) and all(map(str.isidentifier, more)) else more
    for place in (GENERAL, THREAD, DIRECT):
        found = discord.message_inbound(whole, place, BOT)
        assert found is None or found.event.source.chat_id == place.id
    assert discord.read_chat(more) is None or isinstance(more, dict)
