"""Coming in, staying in, and what a bad guest gets."""

import itertools
import re
import unicodedata
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.relay.webchat.conftest import Open, World

import accord.relay.platforms.webchat as package
from accord.relay.errors import RelayError
from accord.relay.platforms import webchat
from accord.testing import VirtualClock

STATIC = Path(package.__file__).parent / "static"


def files(folder: str) -> list[Path]:
    return list(Path(folder).iterdir())


def secret(url: str) -> str:
    return url.partition("#invite=")[2]


async def test_an_invitation_lets_one_person_in_once(world: World) -> None:
    made = await world.chat.admin.invite(world.space.id)
    ann, eve = await world.stranger(), await world.stranger()
    await ann.ask("GET", "me", expect=401)
    await ann.ask("POST", "join", {"invite": secret(made.url), "name": "ann"})
    assert (await ann.ask("GET", "me"))["me"]["name"] == "ann"
    refused = await eve.ask("POST", "join", {"invite": secret(made.url), "name": "eve"}, 403)
    assert "ask for a new one" in refused["message"]
    assert [user.name for user in await world.chat.admin.users()] == ["ann"]


async def test_a_refused_name_does_not_spend_the_invitation(open_world: Open, where: str) -> None:
    async with open_world(
        where, settings=webchat.WebChatSettings(entries_per_minute=600_000)
    ) as world:
        await world.join("ann")
        made = await world.chat.admin.invite(world.space.id)
        bob = await world.stranger()
        names: list[object] = [
            "Ann",
            "ann",
            "\uff41nn",
            "accord",
            "everyone",
            "",
            " ",
            "a\tb\0",
            "@x",
            "x" * 33,
        ]
        names += ["a\u202eb", ".x", "-", "a\u200db", "a\u200b", 7]
        for name in names:
            answer = await bob.http.post("join", json={"invite": secret(made.url), "name": name})
            assert answer.status_code in (400, 409), name
        await bob.ask("POST", "join", {"invite": secret(made.url), "name": "bob"})
        assert [user.name for user in await world.chat.admin.users()] == ["ann", "bob"]


async def test_invitations_and_sessions_expire(open_world: Open, where: str) -> None:
    clock = VirtualClock()
    settings = webchat.WebChatSettings(invite_seconds=60, session_seconds=600)
    async with open_world(where, clock=clock, settings=settings) as world:
        ann = await world.join("ann")
        made = await world.chat.admin.invite(world.space.id)
        clock.advance(60)
        late = await world.stranger()
        await late.ask("POST", "join", {"invite": secret(made.url), "name": "late"}, expect=403)
        await ann.ask("GET", "me")
        clock.advance(540)
        await ann.ask("GET", "me", expect=401)
        await ann.ask("POST", "login", {"key": ann.key})
        await ann.ask("GET", "me")


async def test_a_key_brings_a_user_back_until_there_is_a_new_one(world: World) -> None:
    ann, other = await world.join("ann"), await world.stranger()
    assert (await other.ask("POST", "login", {"key": ann.key}))["me"] == ann.me
    await other.ask("POST", "logout")
    await other.ask("GET", "me", expect=401)
    await ann.ask("GET", "me")
    key = await world.chat.admin.new_login_key(ann.id)
    await other.ask("POST", "login", {"key": ann.key}, expect=401)
    await other.ask("POST", "login", {"key": key})


async def test_whoever_is_in_joins_another_space_with_the_same_account(world: World) -> None:
    ann = await world.join("ann")
    other = await world.chat.admin.create_space("other")
    await world.chat.admin.create_channel(other.id, "away")
    made = await world.chat.admin.invite(other.id)
    await ann.ask("POST", "join", {"invite": secret(made.url)})
    assert await ann.channels() == ["general", "away"]
    assert len(await world.chat.admin.users()) == 1


async def test_nothing_secret_is_kept_or_shown(world: World, where: str) -> None:
    made = await world.chat.admin.invite(world.space.id)
    ann = await world.join("ann")
    session = ann.http.cookies["accord_chat"]
    kept = b"".join(file.read_bytes() for file in files(where))
    for value in (secret(made.url), ann.key, session):
        assert value.encode() not in kept
    assert secret(made.url) not in repr(made)


async def test_the_cookie_is_for_our_page_only(open_world: Open, where: str) -> None:
    settings = webchat.WebChatSettings(base_url="https://chat.example")
    async with open_world(where, settings=settings) as world:
        made = await world.chat.admin.invite(world.space.id)
        assert made.url.startswith("https://chat.example/chat/#invite=")
        async with httpx.AsyncClient(base_url=world.url) as client:
            answer = await client.post(
                "/chat/api/join",
                json={"invite": secret(made.url), "name": "ann"},
                headers={"x-accord-chat": "1", "origin": "https://chat.example"},
            )
        assert answer.status_code == 200, answer.text
        cookie = answer.headers["set-cookie"].lower()
        for part in ("httponly", "samesite=strict", "secure", "path=/chat", "max-age="):
            assert part in cookie


FOREIGN = [
    {"x-accord-chat": ""},
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://[broken"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


async def test_what_another_site_sends_is_refused(world: World) -> None:
    ann = await world.join("ann")
    said = await ann.say(world.general.id, "mine")
    posts: list[tuple[str, str, Any]] = [
        ("POST", f"chats/{world.general.id}/messages", {"text": "forged", "key": "k"}),
        ("PATCH", f"messages/{said['id']}", {"text": "forged"}),
        ("POST", "logout", {}),
    ]
    for headers, (method, path, body) in itertools.product(FOREIGN, posts):
        answer = await ann.http.request(method, path, json=body, headers=headers)
        assert answer.status_code == 403, headers
        assert answer.json()["error"] == "forbidden"
    assert await ann.texts(world.general.id) == ["mine"]


BAD_BODIES = [
    b"",
    b"null",
    b"[]",
    b"{",
    b'{"text":"a","text":"b","key":"k"}',
    b'{"text":"","key":"k"}',
    b'{"text":"   ","key":"k"}',
    b'{"text":7,"key":"k"}',
    b'{"text":"a"}',
    b'{"text":"a","key":""}',
    b'{"text":"a","key":7}',
    b'{"text":"a","key":"k","reply_to":"1"}',
    b'{"text":"a","key":"k","reply_to":true}',
    b'{"text":"a\\u0000b","key":"k"}',
    b'{"text":"a","key":"\\u0000"}',
    b'{"text":"\\ud800","key":"k"}',
    b'{"text":"' + b"x" * 4001 + b'","key":"k"}',
    b"[" * 10_000,
    b"\xff\xfe",
    b'{"text":"' + b"x" * 100_000 + b'","key":"k"}',
]


async def test_bad_bodies_are_refused_and_change_nothing(open_world: Open, where: str) -> None:
    async with open_world(where, settings=webchat.WebChatSettings(posts_per_minute=6000)) as world:
        ann = await world.join("ann")
        for body in BAD_BODIES:
            answer = await ann.http.post(f"chats/{world.general.id}/messages", content=body)
            assert answer.status_code in (400, 413), body[:40]
            assert set(answer.json()) == {"error", "message"}
        assert await ann.texts(world.general.id) == []
        assert world.context.taken == []


async def test_bad_paths_and_queries_are_refused(world: World) -> None:
    ann = await world.join("ann")
    for path in ("chats/%00/messages", "chats/..%2f/messages", f"chats/{'x' * 5000}/messages"):
        assert (await ann.http.get(path)).status_code == 404, path
    for query in ("before=x", "before=-1", "limit=1e9", "before=" + "9" * 400, "limit=%00"):
        answer = await ann.http.get(f"chats/{world.general.id}/messages?{query}")
        assert answer.status_code == 400, query
    for message in ("x", "-1", "9" * 400, "0"):
        await ann.ask("PATCH", f"messages/{message}", {"text": "x"}, expect=404)
    assert (await ann.http.get("events?after=x")).status_code == 400
    assert (await ann.http.get("/chat/static/../tables.py")).status_code == 404
    assert (await ann.http.get("/chat/static/%2e%2e/tables.py")).status_code == 404
    await ann.ask("POST", "bots/NOSUCHBOT/chat", expect=404)
    await ann.ask("POST", f"bots/{ann.id}/chat", expect=404)


async def test_every_route_wants_a_session(world: World) -> None:
    nobody = await world.stranger()
    nobody.http.cookies.set("accord_chat", "x" * 300, domain="127.0.0.1", path="/chat")
    chat = world.general.id
    for method, path in (
        ("GET", "me"),
        ("GET", "events"),
        ("GET", f"chats/{chat}/messages"),
        ("POST", f"chats/{chat}/messages"),
        ("POST", f"chats/{chat}/typing"),
        ("PATCH", "messages/1"),
        ("POST", "messages/1/thread"),
        ("POST", f"bots/{world.platform.bot_id}/chat"),
    ):
        await nobody.ask(method, path, expect=401)


async def test_who_asks_too_often_is_told_to_wait(open_world: Open, where: str) -> None:
    settings = webchat.WebChatSettings(posts_per_minute=1, entries_per_minute=1)
    async with open_world(where, clock=VirtualClock(), settings=settings) as world:
        ann = await world.join("ann")
        answers = [
            await ann.http.post(f"chats/{world.general.id}/messages", json={"text": "x", "key": k})
            for k in map(str, range(25))
        ]
        assert [each.status_code for each in answers] == [200] * 20 + [429] * 5
        assert answers[-1].headers["retry-after"] == "60"
        guesses = [await ann.http.post("login", json={"key": "guess"}) for _ in range(12)]
        assert {each.status_code for each in guesses[-3:]} == {429}
        await ann.ask("GET", "me")


async def test_the_page_brings_all_it_needs_and_lets_nothing_else_in(world: World) -> None:
    async with httpx.AsyncClient(base_url=world.url) as client:
        assert (await client.get("/chat")).headers["location"] == "/chat/"
        shown = await client.get("/chat/")
        policy = shown.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        named = set(re.findall(r'(?:src|href)="([^"]+)"', shown.text))
        for script in STATIC.glob("*.js"):
            named |= {
                f"static/{each}" for each in re.findall(r'from "\./(.+?)"', script.read_text())
            }
        assert named == {f"static/{file.name}" for file in STATIC.iterdir()} - {"static/index.html"}
        for path in named:
            answer = await client.get(f"/chat/{path}")
            assert answer.status_code == 200, path
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = await client.get(
                f"/chat/{path}", headers={"if-none-match": answer.headers["etag"]}
            )
            assert again.status_code == 304


def test_the_page_has_no_inline_script_and_writes_no_html() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]* src=)", page) == []
    assert re.findall(r"\son\w+=|\sstyle=|javascript:", page) == []
    for script in STATIC.glob("*.js"):
        text = script.read_text()
        for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert risky not in text, script.name
        assert "Function(" not in text
    for file in STATIC.iterdir():
        addresses = set(re.findall(r"https?://[\w.]+", file.read_text()))
        assert addresses <= {"http://www.w3.org"}, file.name


@given(st.text())
def test_any_text_is_a_message_or_refused(text: str) -> None:
    try:
        said = webchat.rules.message_text(text)
    except RelayError:
        return
    assert said == said.strip()
    assert said.encode()
    assert "\0" not in said
    assert webchat.rules.speakable(said) == said


@given(st.text())
def test_any_text_is_a_name_or_refused_and_names_can_be_mentioned(text: str) -> None:
    try:
        name = webchat.rules.account_name(text)
    except RelayError:
        return
    assert webchat.rules.account_name(name) == name
    assert webchat.rules.name_key(name) in set(webchat.rules.mentions(f"so @{name}, what"))


@pytest.mark.parametrize(
    "name",
    [
        "Ann Lee",
        "Мария Петрова",
        "Δημήτρης",
        "प्रिया शर्मा",
        "நித்யா",
        "สมชาย",
        "محمد علي",
        "علی\u200cرضا",  # noqa: RUF001 - it is meant
        "דוד",
        "山田 太郎",
        "김민수",
        "O'Brien",
        "Jean-Luc",
        "Núria·Coll",
    ],
)
def test_names_have_spaces_and_letters_of_any_script(name: str) -> None:
    assert webchat.rules.person_name(name) == unicodedata.normalize("NFKC", name)
    assert webchat.rules.name_key(webchat.rules.person_name(name)) in set(
        webchat.rules.mentions(f"so @{name}, what")
    )


def test_spaces_in_a_name_are_single_and_inside() -> None:
    assert webchat.rules.account_name("  Ann \t Lee\n") == "Ann Lee"


def test_of_two_names_that_begin_alike_the_longer_one_is_mentioned() -> None:
    bots = [webchat.Account("1", "My"), webchat.Account("2", "My Bot")]
    assert webchat.addressed_bot("hey @my bot, are you there?", None, bots) == ("2", True)
    assert webchat.addressed_bot("hey @My boat", None, bots) == ("1", True)


async def test_the_web_chat_shows_pages_of_the_size_that_is_set(
    where: str, open_world: Open
) -> None:
    settings = webchat.WebChatSettings(page=2, sessions_per_user=1)
    async with open_world(where, settings=settings) as world:
        ann = await world.join("ann")
        for number in range(3):
            await ann.say(world.general.id, str(number))
        page = await ann.ask("GET", f"chats/{world.general.id}/messages?limit=50")
        assert [each["text"] for each in page["messages"]] == ["1", "2"]
        # A second browser ends the session of the first one.
        other = await world.stranger()
        await other.ask("POST", "login", {"key": ann.key})
        assert (await ann.http.get("me")).status_code == 401
