"""People talk: post, edit, answer, read, in channels, threads and direct chats."""

from typing import Any

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from tests.relay.webchat.conftest import Open, World

from accord.relay.connector import InboundKind
from accord.relay.errors import Code
from accord.relay.platforms import webchat
from accord.relay.rules import Send
from accord.storage import open_store


async def test_what_one_writes_others_read_and_the_connector_has(
    open_world: Open, both: str
) -> None:
    async with open_world(both) as world:
        ann, bob = await world.join("ann"), await world.join("bob")
        said = await ann.say(world.general.id, "hello")
        assert world.context.texts == ["hello"]
        page = await bob.ask("GET", f"chats/{world.general.id}/messages")
        assert page["messages"] == [said]
        assert said["author"] == {"id": ann.id, "name": "ann", "bot": False}


async def test_an_event_says_where_it_comes_from(world: World) -> None:
    ann = await world.join("ann")
    said = await ann.say(world.general.id, "hello")
    (inbound,) = world.context.taken
    source = inbound.event.source
    assert (source.platform, source.chat_type, source.chat_id) == (
        "webchat",
        "channel",
        world.general.id,
    )
    assert (source.scope_id, source.user_id, source.user_name, source.chat_name) == (
        world.space.id,
        ann.id,
        "ann",
        "general",
    )
    assert source.thread_id is None
    assert inbound.event.message_id == str(said["id"])
    assert inbound.bot_id == world.platform.bot_id
    assert (inbound.addressed, inbound.author_is_bot) == (False, False)


async def test_a_bot_is_addressed_by_its_name(world: World) -> None:
    ann = await world.join("ann")
    spoken = ["@accord please", "so, @Accord.", "(@ACCORD)"]
    others = ["mail@accord.example", "@accordion", "accord", "@@accord"]
    for text in spoken + others:
        await ann.say(world.general.id, text)
    assert [each.event.text for each in world.context.taken if each.addressed] == spoken


async def test_a_thread_is_a_chat_of_its_own_below_its_channel(world: World) -> None:
    ann, bob = await world.join("ann"), await world.join("bob")
    root = await ann.say(world.general.id, "root")
    thread = (await bob.ask("POST", f"messages/{root['id']}/thread"))["chat"]
    assert (await ann.ask("POST", f"messages/{root['id']}/thread"))["chat"] == thread
    await bob.say(thread, "reply")
    source = world.context.taken[-1].event.source
    assert (source.chat_type, source.chat_id, source.thread_id, source.parent_chat_id) == (
        "thread",
        thread,
        thread,
        world.general.id,
    )
    assert source.scope_id == world.space.id
    assert await ann.texts(world.general.id) == ["root"]
    page = await ann.ask("GET", f"chats/{thread}/messages")
    assert [each["text"] for each in page["messages"]] == ["reply"]
    assert page["root"]["text"] == "root"
    assert page["root"]["thread"] == {"id": thread, "count": 1}


async def test_threads_do_not_nest_and_direct_chats_have_none(world: World) -> None:
    ann = await world.join("ann")
    root = await ann.say(world.general.id, "root")
    thread = (await ann.ask("POST", f"messages/{root['id']}/thread"))["chat"]
    inner = await ann.say(thread, "inner")
    direct = (await ann.ask("POST", f"bots/{world.platform.bot_id}/chat"))["chat"]
    private = await ann.say(direct, "psst")
    for message in (inner, private):
        await ann.ask("POST", f"messages/{message['id']}/thread", expect=400)


async def test_a_direct_chat_with_a_bot_has_no_scope(world: World) -> None:
    ann = await world.join("ann")
    chat = (await ann.ask("POST", f"bots/{world.platform.bot_id}/chat"))["chat"]
    assert (await ann.ask("POST", f"bots/{world.platform.bot_id}/chat"))["chat"] == chat
    await ann.say(chat, "psst")
    (inbound,) = world.context.taken
    assert inbound.event.source.is_dm
    assert inbound.event.source.scope_id is None
    assert inbound.addressed
    assert (await ann.ask("GET", "me"))["bots"][0]["chat"] == chat


async def test_an_answer_to_the_bot_addresses_it(world: World) -> None:
    ann = await world.join("ann")
    sent = await world.platform.perform(Send(world.general.id, "yes?"), "r1")
    assert sent.message_id is not None
    answer = await ann.say(world.general.id, "no", reply_to=int(sent.message_id))
    assert answer["reply_to"] == int(sent.message_id)
    (inbound,) = world.context.taken
    assert inbound.addressed
    assert inbound.event.reply_to_message_id == sent.message_id


async def test_stop_is_a_wish_to_interrupt_and_no_message_to_an_agent(world: World) -> None:
    ann = await world.join("ann")
    for text in ("please /stop", "/Stop"):
        await ann.say(world.general.id, text)
    kinds = [each.kind for each in world.context.taken]
    assert kinds == [InboundKind.MESSAGE, InboundKind.INTERRUPT]


async def test_a_message_is_edited_by_its_author_only(world: World) -> None:
    ann, bob = await world.join("ann"), await world.join("bob")
    said = await ann.say(world.general.id, "helo")
    edited = await ann.ask("PATCH", f"messages/{said['id']}", {"text": "hello"})
    assert edited["text"] == "hello"
    assert edited["edited_at"] is not None
    refused = await bob.ask("PATCH", f"messages/{said['id']}", {"text": "bye"}, expect=403)
    assert refused["error"] == "forbidden"
    assert await bob.texts(world.general.id) == ["hello"]
    assert world.context.texts == ["helo"]


async def test_the_same_key_says_nothing_twice(world: World) -> None:
    ann, bob = await world.join("ann"), await world.join("bob")
    first = await ann.say(world.general.id, "once", key="k")
    assert await ann.say(world.general.id, "once", key="k") == first
    assert (await bob.say(world.general.id, "mine", key="k"))["id"] != first["id"]
    assert world.context.texts == ["once", "mine"]


async def test_history_is_read_in_pages(world: World) -> None:
    ann = await world.join("ann")
    said = [(await ann.say(world.general.id, str(number)))["text"] for number in range(5)]
    path = f"chats/{world.general.id}/messages?limit=2"
    read: list[str] = []
    page: dict[str, Any] = {"more": True, "messages": []}
    while page["more"]:
        before = f"&before={page['messages'][0]['id']}" if page["messages"] else ""
        page = await ann.ask("GET", path + before)
        read = [each["text"] for each in page["messages"]] + read
    assert read == said


async def test_a_second_bot_sees_only_what_is_for_it(open_world: Open, where: str) -> None:
    async with open_world(where) as world:
        await world.chat.admin.make_bot("beta")
    async with open_world(where) as world:
        first, second = (platform.bot_id for platform in world.chat.platforms)
        ann = await world.join("ann")
        await ann.say(world.general.id, "to nobody")
        await ann.say(world.general.id, "@beta hi")
        await ann.say(world.general.id, "@nobody @accord hi")
        assert [each.bot_id for each in world.context.taken] == [first, second, first]
        assert len({each.event_id for each in world.context.taken}) == 3


async def test_the_revision_makes_exactly_the_declared_tables(both: str) -> None:
    ours = {name for name in webchat.WEBCHAT.metadata.tables if not name.startswith("journal")}
    only = {"include_name": lambda name, kind, _: kind != "table" or name in ours}
    async with open_store(both, webchat.WEBCHAT) as store:
        found = await store.read(
            lambda c: compare_metadata(
                MigrationContext.configure(c, opts=only),
                webchat.WEBCHAT.metadata,
            )
        )
    assert [each for each in found if "journal" not in str(each)] == []


async def test_while_the_connector_is_away_nothing_is_confirmed_and_nothing_lost(
    world: World,
) -> None:
    ann = await world.join("ann")
    world.context.refuse()
    refused = await ann.say(world.general.id, "one", expect=503, key="k")
    assert refused["error"] == "unavailable"
    world.context.refusing = None
    await ann.say(world.general.id, "two")
    assert world.context.texts == ["one", "two"]
    await ann.say(world.general.id, "one", key="k")
    assert world.context.texts == ["one", "two"]


async def test_what_can_never_be_kept_does_not_hold_back_the_rest(world: World) -> None:
    ann = await world.join("ann")
    world.context.refuse(Code.BAD_REQUEST)
    await ann.say(world.general.id, "poison")
    world.context.refusing = None
    await ann.say(world.general.id, "fine")
    assert world.context.texts == ["fine"]
