"""Who may see what: a private channel is not there for others, on any way to it."""

from typing import Any

import pytest
from tests.relay.webchat.conftest import Browser, Open, World

from accord.kernel.clock import SystemClock
from accord.relay.errors import RelayError
from accord.relay.platforms import webchat


async def secret_room(world: World, *insiders: Browser) -> webchat.Channel:
    room = await world.chat.admin.create_channel(world.space.id, "secret", private=True)
    for insider in insiders:
        await world.chat.admin.set_permission(room.id, insider.id, webchat.Level.WRITE)
    return room


async def test_a_private_channel_is_invisible_to_others_in_every_route(world: World) -> None:
    ann, eve = await world.join("ann"), await world.join("eve")
    room = await secret_room(world, ann)
    said = await ann.say(room.id, "between us")
    thread = (await ann.ask("POST", f"messages/{said['id']}/thread"))["chat"]
    inner = await ann.say(thread, "deeper")
    assert await ann.channels() == ["general", "secret"]
    assert await eve.channels() == ["general"]
    for chat in (room.id, thread):
        missing = await eve.ask("GET", "chats/NOSUCHCHAT/messages", expect=404)
        assert await eve.ask("GET", f"chats/{chat}/messages", expect=404) == missing
        assert await eve.say(chat, "let me in", expect=404) == missing
        assert await eve.ask("POST", f"chats/{chat}/typing", expect=404) == missing
    for message in (said, inner):
        missing = await eve.ask("PATCH", "messages/999999", {"text": "x"}, expect=404)
        path = f"messages/{message['id']}"
        assert await eve.ask("PATCH", path, {"text": "x"}, expect=404) == missing
        assert await eve.ask("POST", f"{path}/thread", expect=404) == missing
        answer = await eve.say(world.general.id, "?", expect=404, reply_to=message["id"])
        assert answer == missing
    assert world.context.texts == ["between us", "deeper"]


async def test_live_updates_tell_nothing_of_what_one_cannot_see(world: World) -> None:
    ann, eve = await world.join("ann"), await world.join("eve")
    room = await secret_room(world, ann)
    direct = (await ann.ask("POST", f"bots/{world.platform.bot_id}/chat"))["chat"]
    async with eve.live() as live:
        await ann.ask("POST", f"chats/{room.id}/typing")
        said = await ann.say(room.id, "between us")
        await ann.ask("PATCH", f"messages/{said['id']}", {"text": "between us!"})
        await ann.say(direct, "psst")
        await ann.say(world.general.id, "hello all")
        heard = await live.next()
        assert (heard["event"], heard["text"]) == ("message", "hello all")


async def test_a_direct_chat_is_its_users_alone(world: World) -> None:
    ann, eve = await world.join("ann", manager=True), await world.join("eve", manager=True)
    direct = (await ann.ask("POST", f"bots/{world.platform.bot_id}/chat"))["chat"]
    said = await ann.say(direct, "psst")
    await eve.ask("GET", f"chats/{direct}/messages", expect=404)
    await eve.say(direct, "me too", expect=404)
    await eve.ask("PATCH", f"messages/{said['id']}", {"text": "x"}, expect=404)
    assert (await eve.ask("GET", "me"))["bots"][0]["chat"] is None


async def test_other_spaces_are_not_there(world: World) -> None:
    ann = await world.join("ann", manager=True)
    other = await world.chat.admin.create_space("other")
    away = await world.chat.admin.create_channel(other.id, "away")
    assert [space["name"] for space in (await ann.ask("GET", "me"))["spaces"]] == ["home"]
    await ann.ask("GET", f"chats/{away.id}/messages", expect=404)
    assert not await world.platform.can_view(ann.id, other.id, away.id)


async def test_whoever_may_only_view_cannot_write(world: World) -> None:
    ann = await world.join("ann")
    said = await ann.say(world.general.id, "before")
    await world.chat.admin.set_permission(world.general.id, ann.id, webchat.Level.VIEW)
    assert await ann.texts(world.general.id) == ["before"]
    await ann.say(world.general.id, "x", expect=403)
    await ann.ask("POST", f"chats/{world.general.id}/typing", expect=403)
    await ann.ask("PATCH", f"messages/{said['id']}", {"text": "x"}, expect=403)
    await ann.ask("POST", f"messages/{said['id']}/thread", expect=403)
    await world.chat.admin.set_permission(world.general.id, ann.id, None)
    await ann.say(world.general.id, "after")


async def test_a_thread_that_is_there_may_be_read_by_whoever_may_view(world: World) -> None:
    ann, bob = await world.join("ann"), await world.join("bob")
    said = await ann.say(world.general.id, "root")
    thread = (await ann.ask("POST", f"messages/{said['id']}/thread"))["chat"]
    await world.chat.admin.set_permission(world.general.id, bob.id, webchat.Level.VIEW)
    assert (await bob.ask("POST", f"messages/{said['id']}/thread"))["chat"] == thread
    await bob.say(thread, "x", expect=403)


async def test_the_platform_answers_by_the_same_permissions(open_world: Open, both: str) -> None:
    async with open_world(both) as world:
        ann, bob = await world.join("ann"), await world.join("bob", manager=True)
        room = await secret_room(world)
        said = await bob.say(room.id, "root")
        thread = (await bob.ask("POST", f"messages/{said['id']}/thread"))["chat"]
        can_view, can_manage = world.platform.can_view, world.platform.can_manage
        scope = world.space.id
        assert await can_view(ann.id, scope, world.general.id)
        assert not await can_manage(ann.id, scope, world.general.id)
        assert await can_manage(bob.id, scope, room.id)
        for chat in (room.id, thread):
            assert await can_view(bob.id, scope, chat)
            assert not await can_view(ann.id, scope, chat)
            assert not await can_view(bob.id, None, chat)
            assert not await can_view(bob.id, "elsewhere", chat)
        await world.chat.admin.set_permission(room.id, ann.id, webchat.Level.MANAGE)
        assert await can_manage(ann.id, scope, thread)
        assert not await can_view("nobody", scope, world.general.id)
        assert not await can_view(ann.id, scope, "nowhere")


async def test_the_connector_forgets_what_it_knew_when_permissions_change(
    open_world: Open, both: str
) -> None:
    async with open_world(both) as world:
        ann = await world.join("ann")
        flushed = world.context.stale
        await world.context.until(lambda: bool(flushed))
        flushed.clear()
        # Another process, such as a command of the operator.
        async with webchat.open_admin(both, SystemClock()) as admin:
            await admin.set_permission(world.general.id, ann.id, webchat.Level.NONE)
        await world.context.until(lambda: flushed == [world.space.id])
        assert await ann.channels() == []


async def test_pages_learn_that_access_changed_and_not_where(world: World) -> None:
    ann, eve = await world.join("ann"), await world.join("eve")
    async with eve.live() as live:
        await secret_room(world, ann)
        assert await live.next() == {"event": "access"}


async def _none_says(live: Any, text: str) -> None:
    """Read to the end: what was on its way may come, but nothing that was said later."""
    while True:
        assert text not in str(await live.next())


async def test_a_removed_user_is_out_at_once_and_what_was_said_stays(world: World) -> None:
    ann, bob = await world.join("ann"), await world.join("bob")
    await ann.say(world.general.id, "I was here")
    async with ann.live() as live:
        await world.chat.admin.remove_user(ann.id)
        await bob.say(world.general.id, "she is gone")
        with pytest.raises(EOFError):
            await _none_says(live, "she is gone")
    await ann.ask("GET", "me", expect=401)
    await (await world.stranger()).ask("POST", "login", {"key": ann.key}, expect=401)
    assert not await world.platform.can_view(ann.id, world.space.id, world.general.id)
    assert await bob.texts(world.general.id) == ["I was here", "she is gone"]
    users = {user.name: user for user in await world.chat.admin.users()}
    assert users["ann"].is_removed
    assert users["bob"].spaces == (world.space.id,)


async def test_a_permission_needs_a_channel_and_a_member(world: World) -> None:
    ann = await world.join("ann")
    other = await world.chat.admin.create_space("other")
    away = await world.chat.admin.create_channel(other.id, "away")
    for chat, user in ((away.id, ann.id), ("nowhere", ann.id), (world.general.id, "nobody")):
        with pytest.raises(RelayError):
            await world.chat.admin.set_permission(chat, user, webchat.Level.MANAGE)
    given = {each.id: each.permissions for each in await world.chat.admin.channels()}
    assert given == {away.id: {}, world.general.id: {}}
