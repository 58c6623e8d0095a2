"""What events of a room mean: messages, answers, threads, edits, mentions, and a room's state."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.connector import InboundKind
from accord.relay.platforms import matrix
from accord.relay.platforms.settings import MatrixSettings
from accord.relay.rules import MessageType

BOT = "@bot:x.org"
ANN = "@ann:x.org"


def event(body: Any = "hello", kind: str = "m.room.message", **content: Any) -> dict[str, Any]:
    return {
        "type": kind,
        "event_id": "$e",
        "sender": ANN,
        "content": {"msgtype": "m.text", "body": body, **content},
    }


def read(body: Any = "hello", **content: Any) -> matrix.RoomMessage:
    message = matrix.read_message(event(body, **content), BOT)
    assert message is not None
    return message


def state(kind: str, content: Any, key: str = "", sender: str = ANN) -> dict[str, Any]:
    return {"type": kind, "state_key": key, "content": content, "sender": sender}


def room(*events: dict[str, Any]) -> matrix.Room:
    made = matrix.Room("!r", scope="!r")
    for user in (BOT, ANN):
        made.apply(state("m.room.member", {"membership": "join"}, user))
    made.apply_all(events)
    return made


def test_an_answer_loses_the_quotation_that_clients_put_before_it() -> None:
    relation = {"m.relates_to": {"m.in_reply_to": {"event_id": "$other"}}}
    quoted = "> <@ann:x.org> first\n> second\n\nanswer\n> kept"
    message = read(quoted, **relation)
    assert (message.text, message.reply_to) == ("answer\n> kept", "$other")
    assert read("> a quotation\n\nof my own", **relation).text == "> a quotation\n\nof my own"
    assert read(quoted).text == quoted


def test_the_message_before_in_a_thread_is_not_what_is_answered() -> None:
    thread = {"rel_type": "m.thread", "event_id": "$root", "m.in_reply_to": {"event_id": "$last"}}
    falling = read(**{"m.relates_to": {**thread, "is_falling_back": True}})
    assert (falling.thread, falling.reply_to) == ("$root", None)
    meant = read(**{"m.relates_to": thread})
    assert (meant.thread, meant.reply_to) == ("$root", "$last")


def test_an_edit_is_news_only_to_whom_it_newly_mentions() -> None:
    relation = {"rel_type": "m.replace", "event_id": "$first"}
    edit: Any = {
        "m.relates_to": relation,
        "m.new_content": {"msgtype": "m.text", "body": "bot, hello"},
    }
    assert matrix.read_message(event("* bot, hello", **edit), BOT) is None
    other: Any = {"m.mentions": {"user_ids": [ANN]}}
    assert matrix.read_message(event("*", **edit, **other), BOT) is None
    message = read("* bot, hello", **edit, **{"m.mentions": {"user_ids": [BOT]}})
    assert (message.event_id, message.message_id, message.text) == ("$e", "$first", "bot, hello")


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        ({"msgtype": "m.image", "body": "cat.png"}, MessageType.PHOTO, ""),
        (
            {"msgtype": "m.image", "body": "my cat", "filename": "cat.png"},
            MessageType.PHOTO,
            "my cat",
        ),
        ({"msgtype": "m.video", "body": "v"}, MessageType.VIDEO, ""),
        ({"msgtype": "m.audio", "body": "a"}, MessageType.AUDIO, ""),
        (
            {"msgtype": "m.audio", "body": "a", "org.matrix.msc3245.voice": {}},
            MessageType.VOICE,
            "",
        ),
        ({"msgtype": "m.file", "body": "f.pdf"}, MessageType.DOCUMENT, ""),
        (
            {"msgtype": "m.location", "body": "home", "geo_uri": "geo:1,2"},
            MessageType.LOCATION,
            "home (geo:1,2)",
        ),
        ({"msgtype": "m.emote", "body": "waves"}, MessageType.TEXT, "* waves"),
    ],
)
def test_kinds_of_messages_are_told_apart(
    content: dict[str, Any], kind: MessageType, text: str
) -> None:
    message = read(**{"url": "mxc://x.org/abc", **content})
    assert (message.kind, message.text, message.media) == (kind, text, ("mxc://x.org/abc",))


def test_a_sticker_is_one() -> None:
    sticker = event("a cat", "m.sticker", url="mxc://x.org/cat")
    message = matrix.read_message(sticker, BOT)
    assert message is not None
    assert (message.kind, message.text) == (MessageType.STICKER, "a cat")


@pytest.mark.parametrize(
    "address",
    ["https://x.org/a", "mxc://x.org/../a", "mxc://x.org/a?token=1", "mxc:///a", "mxc://x.org/", 7],
)
def test_what_refers_to_no_file_of_a_homeserver_is_left_out(address: Any) -> None:
    assert not matrix.is_media(address)
    assert read(msgtype="m.image", url=address).media == ()


def test_a_notice_comes_from_a_bot() -> None:
    assert matrix.message_inbound(read(msgtype="m.notice"), room(), BOT, None).author_is_bot
    assert not matrix.message_inbound(read(), room(), BOT, None).author_is_bot


@pytest.mark.parametrize(
    ("content", "spoken_to"),
    [
        ({"body": "hello"}, False),
        ({"body": f"{BOT}: hello"}, True),
        ({"body": "BOT, hello"}, True),
        ({"body": "robots, hello"}, False),
        ({"body": "Agent Smith: hello"}, True),
        ({"body": "BOT, hello", "m.mentions": {}}, False),
        ({"body": "hello", "m.mentions": {"user_ids": [BOT]}}, True),
        ({"body": "hello", "m.mentions": {"user_ids": "x"}}, False),
        ({"body": "x", "formatted_body": '<a href="https://matrix.to/#/@bot:x.org">x</a>'}, True),
        ({"body": "x", "formatted_body": '<a href="https://matrix.to/#/%40bot%3Ax.org">'}, True),
    ],
)
def test_who_is_spoken_to_is_read_off_the_message(content: dict[str, Any], spoken_to: bool) -> None:
    named = room(
        state("m.room.name", {"name": "kitchen"}),
        state("m.room.member", {"membership": "join", "displayname": "Agent Smith"}, BOT),
    )
    assert matrix.message_inbound(read(**content), named, BOT, None).addressed is spoken_to
    assert matrix.message_inbound(read(**content), named, BOT, BOT).addressed


@pytest.mark.parametrize("text", ["!stop", "/stop", " !STOP "])
def test_a_bang_stands_for_the_slash_that_clients_keep(text: str) -> None:
    assert matrix.message_inbound(read(text), room(), BOT, None).kind is InboundKind.INTERRUPT


def test_only_the_relays_own_commands_are_read_so() -> None:
    assert read("!link ABCDE-12345").text == "/link ABCDE-12345"
    assert read("!linking").text == "!linking"
    for word in ("unlink", "agents", "default", "help"):
        assert read(f"!{word} x").text == f"/{word} x"
    assert read("say !link").text == "say !link"


CLOSED = state("m.room.join_rules", {"join_rule": "invite"})
NAMED = state("m.room.name", {"name": "kitchen"})


def test_a_direct_talk_is_between_two_behind_closed_doors() -> None:
    ben = state("m.room.member", {"membership": "invite"}, "@ben:x.org")
    gone = state("m.room.member", {"membership": "leave"}, "@ben:x.org")
    assert room(CLOSED).is_direct(BOT)
    assert not room().is_direct(BOT)
    assert not room(state("m.room.join_rules", {"join_rule": "public"})).is_direct(BOT)
    assert not room(CLOSED, NAMED).is_direct(BOT)
    assert not room(CLOSED, ben).is_direct(BOT)
    assert room(CLOSED, ben, gone).is_direct(BOT)
    assert not room(CLOSED).is_direct("@other:x.org")


def test_a_thread_in_a_direct_talk_stays_direct() -> None:
    thread = {"m.relates_to": {"rel_type": "m.thread", "event_id": "$root"}}
    source = matrix.message_inbound(read(**thread), room(CLOSED), BOT, None).event.source
    assert (source.chat_type, source.chat_id, source.scope_id) == ("dm", "!r/$root", None)


def levels(**given: Any) -> dict[str, Any]:
    return state("m.room.power_levels", given)


def created(version: str, **more: Any) -> dict[str, Any]:
    return state("m.room.create", {"room_version": version, **more}, sender="@maker:x.org")


@pytest.mark.parametrize(
    ("events", "managers"),
    [
        ([created("10")], {"@maker:x.org"}),
        ([created("12")], {"@maker:x.org"}),
        ([created("12"), levels(users={ANN: 50})], {"@maker:x.org", ANN}),
        ([created("11"), levels(users={ANN: 50})], {ANN}),
        ([created("11"), levels(users={ANN: 49})], set()),
        ([created("11"), levels(users={ANN: 60}, state_default=100)], set()),
        ([created("11"), levels(users={ANN: "100"}, users_default=True)], set()),
        ([created("11"), levels(users_default=50, users={ANN: 0})], {"@maker:x.org", BOT}),
        ([created("11"), levels(state_default=0)], set()),
        ([created("12", additional_creators=[ANN, 7]), levels()], {"@maker:x.org", ANN}),
        ([created("11", additional_creators=[ANN]), levels()], set()),
    ],
)
def test_who_manages_a_room_has_the_power_to(
    events: list[dict[str, Any]], managers: set[str]
) -> None:
    made = room(*events)
    assert {user for user in (ANN, "@maker:x.org", BOT) if made.may_manage(user)} == managers


def test_only_a_canonical_parent_counts() -> None:
    full = {"via": ["x.org"], "canonical": True}
    for content in ({"via": ["x.org"]}, {"canonical": True}, {**full, "canonical": 1}, {}):
        assert room(state("m.space.parent", content, "!s")).parents == set()
    parent = state("m.space.parent", full, "!s")
    assert room(parent).parents == {"!s"}
    assert room(parent, state("m.space.parent", {}, "!s")).parents == set()
    assert room(parent).scope is None  # it must be found anew


NAMES = st.sampled_from(
    [
        "type",
        "state_key",
        "content",
        "sender",
        "event_id",
        "unsigned",
        "body",
        "msgtype",
        "url",
        "m.relates_to",
        "m.mentions",
        "rel_type",
        "m.in_reply_to",
        "m.new_content",
        "user_ids",
        "membership",
        "users",
        "via",
        "canonical",
        "join_rule",
        "name",
        "formatted_body",
        "filename",
        "geo_uri",
        "is_falling_back",
        "additional_creators",
        "room_version",
    ]
)
WORDS = st.sampled_from(
    [
        "$e",
        "m.text",
        "m.image",
        "m.room.message",
        "m.room.member",
        "m.thread",
        "m.replace",
        "m.space.parent",
        "m.room.name",
        "m.room.create",
        "m.room.power_levels",
        "join",
        "@bot:x.org",
        "@ann:x.org",
        "m.sticker",
        "12",
    ]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=20,
)


@given(st.dictionaries(NAMES, ANYTHING, max_size=8))
def test_no_event_whatever_it_is_does_harm(odd: dict[str, Any]) -> None:
    made = room()
    made.apply(odd)
    message = matrix.read_message(odd, BOT)
    if message is not None:
        assert matrix.message_inbound(message, made, BOT, None).event_id == odd["event_id"]
    made.may_manage(ANN)
    made.is_direct(BOT)


@given(st.text(), st.none() | st.text(min_size=1).map(lambda text: "$" + text.replace("$", "")))
def test_a_chat_id_names_one_place(opaque: str, thread: str | None) -> None:
    place = matrix.MatrixChat("!" + opaque.replace("$", ""), thread)
    assert matrix.MatrixChat.of(place.chat_id) == place


@pytest.mark.parametrize(
    ("name", "good"),
    [("@a:x", True), ("a:x", False), ("@a", False), ("@:x", False), ("@a b:x", False)],
)
def test_user_ids_have_a_form(name: str, good: bool) -> None:
    assert matrix.is_user(name) is good


@pytest.mark.parametrize(
    ("invites", "followed"),
    [
        ("anyone", {"@ann:x.org", "@ben:y.org"}),
        ("nobody", set()),
        ("server", {"@ann:x.org"}),
        (("y.org",), {"@ben:y.org"}),
        (("@ann:x.org",), {"@ann:x.org"}),
        ((), set()),
    ],
)
def test_invitations_are_followed_as_the_settings_say(invites: Any, followed: set[str]) -> None:
    settings = MatrixSettings(homeserver="https://x.org", user_id=BOT, invites=invites)
    assert {
        user for user in ("@ann:x.org", "@ben:y.org") if matrix.may_invite(settings, user)
    } == followed
