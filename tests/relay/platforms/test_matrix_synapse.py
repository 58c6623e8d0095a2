"""The Matrix platform against a real homeserver."""

import asyncio

import pytest
from tests.fakes.platform import KeptContext
from tests.relay.platforms.matrix_people import Person, Town, running, texts_in

from accord.kernel.clock import SystemClock
from accord.relay.connector import PlatformState
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import matrix
from accord.relay.rules import Edit, GetChatInfo, Send, Typing
from accord.testing.servers import synapse_server

pytestmark = pytest.mark.slow


async def test_an_invited_bot_joins_hears_and_answers(town: Town, ann: Person) -> None:
    settings, bot = await town.bot()
    async with running(settings) as (platform, context):
        room = await ann.room(name="kitchen", topic="food", invite=[bot.id])
        await ann.say(room, "before it joined")
        await ann.until_member(room, bot.id)
        first = await ann.say(room, "hello")
        await context.until(lambda: texts_in(context, room) == ["before it joined", "hello"])
        source = context.taken[-1].event.source
        assert (source.chat_type, source.chat_name, source.chat_topic) == (
            "channel",
            "kitchen",
            "food",
        )
        assert (source.scope_id, source.user_id, source.message_id) == (room, ann.id, first)
        result = await platform.perform(Send(room, "**hi** <you>", first), "key-1")
        assert result.success
        again = await platform.perform(Send(room, "**hi** <you>", first), "key-1")
        assert again.message_id == result.message_id
        (said,) = await ann.heard(room, bot.id, 1)
        assert said["formatted_body"] == "<strong>hi</strong> &lt;you&gt;"
        assert said["m.relates_to"] == {"m.in_reply_to": {"event_id": first}}
        assert (await platform.perform(Typing(room), "key-2")).success
        info = (await platform.perform(GetChatInfo(room), "key-3")).chat_info
        assert info == {"name": "kitchen", "type": "channel", "scope_id": room}
        assert result.message_id is not None
        changed = await platform.perform(Edit(room, result.message_id, "bye"), "key-4")
        assert changed.message_id == result.message_id
        *_, edit = await ann.heard(room, bot.id, 2)
        assert edit["m.new_content"]["body"] == "bye"
        assert texts_in(context, room) == ["before it joined", "hello"]


async def test_a_thread_is_a_chat_of_its_own_and_answers_stay_in_it(
    town: Town, ann: Person
) -> None:
    settings, bot = await town.bot()
    async with running(settings) as (platform, context):
        room = await ann.room(name="kitchen", invite=[bot.id])
        root = await ann.say(room, "root")
        relation = {"rel_type": "m.thread", "event_id": root, "is_falling_back": True}
        await ann.say(room, "in it", **{"m.relates_to": relation})
        await context.until(lambda: len(context.taken) == 2)
        source = context.taken[1].event.source
        assert source.chat_type == "thread"
        assert (source.thread_id, source.parent_chat_id, source.scope_id) == (root, room, room)
        assert (await platform.perform(Send(source.chat_id, "answer"), "k")).success
        (said,) = await ann.heard(room, bot.id, 1)
        assert said["m.relates_to"]["rel_type"] == "m.thread"
        assert said["m.relates_to"]["event_id"] == root
        assert await platform.can_view(ann.id, room, source.chat_id) is True


async def test_a_bot_that_was_away_misses_nothing_and_hears_nothing_twice(
    town: Town, ann: Person
) -> None:
    settings, bot = await town.bot()
    settings = settings.model_copy(update={"page": 5, "shown": 5})
    async with running(settings) as (_, context):
        room = await ann.room(name="kitchen", invite=[bot.id])
        await ann.say(room, "0")
        await context.until(lambda: texts_in(context, room) == ["0"])
    for number in range(1, 30):  # more than a batch shows, and pages of the gap
        await ann.say(room, str(number))
    async with running(settings, context):
        await ann.say(room, "30")
        await context.until(lambda: len(context.taken) >= 31)
    assert texts_in(context, room) == [str(number) for number in range(31)]


async def test_a_bot_that_is_new_here_is_not_told_the_past(town: Town, ann: Person) -> None:
    settings, bot = await town.bot()
    room = await ann.room(name="kitchen", invite=[bot.id])
    await bot.join(room)
    await ann.say(room, "long ago")
    async with running(settings) as (_, context):
        await ann.say(room, "now")
        await context.until(lambda: bool(context.taken))
        assert context.texts == ["now"]


async def test_an_invitation_from_before_the_first_start_is_followed_with_what_was_said_since(
    town: Town, ann: Person
) -> None:
    settings, bot = await town.bot()
    settings = settings.model_copy(update={"page": 5, "shown": 5})
    room = await ann.room(name="kitchen")
    await ann.say(room, "not for the bot")
    await ann.invite(room, bot.id)
    for number in range(20):
        await ann.say(room, str(number))
    context = KeptContext()
    async with running(settings, context):
        await context.until(lambda: len(context.taken) >= 20)
    assert context.texts == [str(number) for number in range(20)]


async def test_a_room_has_the_scope_of_a_space_only_if_both_say_so(town: Town, ann: Person) -> None:
    settings, bot = await town.bot()
    via = {"via": ["synapse.test"], "canonical": True}
    async with running(settings) as (platform, context):
        room = await ann.room(name="kitchen", invite=[bot.id])
        space = await ann.space(invite=[bot.id])
        for each in (room, space):
            await ann.until_member(each, bot.id)

        async def scope_of(text: str) -> str | None:
            await ann.say(room, text)
            await context.until(lambda: text in context.texts)
            return context.taken[-1].event.source.scope_id

        assert await scope_of("alone") == room
        await ann.set(room, "m.space.parent", space, via)
        assert await scope_of("claimed by the room") == room
        await ann.set(space, "m.space.child", room, {"via": ["synapse.test"]})
        assert await scope_of("by both") == space
        assert await platform.can_manage(ann.id, space, room) is True
        assert await platform.can_manage(ann.id, room, room) is False
        await ann.set(room, "m.space.parent", space, {})
        assert await scope_of("listed by the space") == room
        await ann.set(room, "m.space.parent", space, via)
        assert await scope_of("by both again") == space
        await ann.set(space, "m.space.child", room, {})
        assert await scope_of("unlisted") == room


async def test_a_space_that_the_bot_cannot_see_is_no_scope(town: Town, ann: Person) -> None:
    settings, bot = await town.bot()
    async with running(settings) as (_, context):
        room = await ann.room(name="kitchen", invite=[bot.id])
        space = await ann.space(room)
        await ann.set(room, "m.space.parent", space, {"via": ["synapse.test"], "canonical": True})
        await ann.say(room, "hello")
        await context.until(lambda: context.texts == ["hello"])
        assert context.taken[0].event.source.scope_id == room


async def test_two_alone_talk_directly_until_a_third_is_invited(
    town: Town, ann: Person, ben: Person
) -> None:
    settings, bot = await town.bot()
    async with running(settings) as (platform, context):
        room = await ann.room(preset="trusted_private_chat", is_direct=True, invite=[bot.id])
        await ann.say(room, "just us")
        await context.until(lambda: len(context.taken) == 1)
        first = context.taken[0]
        assert (first.event.source.chat_type, first.event.source.scope_id) == ("dm", None)
        assert first.addressed
        info = (await platform.perform(GetChatInfo(room), "k")).chat_info
        assert info == {"name": ann.id[1:].partition(":")[0], "type": "dm"}
        await ann.invite(room, ben.id)
        await ann.say(room, "not any more")
        await context.until(lambda: len(context.taken) == 2)
        second = context.taken[1]
        assert (second.event.source.chat_type, second.event.source.scope_id) == ("channel", room)
        assert not second.addressed


async def test_who_is_spoken_to_is_known(town: Town, ann: Person) -> None:
    settings, bot = await town.bot()
    async with running(settings) as (platform, context):
        room = await ann.room(name="kitchen", invite=[bot.id])
        await ann.say(room, "aside", **{"m.mentions": {}})
        await ann.say(room, "you", **{"m.mentions": {"user_ids": [bot.id]}})
        await ann.say(room, f"{bot.id[1:].partition(':')[0].upper()}: by name")
        await context.until(lambda: len(context.taken) == 3)
        own = (await platform.perform(Send(room, "I said"), "k")).message_id
        answer = {"m.in_reply_to": {"event_id": own}}
        await ann.say(room, "answer", **{"m.relates_to": answer, "m.mentions": {}})
        await context.until(lambda: len(context.taken) == 4)
        assert [each.addressed for each in context.taken] == [False, True, True, True]
        assert context.taken[3].event.reply_to_message_id == own
    # Another process knows nothing of what this one said.
    async with running(settings, context):
        await ann.say(room, "answer again", **{"m.relates_to": answer, "m.mentions": {}})
        await context.until(lambda: len(context.taken) == 5)
        assert context.taken[4].addressed


async def test_who_may_view_and_manage_is_asked_of_the_homeserver(
    town: Town, ann: Person, ben: Person
) -> None:
    settings, bot = await town.bot()
    async with running(settings) as (platform, context):
        room = await ann.room(name="kitchen", invite=[bot.id, ben.id])
        await ann.until_member(room, bot.id)
        assert await platform.can_view(ann.id, room, room) is True
        assert await platform.can_view(ben.id, room, room) is False
        await ben.join(room)
        assert await platform.can_view(ben.id, room, room) is True
        assert await platform.can_manage(ann.id, room, room) is True
        assert await platform.can_manage(ben.id, room, room) is False
        context.stale.clear()
        await ben.leave(room)
        await context.until(lambda: bool(context.stale))
        assert await platform.can_view(ben.id, room, room) is False
        await ann.kick(room, bot.id)
        hidden = await ann.room(name="attic")
        assert await platform.can_view(ann.id, hidden, hidden) is None
        assert await platform.can_manage(ann.id, hidden, hidden) is None


async def test_words_before_the_bot_was_put_out_are_not_lost(town: Town, ann: Person) -> None:
    settings, bot = await town.bot()
    async with running(settings) as (_, context):
        room = await ann.room(name="kitchen", invite=[bot.id])
        await ann.until_member(room, bot.id)
        await context.until(lambda: bool(context.stale))
    await ann.say(room, "farewell")
    await ann.kick(room, bot.id)
    other = await ann.room(name="hall", invite=[bot.id])
    async with running(settings, context) as (platform, _):
        await ann.say(other, "still here")
        await context.until(lambda: "still here" in context.texts)
        assert context.texts == ["farewell", "still here"]
        refused = await platform.perform(Send(room, "hello?"), "k")
        assert not refused.success
        assert refused.error is not None
        assert "M_FORBIDDEN" in refused.error


async def test_invitations_are_followed_by_rule(town: Town, ann: Person, ben: Person) -> None:
    settings, bot = await town.bot(invites=(ann.id,))
    encrypted = {
        "type": "m.room.encryption",
        "state_key": "",
        "content": {"algorithm": "m.megolm.v1.aes-sha2"},
    }
    async with running(settings):
        bens = await ben.room(name="cellar", invite=[bot.id])
        secret = await ann.room(name="vault", invite=[bot.id], initial_state=[encrypted])
        anns = await ann.room(name="kitchen", invite=[bot.id])
        await ann.until_member(anns, bot.id)
        await ben.until_member(bens, bot.id, "leave")
        await ann.until_member(secret, bot.id, "leave")


async def test_the_bot_says_nothing_in_the_clear_where_others_speak_in_secret(
    town: Town, ann: Person
) -> None:
    settings, bot = await town.bot()
    async with running(settings) as (platform, context):
        room = await ann.room(name="kitchen", invite=[bot.id])
        await ann.say(room, "open")
        await context.until(lambda: context.texts == ["open"])
        assert (await platform.perform(Send(room, "open"), "k1")).success
        secret = {"algorithm": "m.megolm.v1.aes-sha2"}
        await ann.set(room, "m.room.encryption", "", secret)
        await ann.say(room, "closed")
        await context.until(lambda: len(context.taken) == 2)
        refused = await platform.perform(Send(room, "closed"), "k2")
        assert refused.error is not None
        assert "encrypted" in refused.error
        assert len(await ann.messages(room, bot.id)) == 1


@pytest.mark.long
async def test_a_homeserver_that_is_killed_is_heard_again_when_it_is_back() -> None:
    with synapse_server() as server:
        async with Town.open(server) as town:
            ann = await town.person("ann")
            settings, bot = await town.bot()
            async with running(settings) as (_, context):
                room = await ann.room(name="kitchen", invite=[bot.id])
                await ann.say(room, "before")
                await context.until(lambda: context.texts == ["before"])
                server.kill()
                await context.until(lambda: context.standings[-1][0] is PlatformState.TROUBLED)
                await asyncio.to_thread(server.restart)
                await ann.say(room, "after")
                await context.until(lambda: context.texts == ["before", "after"], within=60)
                await context.until(lambda: context.standings[-1][0] is PlatformState.READY)


async def test_a_revoked_token_is_refused_and_shown_by_nobody(town: Town) -> None:
    settings, bot = await town.bot()
    await bot.ask("POST", "/logout", {})
    token = settings.access_token.get_secret_value()
    async with matrix.open_matrix(settings, SystemClock()) as platform:
        with pytest.raises(RelayError) as caught:
            await platform.run(KeptContext())
        assert caught.value.code is Code.UNAUTHORIZED
        assert token not in str(caught.value)
        refused = await platform.perform(Send("!room", "hello"), "k")
        assert token not in str(refused)
        assert not refused.success


async def test_a_token_of_somebody_else_is_refused(town: Town, ann: Person) -> None:
    settings, _ = await town.bot()
    other = settings.model_copy(update={"user_id": ann.id})
    async with matrix.open_matrix(other, SystemClock()) as platform:
        with pytest.raises(RelayError, match="another user"):
            await platform.run(KeptContext())


async def test_what_cannot_be_kept_holds_nobody_up(town: Town, ann: Person) -> None:
    settings, bot = await town.bot()
    async with running(settings) as (_, context):
        room = await ann.room(name="kitchen", invite=[bot.id])
        await ann.until_member(room, bot.id)
        deep: list[object] = []
        for _number in range(100):
            deep = [deep]
        odd = [
            {"msgtype": "m.text", "body": "odd", "m.mentions": {"user_ids": []}, "url": 7},
            {"msgtype": "m.text", "body": "deep", "beyond": deep},
            {"msgtype": "m.strange", "body": "strange", "formatted_body": ["x"]},
            {"msgtype": "m.image", "body": "cat", "url": "javascript:alert(1)"},
        ]
        for content in odd:
            await ann.send(room, content)
        await ann.send(room, {"ciphertext": "x"}, "m.room.encrypted")
        await ann.say(room, "plain")
        await context.until(lambda: "plain" in context.texts)
        assert context.texts == ["odd", "deep", "strange", "", "plain"]
        assert context.taken[3].event.media_urls == ()
