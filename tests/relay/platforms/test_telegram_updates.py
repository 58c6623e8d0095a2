"""What the connector makes of Telegram's updates."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.relay.platforms import telegram_updates as documented
from tests.relay.platforms.telegram_updates import (
    ANN,
    BOT_USER,
    CHANNEL,
    FORUM,
    GROUP,
    OTHER_BOT,
    PRIVATE,
    SUPERGROUP,
    TOPIC_START,
    entity,
    message,
    update,
)

from accord.relay.connector import InboundEvent, InboundKind
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import telegram
from accord.relay.rules import MessageType, session_key

ME = telegram.BotUser(700, "accord_bot")


def read(given: dict[str, Any]) -> InboundEvent:
    inbound = telegram.update_inbound(given, ME)
    assert inbound is not None
    return inbound


def test_a_direct_message_is_from_its_author_and_for_the_bot() -> None:
    inbound = read(update(text="hello"))
    assert (inbound.platform, inbound.bot_id, inbound.event_id) == ("telegram", "700", "9001")
    assert inbound.addressed
    assert not inbound.author_is_bot
    assert inbound.event.to_dict() == {
        "text": "hello",
        "message_type": "text",
        "message_id": "5",
        "reply_to_message_id": None,
        "media_urls": [],
        "botId": "700",
        "source": {
            "platform": "telegram",
            "chat_id": "41",
            "chat_type": "dm",
            "chat_name": "Ann Lee",
            "user_id": "41",
            "user_name": "Ann Lee",
            "thread_id": None,
            "chat_topic": None,
            "message_id": "5",
        },
    }


@pytest.mark.parametrize(("chat", "type_"), [(GROUP, "group"), (SUPERGROUP, "group")])
def test_a_group_has_no_scope_and_its_chat_tells_tenants_apart(
    chat: dict[str, Any], type_: str
) -> None:
    source = read(update(chat=chat, text="hello")).event.source
    assert (source.chat_id, source.chat_type, source.scope_id) == (str(chat["id"]), type_, None)


def test_a_topic_of_a_forum_is_a_thread_of_its_chat() -> None:
    topic: dict[str, Any] = {
        "message_thread_id": 17,
        "is_topic_message": True,
        "reply_to_message": TOPIC_START,
    }
    inbound = read(update(chat=FORUM, text="hello", **topic))
    source = inbound.event.source
    assert (source.chat_id, source.chat_type, source.thread_id) == ("-1002", "forum", "17")
    assert session_key(source) == "agent:main:telegram:forum:-1002:17"
    # The bot made the topic, and everything in it seems to answer that.
    assert not inbound.addressed
    assert inbound.event.reply_to_message_id is None


def test_the_general_topic_of_a_forum_is_no_thread() -> None:
    source = read(update(chat=FORUM, text="hello")).event.source
    assert (source.chat_type, source.thread_id) == ("forum", None)


def test_a_thread_of_answers_in_an_ordinary_group_is_no_topic() -> None:
    source = read(update(chat=SUPERGROUP, text="hello", message_thread_id=3)).event.source
    assert source.thread_id is None


def test_a_topic_of_a_private_chat_is_a_thread_of_it() -> None:
    given = update(text="hello", message_thread_id=3, is_topic_message=True)
    assert session_key(read(given).event.source) == "agent:main:telegram:dm:41:3"


@pytest.mark.parametrize(
    ("text", "entities", "addressed"),
    [
        ("hello", [], False),
        ("hello @accord_bot", [entity("mention", 6, 11)], True),
        ("hello @Accord_Bot", [entity("mention", 6, 11)], True),
        ("hello @accord_bots", [entity("mention", 6, 12)], False),
        ("@accord_bot unmarked", [], False),
        ("😀😀 @accord_bot", [entity("mention", 5, 11)], True),
        ("hi Accord", [entity("text_mention", 3, 6, user=BOT_USER)], True),
        ("hi Ann", [entity("text_mention", 3, 3, user=ANN)], False),
        ("/weather now", [entity("bot_command", 0, 8)], True),
        ("/weather@accord_bot now", [entity("bot_command", 0, 19)], True),
        ("/weather@o_bot now", [entity("bot_command", 0, 14)], False),
        ("see /weather", [entity("bot_command", 4, 8)], False),
    ],
)
def test_in_a_group_the_bot_is_addressed_by_mention_and_command(
    text: str, entities: list[dict[str, Any]], addressed: bool
) -> None:
    assert read(update(chat=SUPERGROUP, text=text, entities=entities)).addressed is addressed


@pytest.mark.parametrize(("author", "addressed"), [(BOT_USER, True), (OTHER_BOT, False)])
def test_in_a_group_the_bot_is_addressed_by_an_answer_to_it(
    author: dict[str, Any], addressed: bool
) -> None:
    answered = message(SUPERGROUP, message_id=4, text="before") | {"from": author}
    inbound = read(update(chat=SUPERGROUP, text="hello", reply_to_message=answered))
    assert inbound.addressed is addressed
    assert inbound.event.reply_to_message_id == "4"


def test_a_command_is_handed_on_without_the_name_of_the_bot() -> None:
    marked = [entity("bot_command", 0, 17)]
    event = read(update(chat=SUPERGROUP, text="/start@accord_bot now", entities=marked)).event
    assert (event.text, event.message_type) == ("/start now", MessageType.COMMAND)


def test_a_command_for_another_bot_is_text() -> None:
    marked = [entity("bot_command", 0, 12)]
    event = read(update(chat=SUPERGROUP, text="/start@o_bot", entities=marked)).event
    assert (event.text, event.message_type) == ("/start@o_bot", MessageType.TEXT)


@pytest.mark.parametrize(
    ("text", "length", "kind"),
    [
        ("/stop", 5, InboundKind.INTERRUPT),
        ("/stop@accord_bot", 16, InboundKind.INTERRUPT),
        ("/stop@o_bot", 11, InboundKind.MESSAGE),
        ("/stop smoking", 5, InboundKind.MESSAGE),
    ],
)
def test_stop_ends_the_running_turn(text: str, length: int, kind: InboundKind) -> None:
    marked = [entity("bot_command", 0, length)]
    assert read(update(chat=SUPERGROUP, text=text, entities=marked)).kind is kind


@pytest.mark.parametrize(
    ("name", "kind", "urls", "text"),
    [
        ("photo", MessageType.PHOTO, ["telegram:file/large-1"], ""),
        ("document", MessageType.DOCUMENT, ["telegram:file/AgACAgIAAx"], ""),
        ("video", MessageType.VIDEO, ["telegram:file/AgACAgIAAx"], ""),
        ("animation", MessageType.VIDEO, ["telegram:file/AgACAgIAAx"], ""),
        ("video_note", MessageType.VIDEO, ["telegram:file/AgACAgIAAx"], ""),
        ("audio", MessageType.AUDIO, ["telegram:file/AgACAgIAAx"], ""),
        ("voice", MessageType.VOICE, ["telegram:file/AgACAgIAAx"], ""),
        ("sticker", MessageType.STICKER, ["telegram:file/AgACAgIAAx"], "🙂"),
        ("location", MessageType.LOCATION, [], "52.520000, 13.405000"),
        ("venue", MessageType.LOCATION, [], "Tower\nSquare 1\n52.520000, 13.405000"),
    ],
)
def test_media_are_references(name: str, kind: MessageType, urls: list[str], text: str) -> None:
    event = read(update(**documented.MEDIA[name])).event
    assert (event.message_type, list(event.media_urls), event.text) == (kind, urls, text)


def test_a_caption_is_the_text_of_its_picture_and_may_mention_the_bot() -> None:
    marked = [entity("mention", 0, 11)]
    picture: dict[str, Any] = {"photo": documented.SIZES, "caption": "@accord_bot look"}
    inbound = read(update(chat=SUPERGROUP, caption_entities=marked, **picture))
    assert inbound.event.text == "@accord_bot look"
    assert inbound.event.message_type is MessageType.PHOTO
    assert inbound.addressed


def test_another_bot_is_known_as_one() -> None:
    assert read(
        {"update_id": 1, "message": message(GROUP, text="x") | {"from": OTHER_BOT}}
    ).author_is_bot


def test_what_the_bot_itself_wrote_is_not_handed_on() -> None:
    own = message(GROUP, text="x") | {"from": BOT_USER}
    assert telegram.update_inbound({"update_id": 1, "message": own}, ME) is None


def test_an_anonymous_administrator_is_the_group_and_no_bot() -> None:
    anonymous = {"id": 1087968824, "is_bot": True, "first_name": "Group"}
    post = message(SUPERGROUP, text="x", sender_chat=SUPERGROUP) | {"from": anonymous}
    inbound = read({"update_id": 1, "message": post})
    assert (inbound.event.source.user_id, inbound.author_is_bot) == ("-1001", False)


def test_a_post_in_a_channel_is_by_the_channel() -> None:
    post = message(CHANNEL, text="news", sender_chat=CHANNEL)
    del post["from"]
    source = read({"update_id": 1, "channel_post": post}).event.source
    assert (source.chat_type, source.chat_id, source.user_id) == ("channel", "-1003", "-1003")


@pytest.mark.parametrize("name", documented.SERVICE)
def test_a_message_about_the_chat_itself_is_for_nobody(name: str) -> None:
    assert telegram.update_inbound(update(chat=SUPERGROUP, **documented.SERVICE[name]), ME) is None


@pytest.mark.parametrize("name", documented.UNHEARD)
def test_what_is_not_supported_is_passed_over(name: str) -> None:
    assert telegram.update_inbound(documented.UNHEARD[name], ME) is None


def test_the_chat_of_direct_messages_to_a_channel_is_passed_over() -> None:
    chat = SUPERGROUP | {"is_direct_messages": True}
    assert telegram.update_inbound(update(chat=chat, text="x"), ME) is None


@pytest.mark.parametrize("kind", ["chat_member", "my_chat_member"])
def test_a_changed_membership_makes_sight_of_the_chat_stale(kind: str) -> None:
    given = documented.membership(kind, SUPERGROUP)
    assert telegram.stale_chat(given) == "-1001"
    assert telegram.update_inbound(given, ME) is None


@pytest.mark.parametrize(
    "broken",
    [
        {"message": message(text="x")},
        {"update_id": True, "message": message(text="x")},
        {"update_id": 1, "message": "x"},
        {"update_id": 1, "message": message(PRIVATE | {"id": "41"}, text="x")},
        {"update_id": 1, "message": message(PRIVATE | {"type": "cave"}, text="x")},
        {"update_id": 1, "message": message(PRIVATE | {"id": 2**80}, text="x")},
        {"update_id": 1, "message": message(text="x", message_id=None)},
        {"update_id": 1, "message": message(text="x", is_topic_message=True)},
        {"update_id": 1, "message": message(text="x") | {"from": [1]}},
    ],
)
def test_an_update_of_another_form_is_a_bad_request(broken: dict[str, Any]) -> None:
    with pytest.raises(RelayError) as refusal:
        telegram.update_inbound(broken, ME)
    assert refusal.value.code is Code.BAD_REQUEST


def test_half_of_a_surrogate_pair_does_not_reach_the_wire() -> None:
    event = read(update(text="a\ud83d", entities=[entity("mention", 0, 9)])).event
    assert event.text.encode() == "a\ufffd".encode()


names = st.sampled_from(
    [
        "update_id",
        "message",
        "channel_post",
        "chat_member",
        "chat",
        "from",
        "sender_chat",
        "id",
        "type",
        "text",
        "caption",
        "entities",
        "caption_entities",
        "offset",
        "length",
        "user",
        "photo",
        "sticker",
        "file_id",
        "emoji",
        "location",
        "venue",
        "latitude",
        "longitude",
        "title",
        "reply_to_message",
        "message_id",
        "message_thread_id",
        "is_topic_message",
        "username",
    ]
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(alphabet=st.characters(), max_size=8),
    st.sampled_from(["private", "supergroup", "mention", "bot_command", "/stop", 10**400]),
)
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=6)
)


@settings(max_examples=200)
@given(st.dictionaries(names, anything, max_size=6), anything, anything)
def test_no_update_can_do_worse_than_be_refused(
    loose: dict[str, Any], chat: Any, marked: Any
) -> None:
    whole = update(chat=PRIVATE, text="/stop x", entities=marked, reply_to_message=chat)
    for given_ in (loose, whole, update(chat=chat, text="x"), update() | loose):
        for reader in (lambda each: telegram.update_inbound(each, ME), telegram.stale_chat):
            try:
                reader(given_)
            except RelayError as error:
                assert error.code is Code.BAD_REQUEST
