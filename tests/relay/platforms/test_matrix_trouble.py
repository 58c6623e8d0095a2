"""A homeserver that fails, hurries nobody, talks nonsense or asks for patience."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from tests.fakes.platform import KeptContext

from accord.relay.connector import PlatformState
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import matrix
from accord.relay.platforms.settings import DEFAULT_LIMITS, PlatformLimits
from accord.relay.rules import Edit, FollowUp, GetChatInfo, Send, Typing
from accord.testing import VirtualClock, run_virtual

TOKEN = "syt_secret-of-the-bot"
BOT = "@bot:x.org"
SYNC = "/_matrix/client/v3/sync"
WHOAMI = "/_matrix/client/v3/account/whoami"

Answer = httpx.Response | Exception
OK = {"user_id": BOT, "next_batch": "s1"}


def refusal(status: int, name: str, **more: Any) -> httpx.Response:
    return httpx.Response(status, json={"errcode": name, "error": TOKEN, **more})


@dataclass
class Script:
    """A homeserver that answers as it is told, and then with nothing new."""

    clock: VirtualClock
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[tuple[float, httpx.Request]] = field(default_factory=list)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.01)
        self.asked.append((self.clock.monotonic(), request))
        waiting = self.answers.get(request.url.path, [])
        if waiting:
            answer = waiting.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        if request.url.path == SYNC:
            await asyncio.sleep(int(request.url.params["timeout"]) / 1000)
        if request.url.path.endswith("/m.room.encryption"):
            return refusal(404, "M_NOT_FOUND")
        if request.url.path.endswith("/state"):
            return httpx.Response(200, json=[])
        return httpx.Response(200, json=OK)

    def times(self, path: str) -> list[float]:
        return [when for when, request in self.asked if request.url.path == path]


@dataclass
class World:
    clock: VirtualClock
    script: Script
    context: KeptContext
    platform: matrix.MatrixPlatform
    homeserver: matrix.Homeserver

    def listen(self) -> "asyncio.Task[None]":
        return asyncio.create_task(self.platform.run(self.context))


def play(
    act: Callable[[World], Coroutine[Any, Any, None]],
    answer_bytes: int | None = None,
    /,
    **answers: Any,
) -> None:
    """Let a scene happen in virtual time."""
    clock = VirtualClock()

    async def scene() -> None:
        script = Script(clock, {f"/_matrix/client/v3/{k}": list(v) for k, v in answers.items()})
        async with httpx.AsyncClient(
            transport=httpx.MockTransport(script), base_url="http://x.org"
        ) as client:
            settings = matrix.MatrixSettings(
                homeserver="http://x.org", user_id=BOT, access_token=SecretStr(TOKEN)
            )
            shared = PlatformLimits(answer_bytes=answer_bytes) if answer_bytes else DEFAULT_LIMITS
            homeserver = matrix.Homeserver(
                client, settings, settings.access_token, shared.of(settings), clock
            )
            platform = matrix.MatrixPlatform(settings, homeserver, clock)
            world = World(clock, script, KeptContext(), platform, homeserver)
            acting = asyncio.current_task()
            await act(world)
            others = asyncio.all_tasks() - {acting}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    run_virtual(scene(), clock=clock, max_seconds=10_000)


def batch(*events: Any, **timeline: Any) -> httpx.Response:
    """News of one room."""
    room = {"timeline": {"events": list(events), **timeline}}
    return httpx.Response(200, json={"next_batch": "s2", "rooms": {"join": {"!r": room}}})


def said(text: Any, event_id: str = "$e", **more: Any) -> dict[str, Any]:
    content = {"msgtype": "m.text", "body": text}
    return {
        "type": "m.room.message",
        "event_id": event_id,
        "sender": "@ann:x.org",
        "content": content,
        **more,
    }


def test_a_minute_of_failures_is_waited_out_and_told() -> None:
    async def act(world: World) -> None:
        listening = world.listen()
        await world.context.until(lambda: bool(world.context.taken), within=600)
        assert not listening.done()
        states = [state for state, _ in world.context.standings]
        assert states == [PlatformState.READY, *[PlatformState.TROUBLED] * 7]
        await world.context.until(lambda: world.context.standings[-1][0] is PlatformState.READY)
        assert 60 < world.clock.monotonic() < 200
        assert TOKEN not in str(world.context.standings)

    failures: list[Answer] = [httpx.Response(500, text="oops") for _ in range(3)]
    failures += [httpx.ConnectError(f"https://{TOKEN}/"), httpx.ReadTimeout("late")]
    failures += [httpx.Response(502), httpx.Response(200, text="<html>")]
    play(act, sync=[httpx.Response(200, json=OK), *failures, batch(said("at last"))])


def test_a_homeserver_that_is_down_at_first_is_found_later() -> None:
    async def act(world: World) -> None:
        world.listen()
        await world.context.until(lambda: "since" in world.context.remembered, within=600)
        assert [state for state, _ in world.context.standings][-1] is PlatformState.READY

    play(act, **{"account/whoami": [httpx.ConnectError("down"), httpx.Response(503)]})


@pytest.mark.parametrize("name", ["M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED"])
def test_a_token_that_is_revoked_while_listening_ends_it(name: str) -> None:
    async def act(world: World) -> None:
        with pytest.raises(RelayError) as caught:
            await world.listen()
        assert caught.value.code is Code.UNAUTHORIZED
        assert name in str(caught.value)
        assert TOKEN not in str(caught.value)

    play(act, sync=[httpx.Response(200, json=OK), refusal(401, name)])


def test_a_limit_on_news_is_waited_for_as_long_as_asked() -> None:
    async def act(world: World) -> None:
        world.listen()
        await world.context.until(lambda: bool(world.context.taken), within=600)
        first, second = world.script.times(SYNC)[1:3]
        assert 120 <= second - first < 121

    limited = httpx.Response(429, json={"errcode": "M_LIMIT_EXCEEDED", "retry_after_ms": 120_000})
    play(act, sync=[httpx.Response(200, json=OK), limited, batch(said("hello"))])


@pytest.mark.parametrize(
    ("answers", "success"),
    [
        ([refusal(429, "M_LIMIT_EXCEEDED", retry_after_ms=2000)], True),
        ([httpx.Response(429, headers={"retry-after": "3"})], True),
        ([refusal(429, "M_LIMIT_EXCEEDED", retry_after_ms=60_000)], False),
        ([refusal(429, "M_LIMIT_EXCEEDED", retry_after_ms=1000)] * 4, False),
        ([refusal(429, "M_LIMIT_EXCEEDED", retry_after_ms="soon")], True),
        ([refusal(403, "M_FORBIDDEN")], False),
        ([refusal(404, "M_NOT_FOUND")], False),
        ([httpx.Response(302, headers={"location": "http://elsewhere/"})], False),
        ([httpx.Response(200, json=["odd"])], False),
        ([httpx.ConnectError(TOKEN)], False),
    ],
)
def test_sending_waits_a_little_and_fails_with_a_sentence(
    answers: list[Answer], success: bool
) -> None:
    async def act(world: World) -> None:
        result = await world.platform.perform(Send("!r", "hello"), "key/1")
        assert result.success is success
        assert success or result.error
        is_limited = "429" in (result.error or "")
        assert (result.retry_after is not None) is is_limited
        assert TOKEN not in str(result)
        assert {request.url.raw_path for _, request in world.script.asked[1:]} == {
            b"/_matrix/client/v3/rooms/%21r/send/m.room.message/key%2F1"
        }
        assert world.clock.monotonic() < 20

    sent = httpx.Response(200, json={"event_id": "$sent"})
    play(act, **{"rooms/!r/send/m.room.message/key/1": [*answers, sent]})


def test_a_lost_answer_is_asked_for_again_under_the_same_key() -> None:
    async def act(world: World) -> None:
        result = await world.platform.perform(Send("!r", "hello"), "k")
        assert result.message_id == "$sent"
        assert len(world.script.times("/_matrix/client/v3/rooms/!r/send/m.room.message/k")) == 2
        with pytest.raises(TimeoutError):
            await world.platform.perform(Send("!r", "hello"), "k")

    sent = httpx.Response(200, json={"event_id": "$sent"})
    lost = httpx.ReadTimeout(TOKEN)
    play(act, **{"rooms/!r/send/m.room.message/k": [lost, sent, lost, lost]})


def test_an_answer_without_end_is_not_read() -> None:
    async def act(world: World) -> None:
        with pytest.raises(RelayError, match="more than can be read"):
            await world.homeserver.ask("GET", "/_matrix/client/v3/x")

    play(act, 1024, x=[httpx.Response(200, json=["x" * 1024])])


def test_nonsense_among_the_news_holds_nothing_up() -> None:
    async def act(world: World) -> None:
        world.listen()
        await world.context.until(lambda: world.context.remembered == {"since": "s3"}, within=600)
        assert world.context.texts == ["good"]

    odd: Any = {
        "next_batch": "s2",
        "rooms": {
            "join": {
                "..": {"timeline": {"events": [said("x")]}},
                "!a": None,
                "!b": {"timeline": []},
                "!c": {"state": {"events": [7, {}]}},
            },
            "invite": {"!d": None, "!e": {"invite_state": {"events": [7]}}},
            "leave": [],
        },
    }
    mixed = batch(None, 7, {}, said(["x"]), said("good"), {"type": [], "state_key": "", "x": 1})
    mixed = httpx.Response(200, json={**json.loads(mixed.content), "next_batch": "s3"})
    answers: list[Any] = [OK, [], {"rooms": 7}, odd]
    play(act, sync=[*(httpx.Response(200, json=each) for each in answers), mixed])


def test_news_that_are_too_many_are_asked_for_in_a_smaller_form() -> None:
    async def act(world: World) -> None:
        world.context.remembered = {"since": "s1"}
        world.listen()
        await world.context.until(lambda: world.context.remembered == {"since": "s2"}, within=600)
        limits = [
            json.loads(request.url.params["filter"])["room"]["timeline"]["limit"]
            for _, request in world.script.asked
            if request.url.path == SYNC
        ]
        assert limits[:2] == [50, 1]
        assert world.context.texts == ["small"]

    play(act, 2000, sync=[batch(said("x" * 2000)), batch(said("small"))])


def test_a_room_whose_state_is_too_large_is_still_heard() -> None:
    async def act(world: World) -> None:
        world.context.remembered = {"since": "s1"}
        world.listen()
        await world.context.until(lambda: world.context.remembered == {"since": "s2"}, within=600)
        source = world.context.taken[0].event.source
        assert (source.chat_type, source.scope_id) == ("channel", "!r")

    large = httpx.Response(200, json=["x" * 2000])
    play(act, 2000, sync=[batch(said("hello"))], **{"rooms/!r/state": [large]})


def test_a_proxy_before_the_homeserver_is_not_taken_for_it() -> None:
    async def act(world: World) -> None:
        world.context.remembered = {"since": "s1"}
        world.listen()
        await world.context.until(lambda: world.context.remembered == {"since": "s2"}, within=600)
        assert world.context.texts == ["hello"]
        assert await world.platform.can_view("@ann:x.org", None, "!r") is None

    pages: list[Answer] = [httpx.Response(status, text="<html>") for status in (400, 401, 403, 404)]
    member = "rooms/!r/state/m.room.member/@ann:x.org"
    play(act, sync=[*pages, batch(said("hello"))], **{member: [httpx.Response(404)]})


def test_a_position_that_the_homeserver_forgot_is_given_up() -> None:
    async def act(world: World) -> None:
        world.context.remembered = {"since": "from another life"}
        world.listen()
        await world.context.until(lambda: bool(world.context.taken), within=600)
        positions = [
            request.url.params.get("since")
            for _, request in world.script.asked
            if request.url.path == SYNC
        ]
        assert positions[:3] == ["from another life", None, "s1"]

    play(act, sync=[refusal(400, "M_UNKNOWN_POS"), httpx.Response(200, json=OK), batch(said("x"))])


def test_what_was_not_taken_is_asked_for_again() -> None:
    async def act(world: World) -> None:
        world.context.remembered = {"since": "s1"}
        world.context.refusing = RelayError(Code.CONFLICT, "another process owns the bot")
        with pytest.raises(RelayError, match="owns"):
            await world.listen()
        assert world.context.remembered == {"since": "s1"}
        world.context.refusing = None
        world.listen()
        await world.context.until(lambda: world.context.remembered == {"since": "s2"}, within=600)
        assert world.context.texts == ["hello"]

    play(act, sync=[batch(said("hello")), batch(said("hello"))])


def test_what_can_never_be_kept_is_passed_over() -> None:
    async def act(world: World) -> None:
        world.context.remembered = {"since": "s1"}
        world.context.refusing = RelayError(Code.BAD_REQUEST, "an id is too long")
        world.listen()
        await world.context.until(lambda: world.context.remembered == {"since": "s2"}, within=600)
        assert world.context.taken == []

    play(act, sync=[batch(said("hello"))])


def test_a_gap_that_cannot_be_read_does_not_hide_what_follows() -> None:
    async def act(world: World) -> None:
        world.context.remembered = {"since": "s1"}
        world.listen()
        await world.context.until(lambda: world.context.remembered == {"since": "s2"}, within=600)
        assert world.context.texts == ["hello"]

    play(
        act,
        sync=[batch(said("hello"), limited=True, prev_batch="p1")],
        **{"rooms/!r/messages": [refusal(403, "M_FORBIDDEN")]},
    )


def test_a_gap_is_not_given_up_for_a_failure() -> None:
    async def act(world: World) -> None:
        world.context.remembered = {"since": "s1"}
        world.listen()
        await world.context.until(lambda: world.context.remembered == {"since": "s2"}, within=600)
        assert world.context.texts == ["one", "two", "three"]

    pages: list[Answer] = [
        httpx.Response(200, json={"chunk": [said("one", "$1")], "end": "p0"}),
        httpx.Response(500),
        httpx.Response(200, json={"chunk": [said("one", "$1")], "end": "p0"}),
        httpx.Response(200, json={"chunk": [], "end": "p1"}),
        httpx.Response(200, json={"chunk": [said("two", "$2")]}),
    ]
    last = said("three", "$3")
    play(
        act,
        sync=[batch(last, limited=True, prev_batch="p9") for _ in range(2)],
        **{"rooms/!r/messages": pages},
    )


@pytest.mark.parametrize("chat_id", ["..", "", "x", "../../logout", "/$root", "#alias:x.org", "!"])
def test_what_is_no_room_is_not_asked_for(chat_id: str) -> None:
    async def act(world: World) -> None:
        for action in (Send(chat_id, "x"), Edit(chat_id, "$e", "x"), Typing(chat_id)):
            assert not (await world.platform.perform(action, "k")).success
        assert not (await world.platform.perform(Send("!r", "x"), "..")).success
        assert not (await world.platform.perform(GetChatInfo(chat_id), "k")).success
        assert await world.platform.can_view("@ann:x.org", None, chat_id) is False
        assert not await world.platform.can_manage("@ann:x.org", None, chat_id)
        assert world.script.asked == []

    play(act)


def test_what_matrix_has_not_is_refused_with_a_sentence() -> None:
    async def act(world: World) -> None:
        for action in (FollowUp("s", "matrix.x", "hello"), Edit("!r", "7", "hello")):
            result = await world.platform.perform(action, "k")
            assert not result.success
            assert result.error
        assert world.script.asked == []
        assert await world.platform.can_manage("@ann:x.org", "!r", "!r") is False

    play(act)
