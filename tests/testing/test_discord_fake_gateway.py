"""The fake's gateway keeps to the documentation: sessions, sequence numbers, close codes."""

import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.fakes.discord.channels import Channel
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.intents import Intent
from tests.fakes.discord.opcodes import Close, GatewayTerms, Op
from tests.fakes.discord.people import User
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.discord.world import Permission
from tests.testing.discord_client import (
    TALKING,
    Line,
    calling,
    dialled,
    greeted,
    identity,
    ready,
)
from websockets.exceptions import InvalidStatus

from accord.testing import HarnessError, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def fake(clock: VirtualClock) -> AsyncIterator[FakeDiscord]:
    made = FakeDiscord(token="t0ken", clock=clock)
    async with made.serving():
        yield made


@pytest.fixture
def ada(fake: FakeDiscord) -> User:
    return fake.user("ada")


@pytest.fixture
def harbour(fake: FakeDiscord, ada: User) -> Guild:
    guild = fake.guild("Harbour")
    guild.join(ada)
    return guild


@pytest.fixture
def general(harbour: Guild) -> Channel:
    return harbour.channel("general")


async def test_a_session_hears_ready_then_its_guilds_then_what_is_written(
    fake: FakeDiscord, harbour: Guild, general: Channel, ada: User
) -> None:
    async with greeted(fake) as line:
        first = await line.identify("t0ken")
        assert (first["t"], first["s"]) == ("READY", 1)
        assert first["d"]["guilds"] == [{"id": harbour.id, "unavailable": True}]
        assert first["d"]["user"]["id"] == first["d"]["application"]["id"] == fake.bot.id
        guild = await line.hear_event("GUILD_CREATE")
        assert [each["id"] for each in guild["d"]["channels"]] == [general.id]
        written = ada.write(general, "hello", mentions=[fake.bot])
        heard = await line.hear_event("MESSAGE_CREATE")
        assert heard["s"] == 3
        assert heard["d"]["id"] == written.id
        assert heard["d"]["content"] == f"<@{fake.bot.id}> hello"
        assert [each["id"] for each in heard["d"]["mentions"]] == [fake.bot.id]
        assert heard["d"]["guild_id"] == harbour.id
        assert heard["d"]["member"]["roles"] == []


async def test_a_heartbeat_is_acknowledged_until_acks_are_silenced(fake: FakeDiscord) -> None:
    async with greeted(fake) as line:
        await line.say(Op.HEARTBEAT, None)
        assert (await line.hear())["op"] == Op.HEARTBEAT_ACK
        fake.silence_acks()
        await line.say(Op.HEARTBEAT, None)
        fake.gateway.ask_for_heartbeats()
        assert (await line.hear())["op"] == Op.HEARTBEAT


async def test_a_dropped_session_is_resumed_and_hears_what_it_missed_in_order(
    fake: FakeDiscord, general: Channel, ada: User
) -> None:
    async with ready(fake) as (line, told):
        ada.write(general, "one")
        last = (await line.hear_event("MESSAGE_CREATE"))["s"]
        fake.drop_sockets()
        assert await line.ended() is None
    await fake.until(lambda: fake.gateway.sockets == 0)
    for text in ("two", "three"):
        ada.write(general, text)
    path = told["resume_gateway_url"].removeprefix(fake.gateway.url) + "?v=10&encoding=json"
    async with dialled(fake, path) as line:
        assert (await line.hear())["op"] == Op.HELLO
        first = await line.resume("t0ken", told["session_id"], last)
        rest = [first, *await line.drain("RESUMED")]
        assert [each["s"] for each in rest] == [last + 1, last + 2, last + 3]
        assert [each["d"].get("content") for each in rest] == ["two", "three", None]
        ada.write(general, "four")
        assert (await line.hear_event("MESSAGE_CREATE"))["s"] == last + 4
    assert fake.gateway.paths[-1].startswith("/resume")


async def test_a_second_resume_does_not_hear_an_earlier_resumed_again(
    fake: FakeDiscord, general: Channel, ada: User
) -> None:
    async with ready(fake) as (_, told):
        fake.drop_sockets()
    for _ in range(2):
        async with greeted(fake) as line:
            await line.resume("t0ken", told["session_id"], 2)
            fake.drop_sockets()
    ada.write(general, "one")
    async with greeted(fake) as line:
        first = await line.resume("t0ken", told["session_id"], 2)
        assert first["t"] == "MESSAGE_CREATE"
        assert (await line.hear())["t"] == "RESUMED"


async def test_a_session_that_expired_is_invalid_and_cannot_be_resumed(fake: FakeDiscord) -> None:
    async with ready(fake) as (_, told):
        fake.drop_sockets()
    await fake.until(lambda: fake.gateway.sockets == 0)
    fake.expire_sessions()
    async with greeted(fake) as line:
        answer = await line.resume("t0ken", told["session_id"], 1)
        assert (answer["op"], answer["d"]) == (Op.INVALID_SESSION, False)
        assert (await line.identify("t0ken"))["t"] == "READY"


async def test_a_session_ends_some_minutes_after_its_socket(
    fake: FakeDiscord, clock: VirtualClock
) -> None:
    async with ready(fake) as (_, told):
        fake.drop_sockets()
    await fake.until(lambda: fake.gateway.sockets == 0)
    clock.advance(181)
    async with greeted(fake) as line:
        assert (await line.resume("t0ken", told["session_id"], 1))["op"] == Op.INVALID_SESSION


@pytest.mark.parametrize(("code", "kept"), [(1000, False), (1001, False), (4000, True)])
async def test_a_bot_that_leaves_for_good_cannot_resume(
    fake: FakeDiscord, code: int, kept: bool
) -> None:
    async with ready(fake) as (line, told):
        await line.socket.close(code)
    await fake.until(lambda: fake.gateway.sockets == 0)
    async with greeted(fake) as line:
        answer = await line.resume("t0ken", told["session_id"], 1)
        assert (answer["t"] == "RESUMED") is kept


async def test_the_bot_is_asked_to_reconnect_and_its_session_waits(fake: FakeDiscord) -> None:
    async with ready(fake) as (line, told):
        fake.ask_to_reconnect()
        assert (await line.hear())["op"] == Op.RECONNECT
        await line.socket.close(4000)
    async with greeted(fake) as line:
        assert (await line.resume("t0ken", told["session_id"], 1))["t"] == "RESUMED"


@pytest.mark.parametrize("resumable", [True, False])
async def test_an_invalidated_session_says_whether_it_can_be_resumed(
    fake: FakeDiscord, resumable: bool
) -> None:
    async with ready(fake) as (line, told):
        fake.gateway.invalidate(resumable=resumable)
        heard = await line.hear()
        assert (heard["op"], heard["d"]) == (Op.INVALID_SESSION, resumable)
    async with greeted(fake) as line:
        answer = await line.resume("t0ken", told["session_id"], 1)
        assert (answer["t"] == "RESUMED") is resumable


async def test_a_session_is_heard_on_its_newest_socket_only(
    fake: FakeDiscord, general: Channel, ada: User
) -> None:
    async with ready(fake) as (old, told), greeted(fake) as new:
        assert (await new.resume("t0ken", told["session_id"], 2))["t"] == "RESUMED"
        assert await old.ended() == Close.UNKNOWN_ERROR
        ada.write(general, "one")
        await new.hear_event("MESSAGE_CREATE")


async def test_a_bot_without_heartbeats_is_disconnected_and_may_resume() -> None:
    fake = FakeDiscord(token="t0ken", terms=GatewayTerms(heartbeat_interval=40))
    async with fake.serving():
        async with ready(fake) as (line, told):
            assert await line.ended() == Close.UNKNOWN_ERROR
        async with greeted(fake) as line:
            assert (await line.resume("t0ken", told["session_id"], 1))["t"] == "RESUMED"


async def _say(line: Line, payload: bytes | str) -> int | None:
    await line.socket.send(payload)
    return await line.ended()


BAD_FIRST_WORDS = [
    ("not json", Close.DECODE_ERROR),
    ("[1]", Close.DECODE_ERROR),
    ('{"op": true}', Close.DECODE_ERROR),
    ('{"op": 99}', Close.UNKNOWN_OPCODE),
    ('{"op": 0}', Close.UNKNOWN_OPCODE),
    ('{"op": 2}', Close.UNKNOWN_OPCODE),
    ('{"op": 2, "d": {"token": "t0ken"}}', Close.UNKNOWN_OPCODE),
    ('{"op": 6, "d": {"token": "t0ken", "seq": "1"}}', Close.UNKNOWN_OPCODE),
    ('{"op": 3, "d": {}}', Close.NOT_AUTHENTICATED),
    ('{"op": 1, "d": "' + "x" * 4096 + '"}', Close.DECODE_ERROR),
    ("[" * 4000, Close.DECODE_ERROR),
]


@pytest.mark.parametrize(("payload", "code"), BAD_FIRST_WORDS)
async def test_a_bot_that_says_nonsense_is_shown_the_door(
    fake: FakeDiscord, payload: str, code: Close
) -> None:
    async with greeted(fake) as line:
        assert await _say(line, payload) == code
    assert fake.gateway.closed == [code]


@pytest.mark.parametrize(
    ("details", "code"),
    [
        ({"token": "wrong"}, Close.AUTHENTICATION_FAILED),
        ({"token": "Bot t0ken"}, Close.AUTHENTICATION_FAILED),
        ({"shard": [1, 1]}, Close.INVALID_SHARD),
        ({"shard": "0/1"}, Close.INVALID_SHARD),
        ({"intents": 1 << 30}, Close.INVALID_INTENTS),
        ({"intents": -1}, Close.INVALID_INTENTS),
        ({"intents": int(Intent.GUILD_PRESENCES)}, Close.DISALLOWED_INTENTS),
    ],
)
async def test_a_wrong_identify_is_refused_with_its_own_code(
    fake: FakeDiscord, details: dict[str, object], code: Close
) -> None:
    async with greeted(fake) as line:
        await line.say(Op.IDENTIFY, {**identity("t0ken"), **details})
        assert await line.ended() == code
    assert fake.gateway.sessions == {}


async def test_an_unknown_version_is_refused(fake: FakeDiscord) -> None:
    async with dialled(fake, "/?v=3&encoding=json") as line:
        assert await line.ended() == Close.INVALID_API_VERSION


async def test_to_identify_twice_ends_the_session(fake: FakeDiscord) -> None:
    async with ready(fake) as (line, told):
        await line.say(Op.IDENTIFY, identity("t0ken"))
        assert await line.ended() == Close.ALREADY_AUTHENTICATED
    async with greeted(fake) as line:
        assert (await line.resume("t0ken", told["session_id"], 1))["op"] == Op.INVALID_SESSION


async def test_a_sequence_from_the_future_ends_the_session(fake: FakeDiscord) -> None:
    async with ready(fake) as (_, told):
        fake.drop_sockets()
    async with greeted(fake) as line:
        await line.say(Op.RESUME, {"token": "t0ken", "session_id": told["session_id"], "seq": 99})
        assert await line.ended() == Close.INVALID_SEQ


async def test_more_than_120_payloads_a_minute_are_too_many(
    fake: FakeDiscord, clock: VirtualClock
) -> None:
    async with ready(fake) as (line, _):
        for _ in range(119):
            await line.say(Op.PRESENCE_UPDATE, {"status": "online"})
        await fake.until(lambda: len(fake.gateway.received) == 120)
        assert fake.gateway.sockets == 1
        clock.advance(60)
        await line.say(Op.HEARTBEAT, 1)
        assert (await line.hear())["op"] == Op.HEARTBEAT_ACK
        for _ in range(120):
            await line.say(Op.PRESENCE_UPDATE, {"status": "online"})
        assert await line.ended() == Close.RATE_LIMITED


async def test_sessions_that_begin_too_close_together_are_invalid(clock: VirtualClock) -> None:
    fake = FakeDiscord(token="t0ken", clock=clock, terms=GatewayTerms(identify_seconds=5))
    async with fake.serving(), ready(fake), greeted(fake) as line:
        assert (await line.identify("t0ken"))["op"] == Op.INVALID_SESSION
        clock.advance(5)
        assert (await line.identify("t0ken"))["t"] == "READY"
        assert fake.gateway.bot_json()["session_start_limit"]["remaining"] == 998


async def test_what_the_bot_sent_is_kept_without_its_token(fake: FakeDiscord) -> None:
    async with ready(fake):
        assert "t0ken" not in repr(fake.gateway.received)


async def test_intents_decide_what_is_told(
    fake: FakeDiscord, harbour: Guild, general: Channel, ada: User
) -> None:
    async with ready(fake, Intent.DIRECT_MESSAGES) as (line, _):
        ada.write(general, "in the guild")
        harbour.role("crew")
        ada.write(fake.dm(ada), "directly")
        heard = await line.hear_event("MESSAGE_CREATE")
        assert heard["d"]["content"] == "directly"
        assert "guild_id" not in heard["d"]
        assert heard["s"] == 2


async def test_without_the_content_intent_only_what_concerns_the_bot_has_content(
    fake: FakeDiscord, general: Channel, ada: User
) -> None:
    async with ready(fake, TALKING & ~Intent.MESSAGE_CONTENT) as (line, _):
        plain = ada.write(general, "plain")
        ada.write(general, "named", mentions=[fake.bot])
        ada.write(general, "re", reply_to=plain, mentions=[fake.bot])
        ada.write(fake.dm(ada), "direct")
        heard = [(await line.hear_event("MESSAGE_CREATE"))["d"] for _ in range(4)]
        named = f"{fake.bot.mention} "
        assert [each["content"] for each in heard] == ["", f"{named}named", f"{named}re", "direct"]
        assert heard[2]["referenced_message"]["content"] == ""


async def test_what_the_bot_cannot_see_is_not_told(
    fake: FakeDiscord, harbour: Guild, general: Channel, ada: User
) -> None:
    closed = harbour.channel("closed", private=True)
    closed.overwrite(ada, allow=Permission.VIEW_CHANNEL)
    async with ready(fake) as (line, _):
        ada.write(closed, "unheard")
        ada.write(general, "heard")
        assert (await line.hear_event("MESSAGE_CREATE"))["d"]["content"] == "heard"
        thread = closed.thread("talk", ada)
        closed.overwrite(fake.bot, allow=Permission.VIEW_CHANNEL)
        changed = await line.hear_event("CHANNEL_UPDATE")
        assert {each["type"] for each in changed["d"]["permission_overwrites"]} == {0, 1}
        gained = await line.hear_event("THREAD_LIST_SYNC")
        assert [each["id"] for each in gained["d"]["threads"]] == [thread.id]
        ada.write(closed, "heard, too")
        assert (await line.hear_event("MESSAGE_CREATE"))["d"]["content"] == "heard, too"


async def test_each_change_of_the_world_is_its_own_event(
    fake: FakeDiscord, harbour: Guild, general: Channel, ada: User
) -> None:
    async with ready(fake, TALKING | Intent.GUILD_MESSAGE_TYPING) as (line, _):
        message = ada.write(general, "one")
        ada.edit(message, "two")
        ada.type_in(general)
        ada.delete(message)
        crew = harbour.role("crew", Permission.MANAGE_CHANNELS)
        crew.change(Permission.ADMINISTRATOR)
        harbour.change_roles(ada, [crew])
        harbour.delete_role(crew)
        thread = general.thread("talk", ada)
        thread.archive()
        thread.delete()
        general.rename("specific")
        general.delete()
        harbour.change_owner(ada)
        bob = fake.user("bob")
        harbour.join(bob)
        harbour.leave(bob)
        harbour.leave(fake.bot)
        heard = await line.drain("GUILD_DELETE")
    assert [each["t"] for each in heard] == [
        "MESSAGE_CREATE",
        "MESSAGE_UPDATE",
        "TYPING_START",
        "MESSAGE_DELETE",
        "GUILD_ROLE_CREATE",
        "GUILD_ROLE_UPDATE",
        "GUILD_MEMBER_UPDATE",
        "GUILD_ROLE_DELETE",
        "THREAD_CREATE",
        "THREAD_UPDATE",
        "THREAD_DELETE",
        "CHANNEL_UPDATE",
        "CHANNEL_DELETE",
        "GUILD_UPDATE",
        "GUILD_MEMBER_ADD",
        "GUILD_MEMBER_REMOVE",
        "GUILD_DELETE",
    ]
    numbers = [each["s"] for each in heard]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


async def test_a_preview_of_a_link_is_an_update_that_is_no_edit(
    fake: FakeDiscord, general: Channel, ada: User
) -> None:
    async with ready(fake) as (line, _):
        ada.write(general, "https://example.org/").unfurl()
        await line.hear_event("MESSAGE_CREATE")
        heard = (await line.hear_event("MESSAGE_UPDATE"))["d"]
        assert heard["edited_timestamp"] is None
        assert len(heard["embeds"]) == 1


async def test_a_guild_can_fall_out_and_come_back(fake: FakeDiscord, harbour: Guild) -> None:
    async with ready(fake) as (line, _):
        harbour.fall_out()
        harbour.come_back()
        gone = await line.hear_event("GUILD_DELETE")
        assert gone["d"] == {"id": harbour.id, "unavailable": True}
        assert (await line.hear_event("GUILD_CREATE"))["d"]["id"] == harbour.id


async def test_a_webhook_is_a_bot_without_membership(fake: FakeDiscord, general: Channel) -> None:
    async with ready(fake) as (line, _):
        fake.webhook(general, "news", "something happened")
        heard = (await line.hear_event("MESSAGE_CREATE"))["d"]
        assert heard["webhook_id"] == heard["author"]["id"]
        assert heard["author"]["bot"] is True
        assert "member" not in heard


async def test_only_the_bot_itself_is_told_in_a_guild_without_presences(
    fake: FakeDiscord, harbour: Guild
) -> None:
    async with greeted(fake) as line:
        await line.identify("t0ken")
        told = (await line.hear_event("GUILD_CREATE"))["d"]
        assert [each["user"]["id"] for each in told["members"]] == [fake.bot.id]
        assert told["member_count"] == 3


async def test_a_session_that_missed_too_much_is_invalid(
    fake: FakeDiscord, general: Channel, ada: User
) -> None:
    async with ready(fake) as (_, told):
        fake.drop_sockets()
    await fake.until(lambda: fake.gateway.sockets == 0)
    (session,) = fake.gateway.sessions.values()
    for _ in range(10_001):
        session.dispatch("TYPING_START", {})
    async with greeted(fake) as line:
        assert (await line.resume("t0ken", told["session_id"], 2))["op"] == Op.INVALID_SESSION


async def test_a_private_thread_is_told_to_a_bot_that_is_in_it(
    fake: FakeDiscord, general: Channel, ada: User
) -> None:
    async with ready(fake) as (line, _):
        thread = general.thread("secret", ada, private=True)
        ada.write(thread, "unheard")
        thread.add_to_thread(fake.bot)
        assert (await line.hear_event("THREAD_CREATE"))["d"]["id"] == thread.id
        added = await line.hear_event("THREAD_MEMBERS_UPDATE")
        assert [each["user_id"] for each in added["d"]["added_members"]] == [fake.bot.id]
        ada.write(thread, "heard")
        assert (await line.hear_event("MESSAGE_CREATE"))["d"]["content"] == "heard"


async def test_who_else_joins_a_thread_is_told_only_to_those_who_ask_about_members(
    fake: FakeDiscord, general: Channel, ada: User
) -> None:
    thread = general.thread("talk", fake.bot)
    async with ready(fake, Intent.GUILDS | Intent.GUILD_MESSAGES) as (line, _):
        thread.add_to_thread(ada)
        ada.write(thread, "here")
        await line.hear_event("MESSAGE_CREATE")
    async with ready(fake, TALKING) as (line, _):
        thread.remove_from_thread(ada)
        heard = await line.hear_event("THREAD_MEMBERS_UPDATE")
        assert heard["d"]["removed_member_ids"] == [ada.id]


async def test_guilds_are_divided_among_shards_and_direct_messages_go_to_the_first(
    fake: FakeDiscord, clock: VirtualClock, ada: User
) -> None:
    guilds = []
    for number in range(4):
        clock.advance(0.001)  # snowflakes of one millisecond are of one shard
        guilds.append(fake.guild(f"g{number}"))
    async with greeted(fake) as zero, greeted(fake) as one:
        told = [
            (await line.identify("t0ken", shard=[number, 2]))["d"]
            for number, line in enumerate((zero, one))
        ]
        seen = [[int(each["id"]) for each in each_told["guilds"]] for each_told in told]
        assert all((each >> 22) % 2 == number for number in (0, 1) for each in seen[number])
        assert sorted(seen[0] + seen[1]) == [int(each.id) for each in guilds]
        ada.write(fake.dm(ada), "hello")
        assert (await zero.drain("MESSAGE_CREATE"))[-1]["d"]["content"] == "hello"
        for guild in guilds:
            guild.role("crew")
        for number, line in enumerate((zero, one)):
            for each in seen[number]:
                heard = (await line.drain("GUILD_ROLE_CREATE"))[-1]["d"]
                assert heard["guild_id"] == str(each)


async def test_a_revoked_token_ends_the_session_and_opens_no_other(fake: FakeDiscord) -> None:
    async with ready(fake) as (line, _):
        fake.revoke_token()
        assert await line.ended() == Close.AUTHENTICATION_FAILED
    async with greeted(fake) as line:
        await line.say(Op.IDENTIFY, identity("t0ken"))
        assert await line.ended() == Close.AUTHENTICATION_FAILED
    with pytest.raises(HarnessError, match="no token"):
        _ = fake.token
    fake.new_token("another")
    async with ready(fake):
        pass


async def test_no_socket_is_accepted_during_an_outage(
    fake: FakeDiscord, clock: VirtualClock
) -> None:
    fake.outage(60, status=502)
    with pytest.raises(InvalidStatus):
        async with greeted(fake):
            pass
    clock.advance(60)
    async with greeted(fake):
        pass


async def test_a_test_can_let_the_gateway_talk_nonsense_or_say_nothing(fake: FakeDiscord) -> None:
    async with ready(fake) as (line, _):
        fake.gateway.dispatch("MESSAGE_CREATE", None)
        assert (await line.hear_event("MESSAGE_CREATE"))["d"] is None
        fake.gateway.babble(b"not json")
        assert await line.socket.recv() == "not json"
    fake.gateway.greets = False
    async with dialled(fake) as line:
        await line.say(Op.HEARTBEAT, None)
        assert (await line.hear())["op"] == Op.HEARTBEAT_ACK


async def test_sessions_that_nobody_came_back_to_are_forgotten(
    fake: FakeDiscord, clock: VirtualClock
) -> None:
    async with ready(fake):
        fake.drop_sockets()
    await fake.until(lambda: fake.gateway.sockets == 0)
    clock.advance(181)
    async with ready(fake) as (_, told):
        assert list(fake.gateway.sessions) == [told["session_id"]]


async def test_a_compressed_stream_is_inflated_with_one_context(
    fake: FakeDiscord, general: Channel, ada: User
) -> None:
    async with dialled(fake, "/?v=10&encoding=json&compress=zlib-stream") as line:
        inflate = zlib.decompressobj()

        async def hear() -> Any:
            data = await line.socket.recv()
            assert isinstance(data, bytes)
            assert data.endswith(b"\x00\x00\xff\xff")
            return json.loads(inflate.decompress(data))

        assert (await hear())["op"] == Op.HELLO
        await line.say(Op.IDENTIFY, identity("t0ken"))
        assert [(await hear())["t"] for _ in range(2)] == ["READY", "GUILD_CREATE"]
        ada.write(general, "hello")
        assert (await hear())["d"]["content"] == "hello"


async def test_members_are_asked_for_over_the_gateway(
    fake: FakeDiscord, harbour: Guild, ada: User
) -> None:
    async def asked(line: Line, **form: Any) -> list[str]:
        await line.say(Op.REQUEST_GUILD_MEMBERS, {"guild_id": harbour.id, **form})
        told = (await line.hear_event("GUILD_MEMBERS_CHUNK"))["d"]
        assert (told["chunk_index"], told["chunk_count"]) == (0, 1)
        return [each["user"]["username"] for each in told["members"]]

    async with ready(fake) as (line, _):
        assert sorted(await asked(line, query="", limit=0)) == ["ada", "bot", "owner of Harbour"]
        assert await asked(line, query="a", limit=5) == ["ada"]
        assert await asked(line, user_ids=[int(ada.id), "1"]) == ["ada"]
        await line.say(Op.REQUEST_GUILD_MEMBERS, {"guild_id": harbour.id})
        assert await line.ended() == Close.UNKNOWN_OPCODE
    async with ready(fake, Intent.GUILDS) as (line, _):
        assert await asked(line, user_ids=ada.id) == ["ada"]
        form = {"guild_id": harbour.id, "query": "", "limit": 0}
        await line.say(Op.REQUEST_GUILD_MEMBERS, form)
        assert await line.ended() == Close.DISALLOWED_INTENTS


async def test_the_url_of_the_gateway_is_asked_of_the_api(fake: FakeDiscord) -> None:
    async with calling(fake) as client:
        told = (await client.get("/gateway/bot")).json()
    assert told["url"] == fake.gateway.url
    assert told["shards"] == 1
    assert told["session_start_limit"]["max_concurrency"] == 1
