"""What agents do, posted to a program."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.webhooks.service import Trouble
from tests.relay.platforms.hooked import hook

from accord.kernel.clock import SystemClock
from accord.relay.connector import PlatformState
from accord.relay.errors import RelayError
from accord.relay.platforms import webhook
from accord.relay.rules import Edit, FollowUp, GetChatInfo, Send, Typing

ROOM = "desk/room%2F1/t1"


async def test_actions_are_posted_in_the_programs_own_names() -> None:
    async with hook() as world:
        sent = await world.platform.perform(Send(ROOM, "**hi**", reply_to="m1"), "i/1")
        (said,) = world.service.said
        assert (sent.success, sent.message_id) == (True, said.message_id)
        assert said.details == {
            "type": "send",
            "chat_id": "room/1",
            "thread_id": "t1",
            "text": "**hi**",
            "reply_to": "m1",
        }
        assert (await world.platform.perform(Edit(ROOM, "d1", "new"), "i/2")).success
        assert (await world.platform.perform(Typing("desk/ann"), "i/3")).success
        assert (world.service.edited, world.service.typed) == ([("d1", "new")], ["ann"])


async def test_an_action_that_is_repeated_under_its_key_happens_once() -> None:
    async with hook() as world:
        first = await world.platform.perform(Send("desk/ann", "hi"), "instance ☂/r\n1")
        again = await world.platform.perform(Send("desk/ann", "hi"), "instance ☂/r\n1")
        other = await world.platform.perform(Send("desk/ann", "hi"), "instance ☂/r2")
        assert first == again != other
        assert len(world.service.said) == 2
        assert world.platform.idempotent
    async with hook(deduplicates=False) as world:
        assert not world.platform.idempotent


async def test_a_failure_is_a_sentence_and_is_not_repeated() -> None:
    async with hook() as world:
        for status in (500, 503, 404, 302):
            world.service.troubles.append(
                Trouble(status, headers={"location": "http://127.0.0.1/"})
            )
            result = await world.platform.perform(Send("desk/ann", "hi"), "k")
            assert result.error == f"the webhook's receiver answered {status}"
        assert len(world.service.calls) == 4
        assert world.service.said == []
        world.service.troubles.append(Trouble(410))
        assert not (await world.platform.perform(Send("desk/ann", "hi"), "k")).success
        assert (await world.platform.perform(Send("desk/ann", "hi"), "k")).success
        states = [state for state, _ in world.context.standings]
        assert states == [PlatformState.TROUBLED, PlatformState.READY]


async def test_a_url_inside_the_network_is_refused_unless_it_is_allowed() -> None:
    async with hook(networks=(), url="https://localhost/actions", ports=()) as world:
        result = await world.platform.perform(Send("desk/ann", "hi"), "k")
        assert "this machine" in str(result.error)
        assert world.service.calls == []
    for url, what in (
        ("http://a.example/x", "not https"),
        ("https://127.0.0.1/x", "this machine"),
        ("https://a.example:8080/x", "port 8080"),
        ("https://me:pw@a.example/", "a user or a password"),
        ("no url", "no scheme"),
    ):
        settings = webhook.WebhookSettings.model_validate(
            {"name": "desk", "secret": "whsec_" + "A" * 43 + "=", "url": url}
        )
        with pytest.raises(RelayError, match=what):
            async with webhook.open_webhook(settings, SystemClock()):
                pass


async def test_what_the_settings_say_of_the_receiver_is_what_agents_are_told() -> None:
    async with hook(edits=False, markdown=False, max_message_length=100) as world:
        told = world.platform.descriptor()
        assert (told.supports_edit, told.markdown_dialect) == (False, "plain")
        assert told.max_message_length == 100
        refused = await world.platform.perform(Edit("desk/ann", "d1", "x"), "k")
        assert refused.error == "the receiver cannot change messages"
        await world.platform.perform(Send("desk/ann", "**hi**"), "k")
        assert world.service.said[-1].text == "hi"
    async with hook(url="") as world:
        silent = await world.platform.perform(Send("desk/ann", "hi"), "k")
        assert "no URL" in str(silent.error)


async def test_chats_of_others_are_no_chats() -> None:
    async with hook() as world:
        for chat in ("ann", "other/ann", "desk", "desk/", "desk/a/b/c", "desk//t"):
            result = await world.platform.perform(Send(chat, "hi"), "k")
            assert result.error == "there is no such chat"
        assert (await world.platform.perform(FollowUp("s", "webhook.x", "y"), "k")).error
        info = await world.platform.perform(GetChatInfo(ROOM), "k")
        assert info.chat_info == {"name": "room/1", "type": "thread"}


async def test_who_sees_and_manages_a_chat_is_known_from_the_settings_only() -> None:
    async with hook(managers=("boss",)) as world:
        see, manage = world.platform.can_view, world.platform.can_manage
        assert await see("desk/ann", "desk", "desk/room") is False
        assert await see("desk/boss", "desk", "desk/room") is True
        assert await see("desk/boss", "desk", "other/room") is False
        assert await manage("desk/boss", "desk", "desk/room") is True
        assert await manage("desk/ann", "desk", "desk/room") is False
        assert await manage("boss", "desk", "desk/room") is False
    async with hook(open_chats=True) as world:
        assert await world.platform.can_view("desk/ann", "desk", "desk/room") is True


ids = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(ids, st.none() | ids)
def test_every_chat_of_a_program_comes_back_as_it_went(chat: str, thread: str | None) -> None:
    place = webhook.WebhookChat(chat, thread)
    assert webhook.read_chat_id("desk", webhook.chat_id_of("desk", place)) == place
    assert webhook.read_chat_id("other", webhook.chat_id_of("desk", place)) is None
