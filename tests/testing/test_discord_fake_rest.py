"""The fake's REST API checks what the service checks, in its own error form."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.fakes.discord.channels import Channel, ChannelType, Overwrite
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.intents import Intent
from tests.fakes.discord.messages import Attachment
from tests.fakes.discord.people import User
from tests.fakes.discord.rest.api import Rate, RateTerms
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.discord.world import Permission
from tests.testing.discord_client import USER_AGENT, calling, ready

from accord.testing import HarnessError, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def fake(clock: VirtualClock) -> AsyncIterator[FakeDiscord]:
    made = FakeDiscord(token="t0ken", clock=clock, rates=RateTerms(messages=Rate(50, 5.0)))
    async with made.serving():
        yield made


@pytest.fixture
async def api(fake: FakeDiscord) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(fake) as client:
        yield client


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


def _messages(channel: Channel) -> str:
    return f"/channels/{channel.id}/messages"


def _code(answer: httpx.Response) -> tuple[int, int]:
    return answer.status_code, answer.json()["code"]


async def test_what_the_bot_says_is_kept_and_can_be_changed(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel
) -> None:
    made = (await api.post(_messages(general), json={"content": "hello"})).json()
    assert fake.said(general) == ["hello"]
    assert made["author"]["id"] == fake.bot.id
    changed = await api.patch(f"{_messages(general)}/{made['id']}", json={"content": "hi"})
    assert changed.json()["edited_timestamp"] is not None
    assert fake.said(general) == ["hi"]
    assert fake.messages(general)[0].texts == ["hello", "hi"]
    gone = await api.delete(f"{_messages(general)}/{made['id']}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert fake.said(general) == []


async def test_the_bot_hears_itself(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel
) -> None:
    async with ready(fake) as (line, _):
        await api.post(_messages(general), json={"content": "hello", "nonce": "n1"})
        heard = (await line.hear_event("MESSAGE_CREATE"))["d"]
        assert (heard["author"]["id"], heard["nonce"]) == (fake.bot.id, "n1")


@pytest.mark.parametrize("shown", [None, "t0ken", "Bearer t0ken", "Bot wrong"])
async def test_a_call_without_the_token_is_unauthorized(
    fake: FakeDiscord, shown: str | None
) -> None:
    headers = {} if shown is None else {"Authorization": shown}
    async with httpx.AsyncClient(base_url=fake.api_url, trust_env=False) as client:
        answer = await client.get("/users/@me", headers={**headers, "User-Agent": USER_AGENT})
    assert answer.status_code == 401
    assert answer.json() == {"message": "401: Unauthorized", "code": 0}
    assert fake.api.invalid_requests == 1


async def test_a_client_that_does_not_say_what_it_is_is_blocked(
    fake: FakeDiscord, api: httpx.AsyncClient
) -> None:
    answer = await api.get("/users/@me", headers={"User-Agent": "curl/8"})
    assert _code(answer) == (403, 40333)


@pytest.mark.parametrize("prefix", ["/api", "/api/v6", "/api/v11"])
async def test_another_version_of_the_api_is_refused(
    fake: FakeDiscord, api: httpx.AsyncClient, prefix: str
) -> None:
    answer = await api.get(f"{fake.url}{prefix}/users/@me")
    assert _code(answer) == (400, 50041)


@pytest.mark.parametrize(
    "head",
    [
        b"GET //[ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD /api/v10/users/@me HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /api/v10/users/@me HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET //[?v=10 HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
        b"x" * 100_000,
        b"",
    ],
)
async def test_whatever_is_sent_the_fake_goes_on(
    fake: FakeDiscord, api: httpx.AsyncClient, head: bytes
) -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(fake.url).port)
    writer.write(head)
    writer.write_eof()
    with contextlib.suppress(ConnectionError):
        await reader.read()
    writer.close()
    assert (await api.get("/users/@me")).status_code == 200
    assert failures == []


async def test_an_end_with_open_connections_is_quiet() -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    fake = FakeDiscord()
    async with fake.serving():
        port = httpx.URL(fake.url).port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 404")
    assert b"Not Found" in await reader.read()
    writer.close()
    await writer.wait_closed()
    assert failures == []


async def test_a_revoked_token_is_unauthorized(fake: FakeDiscord, api: httpx.AsyncClient) -> None:
    assert (await api.get("/users/@me")).json()["id"] == fake.bot.id
    fake.revoke_token()
    assert (await api.get("/users/@me")).status_code == 401


async def test_an_enforced_nonce_says_a_thing_once(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel, clock: VirtualClock
) -> None:
    form = {"content": "once", "nonce": "n1", "enforce_nonce": True}
    first = (await api.post(_messages(general), json=form)).json()
    again = (await api.post(_messages(general), json={**form, "content": "twice"})).json()
    assert (again["id"], again["content"]) == (first["id"], "once")
    await api.post(_messages(general), json={"content": "no nonce"})
    await api.post(
        _messages(general), json={"content": "None", "nonce": "None"} | {"enforce_nonce": True}
    )
    assert fake.said(general) == ["once", "no nonce", "None"]
    clock.advance(3600)
    assert (await api.post(_messages(general), json=form)).json()["id"] != first["id"]


async def test_a_lost_answer_has_its_effect_and_a_dropped_request_has_none(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel
) -> None:
    form = {"content": "once", "nonce": "n1", "enforce_nonce": True}
    fake.drop_requests()
    with pytest.raises(httpx.TransportError):
        await api.post(_messages(general), json=form)
    assert fake.said(general) == []
    fake.lose_answers()
    with pytest.raises(httpx.TransportError):
        await api.post(_messages(general), json=form)
    assert (await api.post(_messages(general), json=form)).status_code == 200
    assert fake.said(general) == ["once"]


async def test_messages_are_listed_newest_first_in_pages(
    api: httpx.AsyncClient, general: Channel, ada: User
) -> None:
    ids = [ada.write(general, str(number)).id for number in range(7)]

    async def listed(**query: Any) -> list[str]:
        answer = await api.get(_messages(general), params=query)
        return [each["content"] for each in answer.json()]

    assert await listed() == ["6", "5", "4", "3", "2", "1", "0"]
    assert await listed(limit=2) == ["6", "5"]
    assert await listed(limit=2, before=ids[5]) == ["4", "3"]
    assert await listed(limit=2, after=ids[1]) == ["3", "2"]
    assert await listed(limit=3, around=ids[3]) == ["4", "3", "2"]
    assert await listed(after=ids[6]) == []


@pytest.mark.parametrize(
    ("query", "member"),
    [
        ({"limit": "0"}, "limit"),
        ({"limit": "101"}, "limit"),
        ({"limit": "x"}, "limit"),
        ({"after": "x"}, "after"),
    ],
)
async def test_a_list_with_a_wrong_query_is_refused(
    api: httpx.AsyncClient, general: Channel, query: dict[str, str], member: str
) -> None:
    answer = await api.get(_messages(general), params=query)
    assert _code(answer) == (400, 50035)
    assert list(answer.json()["errors"]) == [member]


@pytest.mark.parametrize(
    ("form", "where", "code"),
    [
        ({"content": "x" * 2001}, ("content",), "BASE_TYPE_MAX_LENGTH"),
        ({"content": 5}, ("content",), "BASE_TYPE_STRING"),
        ({"content": "x", "nonce": "n" * 26}, ("nonce",), "BASE_TYPE_MAX_LENGTH"),
        ({"content": "x", "tts": "yes"}, ("tts",), "BASE_TYPE_BOOLEAN"),
        ({"content": "x", "embeds": [5]}, ("embeds", "0"), "MODEL_TYPE_CONVERT"),
        (
            {"content": "x", "message_reference": {"message_id": "1"}},
            ("message_reference",),
            "REPLIES_UNKNOWN_MESSAGE",
        ),
        (
            {"content": "x", "allowed_mentions": {"parse": ["nobody"]}},
            ("allowed_mentions", "parse"),
            "BASE_TYPE_CHOICES",
        ),
        (
            {"content": "x", "allowed_mentions": {"parse": ["users"], "users": ["1"]}},
            ("allowed_mentions",),
            "MESSAGE_ALLOWED_MENTIONS_PARSE_EXCLUSIVE",
        ),
    ],
)
async def test_a_wrong_form_is_refused_and_says_nothing(
    fake: FakeDiscord,
    api: httpx.AsyncClient,
    general: Channel,
    form: dict[str, Any],
    where: tuple[str, ...],
    code: str,
) -> None:
    answer = await api.post(_messages(general), json=form)
    assert _code(answer) == (400, 50035)
    found = answer.json()["errors"]
    for each in where:
        found = found[each]
    assert found["_errors"][0]["code"] == code
    assert fake.said(general) == []


@pytest.mark.parametrize("body", [b"{", b"[]", b"5", b"null", b"[" * 100_000, b"\xff"])
async def test_a_body_that_is_no_form_is_refused(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel, body: bytes
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await api.post(_messages(general), content=body, headers=headers)
    assert answer.status_code == 400
    assert fake.said(general) == []


async def test_exactly_2000_characters_fit(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel
) -> None:
    assert (await api.post(_messages(general), json={"content": "ü" * 2000})).status_code == 200


async def test_an_empty_message_is_refused(api: httpx.AsyncClient, general: Channel) -> None:
    for form in ({}, {"content": ""}, {"content": " \n"}, {"content": None}):
        assert _code(await api.post(_messages(general), json=form)) == (400, 50006)


async def test_unknown_things_have_their_own_codes(
    fake: FakeDiscord, api: httpx.AsyncClient, harbour: Guild, general: Channel
) -> None:
    stranger = fake.user("stranger")
    codes = {
        "/channels/1": 10003,
        "/guilds/1": 10004,
        f"/guilds/{harbour.id}/members/{stranger.id}": 10007,
        f"{_messages(general)}/1": 10008,
        "/users/1": 10013,
        f"/guilds/{harbour.id}/members/1": 10013,
        "/nothing": 0,
    }
    for path, code in codes.items():
        assert _code(await api.get(path)) == (404, code), path
    assert (await api.put("/users/@me")).status_code == 405
    assert _code(await api.get("/channels/general")) == (400, 50035)


async def test_a_deleted_channel_is_unknown(api: httpx.AsyncClient, general: Channel) -> None:
    general.delete()
    answer = await api.post(_messages(general), json={"content": "too late"})
    assert answer.json() == {"message": "Unknown Channel", "code": 10003}


async def test_a_channel_that_the_bot_does_not_see_is_missing_access(
    fake: FakeDiscord, api: httpx.AsyncClient, harbour: Guild
) -> None:
    closed = harbour.channel("closed", private=True)
    for answer in (
        await api.get(f"/channels/{closed.id}"),
        await api.get(_messages(closed)),
        await api.post(_messages(closed), json={"content": "x"}),
    ):
        assert _code(answer) == (403, 50001)
    elsewhere = fake.guild("Elsewhere", bot=False)
    assert _code(await api.get(f"/guilds/{elsewhere.id}")) == (403, 50001)
    assert fake.api.invalid_requests == 4


async def test_a_bot_that_may_not_write_is_told_so(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel
) -> None:
    general.overwrite(fake.bot, deny=Permission.SEND_MESSAGES)
    assert _code(await api.post(_messages(general), json={"content": "x"})) == (403, 50013)
    assert _code(await api.post(f"/channels/{general.id}/typing")) == (403, 50013)


async def test_without_history_a_list_is_empty_and_a_reply_refused(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel, ada: User
) -> None:
    message = ada.write(general, "hello")
    general.overwrite(fake.bot, deny=Permission.READ_MESSAGE_HISTORY)
    assert (await api.get(_messages(general))).json() == []
    form = {"content": "x", "message_reference": {"message_id": message.id}}
    assert _code(await api.post(_messages(general), json=form)) == (403, 160002)


async def test_only_own_messages_can_be_edited(
    api: httpx.AsyncClient, general: Channel, ada: User
) -> None:
    message = ada.write(general, "mine")
    path = f"{_messages(general)}/{message.id}"
    assert _code(await api.patch(path, json={"content": "yours"})) == (403, 50005)
    assert _code(await api.delete(path)) == (403, 50013)
    assert message.content == "mine"


async def test_a_reply_carries_what_it_replies_to_and_names_its_author(
    api: httpx.AsyncClient, general: Channel, ada: User
) -> None:
    message = ada.write(general, "question")
    reference = {"message_id": message.id}
    form: dict[str, Any] = {"content": "answer", "message_reference": reference}
    made = (await api.post(_messages(general), json=form)).json()
    assert made["type"] == 19
    assert made["message_reference"]["message_id"] == message.id
    assert made["referenced_message"]["content"] == "question"
    assert [each["id"] for each in made["mentions"]] == [ada.id]
    form["allowed_mentions"] = {"parse": [], "replied_user": False}
    assert (await api.post(_messages(general), json=form)).json()["mentions"] == []
    message.delete()
    assert _code(await api.post(_messages(general), json=form)) == (400, 50035)
    form["message_reference"]["fail_if_not_exists"] = False
    assert (await api.post(_messages(general), json=form)).json()["type"] == 0


async def test_replies_to_replies_do_not_nest_without_end(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel, ada: User
) -> None:
    last = ada.write(general, "0")
    for number in range(300):
        last = ada.write(general, str(number + 1), reply_to=last)
    told = (await api.get(f"{_messages(general)}/{last.id}")).json()
    assert "referenced_message" not in told["referenced_message"]


async def test_mentions_notify_only_whom_they_may(
    api: httpx.AsyncClient, harbour: Guild, general: Channel, ada: User
) -> None:
    crew = harbour.role("crew")
    content = f"@everyone {ada.mention} {crew.mention} <@1>"
    made = (await api.post(_messages(general), json={"content": content})).json()
    assert [each["id"] for each in made["mentions"]] == [ada.id]
    assert made["mention_roles"] == [crew.id]
    assert made["mention_everyone"] is False
    quiet = {"content": content, "allowed_mentions": {"parse": []}}
    made = (await api.post(_messages(general), json=quiet)).json()
    assert (made["mentions"], made["mention_roles"]) == ([], [])
    harbour.everyone.change(harbour.everyone.permissions | Permission.MENTION_EVERYONE)
    made = (await api.post(_messages(general), json={"content": content})).json()
    assert made["mention_everyone"] is True


async def test_a_direct_message_channel_is_opened_once(
    fake: FakeDiscord, api: httpx.AsyncClient, ada: User
) -> None:
    form = {"recipient_id": ada.id}
    made = (await api.post("/users/@me/channels", json=form)).json()
    assert (made["type"], [each["id"] for each in made["recipients"]]) == (1, [ada.id])
    assert (await api.post("/users/@me/channels", json=form)).json()["id"] == made["id"]
    assert fake.dm(ada).id == made["id"]
    await api.post(_messages(fake.dm(ada)), json={"content": "psst"})
    assert fake.said(fake.dm(ada)) == ["psst"]
    ada.takes_dms = False
    answer = await api.post(_messages(fake.dm(ada)), json={"content": "psst"})
    assert _code(answer) == (403, 50007)


async def test_nothing_is_said_in_a_category(api: httpx.AsyncClient, harbour: Guild) -> None:
    category = harbour.channel("all", ChannelType.GUILD_CATEGORY)
    assert _code(await api.post(_messages(category), json={"content": "x"})) == (400, 50008)


async def test_typing_is_seen(fake: FakeDiscord, api: httpx.AsyncClient, general: Channel) -> None:
    assert (await api.post(f"/channels/{general.id}/typing")).status_code == 204
    assert fake.typed(general) == 1


async def test_a_guild_is_described_with_roles_channels_members_and_threads(
    fake: FakeDiscord, api: httpx.AsyncClient, harbour: Guild, general: Channel, ada: User
) -> None:
    crew = harbour.role("crew", Permission.MANAGE_CHANNELS)
    harbour.change_roles(ada, [crew])
    thread = general.thread("talk", ada)
    general.thread("secret", ada, private=True)
    base = f"/guilds/{harbour.id}"
    guild = (await api.get(base)).json()
    assert guild["owner_id"] == harbour.owner_id
    assert {each["id"]: each["permissions"] for each in guild["roles"]} == {
        harbour.id: str(int(harbour.everyone.permissions)),
        crew.id: "16",
    }
    assert (await api.get(f"{base}/roles")).json() == guild["roles"]
    assert (await api.get(f"{base}/members/{ada.id}")).json()["roles"] == [crew.id]
    members = (await api.get(f"{base}/members", params={"limit": 1000})).json()
    assert {each["user"]["id"] for each in members} == set(harbour.members)
    assert [each["id"] for each in (await api.get(f"{base}/channels")).json()] == [general.id]
    active = (await api.get(f"{base}/threads/active")).json()
    assert [each["id"] for each in active["threads"]] == [thread.id]
    assert [each["id"] for each in (await api.get("/users/@me/guilds")).json()] == [harbour.id]


async def test_members_are_listed_only_with_their_intent() -> None:
    fake = FakeDiscord(enabled=Intent.MESSAGE_CONTENT)
    async with fake.serving(), calling(fake) as api:
        guild = fake.guild("Harbour")
        assert _code(await api.get(f"/guilds/{guild.id}/members")) == (403, 50001)


async def test_without_the_content_intent_the_api_hides_content_too() -> None:
    fake = FakeDiscord(enabled=Intent(0))
    async with fake.serving(), calling(fake) as api:
        guild, ada = fake.guild("Harbour"), fake.user("ada")
        guild.join(ada)
        general = guild.channel("general")
        ada.write(general, "plain", attachments=[Attachment("a.png", "image/png")])
        ada.write(general, "named", mentions=[fake.bot])
        ada.write(fake.dm(ada), "direct")
        listed = (await api.get(_messages(general))).json()
        assert [each["content"] for each in listed] == [f"{fake.bot.mention} named", ""]
        assert listed[1]["attachments"] == []
        direct = (await api.get(_messages(fake.dm(ada)))).json()
        assert [each["content"] for each in direct] == ["direct"]


async def test_threads_are_opened_joined_and_written_in(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel, ada: User
) -> None:
    message = ada.write(general, "let us talk")
    path = f"{_messages(general)}/{message.id}/threads"
    made = await api.post(path, json={"name": "talk"})
    assert made.status_code == 201
    assert (made.json()["id"], made.json()["type"]) == (message.id, 11)
    assert made.json()["thread_metadata"]["archived"] is False
    assert _code(await api.post(path, json={"name": "again"})) == (400, 160004)
    thread = fake.world.channels[message.id]
    general.overwrite(fake.bot, deny=Permission.SEND_MESSAGES)
    assert (await api.post(_messages(thread), json={"content": "here"})).status_code == 200
    general.overwrite(fake.bot, deny=Permission.SEND_MESSAGES_IN_THREADS)
    assert _code(await api.post(_messages(thread), json={"content": "x"})) == (403, 50013)
    members = (await api.get(f"/channels/{thread.id}/thread-members")).json()
    assert [each["user_id"] for each in members] == [fake.bot.id]
    assert _code(await api.get(f"/channels/{thread.id}/thread-members/{ada.id}")) == (404, 10007)


async def test_a_private_thread_is_for_those_in_it(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel, ada: User
) -> None:
    thread = general.thread("secret", ada, private=True)
    assert _code(await api.get(f"/channels/{thread.id}")) == (403, 50001)
    thread.add_to_thread(fake.bot)
    told = (await api.get(f"/channels/{thread.id}")).json()
    assert told["member"]["user_id"] == fake.bot.id
    thread.remove_from_thread(fake.bot)
    general.overwrite(fake.bot, allow=Permission.MANAGE_THREADS)
    assert (await api.get(f"/channels/{thread.id}")).status_code == 200


async def test_an_archived_thread_opens_when_somebody_writes_and_a_locked_one_does_not(
    api: httpx.AsyncClient, general: Channel, ada: User
) -> None:
    thread = general.thread("talk", ada)
    thread.archive()
    assert (await api.post(_messages(thread), json={"content": "wake"})).status_code == 200
    assert not thread.archived
    thread.archive(locked=True)
    assert _code(await api.post(_messages(thread), json={"content": "x"})) == (400, 160005)


async def test_a_user_does_only_what_a_user_may(
    harbour: Guild, general: Channel, ada: User
) -> None:
    closed = harbour.channel(
        "closed", overwrites=[Overwrite(harbour.id, deny=Permission.VIEW_CHANNEL)]
    )
    with pytest.raises(HarnessError, match="may not write"):
        ada.write(closed, "hello")
    harbour.time_out(ada, 60)
    with pytest.raises(HarnessError, match="may not write"):
        ada.write(general, "hello")


async def test_limits_are_told_in_headers_and_kept_by_the_clock(clock: VirtualClock) -> None:
    fake = FakeDiscord(clock=clock)
    async with fake.serving(), calling(fake) as api:
        guild = fake.guild("Harbour")
        one, two = guild.channel("one"), guild.channel("two")
        for left in (4, 3, 2, 1, 0):
            answer = await api.post(_messages(one), json={"content": "x"})
            assert answer.status_code == 200
            assert answer.headers["X-RateLimit-Limit"] == "5"
            assert answer.headers["X-RateLimit-Remaining"] == str(left)
            assert answer.headers["X-RateLimit-Reset-After"] == "5.000"
            assert float(answer.headers["X-RateLimit-Reset"]) == clock.now() + 5
        clock.advance(1.5)
        refused = await api.post(_messages(one), json={"content": "x"})
        assert refused.status_code == 429
        assert refused.json() == {
            "message": "You are being rate limited.",
            "retry_after": 3.5,
            "global": False,
        }
        assert refused.headers["Retry-After"] == "4"
        assert refused.headers["X-RateLimit-Scope"] == "user"
        other = await api.post(_messages(two), json={"content": "x"})
        assert other.status_code == 200
        assert other.headers["X-RateLimit-Bucket"] == refused.headers["X-RateLimit-Bucket"]
        clock.advance(3.5)
        assert (await api.post(_messages(one), json={"content": "x"})).status_code == 200
        assert len(fake.said(one)) == 6
        assert fake.api.invalid_requests == 1


async def test_requests_are_turned_away_for_as_long_as_a_test_wants(
    fake: FakeDiscord, api: httpx.AsyncClient
) -> None:
    fake.limit_requests(0.5, 60)
    for wait in (0.5, 60):
        answer = await api.get("/users/@me")
        assert (answer.status_code, answer.json()["retry_after"]) == (429, wait)
        assert answer.headers["X-RateLimit-Scope"] == "shared"
    assert (await api.get("/users/@me")).status_code == 200
    assert fake.api.invalid_requests == 0


async def test_all_requests_together_have_a_limit(clock: VirtualClock) -> None:
    rates = RateTerms(everything=Rate(2, 1.0))
    fake = FakeDiscord(clock=clock, rates=rates)
    async with fake.serving(), calling(fake) as api:
        await api.get("/users/@me")
        await api.get("/gateway/bot")
        refused = await api.get("/users/@me")
        assert refused.json()["global"] is True
        assert refused.headers["X-RateLimit-Global"] == "true"


async def test_an_outage_lasts_as_long_as_it_was_told_to(
    fake: FakeDiscord, api: httpx.AsyncClient, clock: VirtualClock
) -> None:
    fake.outage(60, status=502)
    answer = await api.get("/users/@me")
    assert (answer.status_code, answer.headers["Content-Type"]) == (502, "text/html")
    clock.advance(60)
    assert (await api.get("/users/@me")).status_code == 200
    fake.outage()
    clock.advance(10_000)
    assert (await api.get("/users/@me")).status_code == 500
    fake.recover()
    assert (await api.get("/users/@me")).status_code == 200


async def test_slow_answers_come_late(fake: FakeDiscord, api: httpx.AsyncClient) -> None:
    fake.slow_answers(5)
    with pytest.raises(httpx.ReadTimeout):
        await api.get("/users/@me", timeout=0.05)


async def test_what_does_not_happen_is_not_awaited_for_ever(fake: FakeDiscord) -> None:
    with pytest.raises(HarnessError, match="did not happen"):
        await fake.until(lambda: False, within=0.01)


async def test_two_runs_make_the_same_world() -> None:
    def ids() -> list[str]:
        fake = FakeDiscord(clock=VirtualClock(), seed=7)
        guild = fake.guild("Harbour")
        return [guild.id, guild.channel("general").id, fake.world.secret(), fake.public_key]

    assert ids() == ids()


async def test_what_was_asked_is_kept_without_secrets(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel
) -> None:
    await api.post(_messages(general), json={"content": "x"})
    asked = fake.api.asked[-1]
    assert (asked.method, asked.path, asked.status) == ("POST", _messages(general), 200)
    assert "t0ken" not in repr(fake.api.asked)
