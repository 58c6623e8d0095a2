"""The web chat as the connector uses it: actions, idempotency, and what a crash leaves behind."""

import asyncio
from contextlib import suppress

import pytest
from tests.relay.webchat.conftest import Open, World

from accord.relay.connector import InboundEvent, Platform, PlatformWithNames
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import webchat
from accord.relay.rules import Descriptor, Edit, FollowUp, GetChatInfo, Send, Typing


async def waiting(world: World) -> list[str]:
    """The chats in which something waits to be handed over."""
    bot_id = world.platform.bot_id
    return await world.platform.changes.read(lambda c: webchat.list_waiting_chats(c, bot_id, 2**53))


def test_the_descriptor_says_what_the_chat_can_do() -> None:
    assert Descriptor.from_dict(webchat.DESCRIPTOR.to_dict()) == webchat.DESCRIPTOR
    assert (webchat.DESCRIPTOR.platform, webchat.DESCRIPTOR.max_message_length) == ("webchat", 4000)
    assert (webchat.DESCRIPTOR.len_unit, webchat.DESCRIPTOR.markdown_dialect) == (
        "chars",
        "markdown",
    )
    assert webchat.DESCRIPTOR.supports_edit
    assert webchat.DESCRIPTOR.supports_threads
    assert not webchat.DESCRIPTOR.supports_draft_streaming


async def test_an_agent_sends_edits_and_types(open_world: Open, both: str) -> None:
    async with open_world(both) as world:
        platform: Platform = world.platform
        ann = await world.join("ann")
        asked = await ann.say(world.general.id, "what is it?")
        sent = await platform.perform(
            Send(world.general.id, "it is", str(asked["id"]), {"scope_id": world.space.id}), "r1"
        )
        assert sent.success
        assert sent.message_id is not None
        edited = await platform.perform(Edit(world.general.id, sent.message_id, "it is so"), "r2")
        assert edited.success
        assert (await platform.perform(Typing(world.general.id), "r3")).success
        page = await ann.ask("GET", f"chats/{world.general.id}/messages")
        answer = page["messages"][-1]
        assert answer["text"] == "it is so"
        assert answer["author"] == {"id": platform.bot_id, "name": "accord", "bot": True}
        assert answer["reply_to"] == asked["id"]
        assert answer["edited_at"] is not None
        assert world.context.texts == ["what is it?"]


async def test_agents_who_speak_through_one_bot_are_told_apart(world: World) -> None:
    ann = await world.join("ann")
    await ann.say(world.general.id, "who is there?", key="echo/mine")
    for key in ("echo/1", "clock/2/concierge", "01ABC"):
        await world.platform.perform(Send(world.general.id, "I am"), key)
    page = await ann.ask("GET", f"chats/{world.general.id}/messages")
    assert [each["agent"] for each in page["messages"]] == [None, "echo", "clock", None]


async def test_the_same_key_sends_the_same_message(world: World) -> None:
    ann = await world.join("ann")
    assert world.platform.idempotent
    first, again = await asyncio.gather(
        *(world.platform.perform(Send(world.general.id, "once"), "r1") for _ in range(2))
    )
    assert first == again
    assert await ann.texts(world.general.id) == ["once"]


async def test_what_cannot_be_done_is_said(world: World) -> None:
    ann = await world.join("ann")
    mine = await ann.say(world.general.id, "mine")
    chat = world.general.id
    for action in (
        Send("nowhere", "x"),
        Send(chat, " \n"),
        Send(chat, "\x00"),
        Send(chat, "x" * 4001),
        Edit(chat, str(mine["id"]), "theirs"),
        Edit(chat, "not a number", "x"),
        Edit(chat, "9" * 400, "x"),
        Edit(chat, "٣", "x"),
        Edit("nowhere", str(mine["id"]), "x"),
        Typing("nowhere"),
        GetChatInfo("nowhere"),
        FollowUp("s", "webchat.none", "x"),
    ):
        result = await world.platform.perform(action, "r")
        assert not result.success, action
        assert result.error
    assert await ann.texts(chat) == ["mine"]


async def test_what_cannot_be_shown_is_left_out_of_an_answer(world: World) -> None:
    ann = await world.join("ann")
    await world.platform.perform(Send(world.general.id, "\x1b[1mred\x00\ttab\n"), "r1")
    assert await ann.texts(world.general.id) == ["[1mred\ttab"]


async def test_a_bot_edits_only_what_it_said_in_that_chat(world: World) -> None:
    other = await world.chat.admin.create_channel(world.space.id, "other")
    sent = await world.platform.perform(Send(world.general.id, "here"), "r1")
    result = await world.platform.perform(Edit(other.id, sent.message_id or "", "there"), "r2")
    assert not result.success


async def test_an_agent_learns_where_it_is(world: World) -> None:
    ann = await world.join("ann")
    root = await ann.say(world.general.id, "root")
    thread = (await ann.ask("POST", f"messages/{root['id']}/thread"))["chat"]
    direct = (await ann.ask("POST", f"bots/{world.platform.bot_id}/chat"))["chat"]

    async def info(chat: str) -> object:
        return (await world.platform.perform(GetChatInfo(chat), "r")).chat_info

    scope = {"scope_id": world.space.id}
    assert await info(world.general.id) == {"name": "general", "type": "channel", **scope}
    parent = {"parent_chat_id": world.general.id}
    assert await info(thread) == {"name": "general", "type": "thread", **scope, **parent}
    assert await info(direct) == {"name": "ann", "type": "dm"}


async def test_what_a_crash_left_between_store_and_connector_is_handed_over_later(
    open_world: Open, both: str
) -> None:
    async with open_world(both) as world:
        ann = await world.join("ann")
        await ann.say(world.general.id, "safe")
        world.context.refuse()
        for text in ("one", "two"):
            await ann.say(world.general.id, text, expect=503)
    async with open_world(both, bound=False) as world:
        running = asyncio.create_task(world.platform.run(world.context))
        await world.context.until(lambda: world.context.texts == ["one", "two"])
        async with asyncio.timeout(10):
            while await waiting(world):  # noqa: ASYNC110 (the store tells nobody)
                await asyncio.sleep(0.01)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    async with open_world(both) as world:
        ann = await world.join("ann2")
        await ann.say(world.general.id, "three")
        assert world.context.texts == ["three"]


async def test_what_was_taken_but_not_marked_is_handed_over_again_under_the_same_id(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann = await world.join("ann")
    handed: list[str] = []
    ingest = world.context.ingest

    async def dies(inbound: InboundEvent) -> None:
        handed.append(inbound.event_id)
        await ingest(inbound)
        if len(handed) == 1:
            raise RelayError(Code.UNAVAILABLE, "died after taking it")

    monkeypatch.setattr(world.context, "ingest", dies)
    await ann.say(world.general.id, "once", expect=503, key="k")
    await ann.say(world.general.id, "once", key="k")
    assert handed[0] == handed[1]
    assert world.context.texts == ["once"]


async def test_messages_of_a_chat_are_handed_over_in_order(world: World) -> None:
    ann, bob = await world.join("ann"), await world.join("bob")
    await asyncio.gather(
        *(
            who.say(world.general.id, f"{who.me['name']} {n}")
            for n in range(8)
            for who in (ann, bob)
        )
    )
    assert world.context.texts == await ann.texts(world.general.id)


async def test_without_a_connector_nothing_is_confirmed(open_world: Open, where: str) -> None:
    async with open_world(where, bound=False) as world:
        ann = await world.join("ann")
        await ann.say(world.general.id, "hello?", expect=503)


async def test_a_lost_lease_ends_the_sweep(world: World) -> None:
    ann = await world.join("ann")
    world.context.refuse(Code.CONFLICT)
    await ann.say(world.general.id, "left", expect=409)
    with pytest.raises(RelayError):
        await world.platform.run(world.context)


async def test_a_bot_is_made_once(world: World) -> None:
    made = await world.chat.admin.make_bot("beta")
    assert await world.chat.admin.make_bot("BETA") == made
    assert [bot.name for bot in await world.chat.admin.bots()] == ["accord", "beta"]
    ann = await world.join("ann")
    with pytest.raises(RelayError):
        await world.chat.admin.make_bot(ann.me["name"])


def test_each_message_is_seen_by_one_bot() -> None:
    bots = [webchat.Account("1", "alpha"), webchat.Account("2", "beta")]
    assert webchat.addressed_bot("hi", None, bots) == ("1", False)
    assert webchat.addressed_bot("hi @beta and @alpha", "1", bots) == ("2", True)
    assert webchat.addressed_bot("hi", "2", bots) == ("2", True)
    assert webchat.addressed_bot("hi", "somebody", bots) == ("1", False)
    assert webchat.addressed_bot("hi", None, []) == (None, False)


async def test_the_operator_is_told_what_people_bots_and_chats_are_called(world: World) -> None:
    ann = await world.join("ann")
    direct = (await ann.ask("POST", f"bots/{world.platform.bot_id}/chat"))["chat"]
    said = await ann.say(world.general.id, "about this")
    thread = (await ann.ask("POST", f"messages/{said['id']}/thread"))["chat"]
    wanted = [ann.id, world.platform.bot_id, world.general.id, direct, thread, "unknown"]
    assert isinstance(world.platform, PlatformWithNames)
    assert await world.platform.names(wanted) == {
        ann.id: "ann",
        world.platform.bot_id: "accord",
        world.general.id: "#general",
        direct: "a direct message",
        thread: "a thread in #general",
    }
    assert await world.platform.names([]) == {}
