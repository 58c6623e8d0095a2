"""What each platform makes of every kind of answer to a message that it sends.

An answer that may hide a sent message must never be taken for a definite failure, or the message
would be sent twice.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import orjson
import pytest
from pydantic import SecretStr
from tests.fakes.platform import KeptContext

from accord.relay.platforms.base import HttpService
from accord.relay.platforms.discord.api import open_api
from accord.relay.platforms.discord.sender import DiscordSender
from accord.relay.platforms.matrix import open_matrix
from accord.relay.platforms.settings import (
    DEFAULT_LIMITS,
    DiscordSettings,
    MatrixSettings,
    SmsSettings,
    TelegramSettings,
    WebhookSettings,
    WecomSettings,
)
from accord.relay.platforms.sms import open_sms
from accord.relay.platforms.telegram import BotApi, RecentTopics, TelegramSender
from accord.relay.platforms.webhook import read_keys
from accord.relay.platforms.webhook.platform import (
    WebhookChat,
    WebhookPlatform,
    WebhookSender,
    chat_id_of,
)
from accord.relay.platforms.wecom import open_wecom
from accord.relay.rules import Outcome, Result, Send
from accord.testing import VirtualClock, run_virtual

KEY = "whsec_" + "A" * 43 + "="


@dataclass(frozen=True)
class Speaker:
    """Sends one message, and is told of rate limits as a platform is."""

    perform: Callable[[], Any]
    bind: Callable[[Any], None]
    pause: Callable[[str, float], None]

    def __call__(self) -> Any:
        return self.perform()


def speaker(platform: Any, *action: Any) -> Speaker:
    return Speaker(lambda: platform.perform(*action), platform.bind, platform.pause)


@asynccontextmanager
async def telegram(clock: VirtualClock) -> AsyncIterator[Speaker]:
    settings = TelegramSettings(api_url="https://telegram.example")
    api = BotApi(settings, SecretStr("1:t"), DEFAULT_LIMITS.of(settings))
    sender = TelegramSender(api, RecentTopics(), clock)

    def bind(context: Any) -> None:
        sender.pauses.context = context

    yield Speaker(lambda: sender.perform(Send("42", "hi")), bind, sender.pauses.hold)


@asynccontextmanager
async def discord(clock: VirtualClock) -> AsyncIterator[Speaker]:
    settings = DiscordSettings(application_id="1", api_url="https://discord.example")
    limits = DEFAULT_LIMITS.of(settings)
    async with open_api(settings, SecretStr("t"), clock, limits) as api:
        sender = DiscordSender("1", api, ())

        def bind(context: Any) -> None:
            api.context = context

        send = Send("42", "hi")
        yield Speaker(lambda: sender.perform(send, "alpha/r1", None), bind, api.pause)


@asynccontextmanager
async def matrix(clock: VirtualClock) -> AsyncIterator[Speaker]:
    settings = MatrixSettings(
        homeserver="https://matrix.example", user_id="@bot:x", access_token=SecretStr("t")
    )
    async with open_matrix(settings, clock) as platform:
        yield speaker(platform, Send("!room:x", "hi"), "alpha/r1")


@asynccontextmanager
async def sms(clock: VirtualClock) -> AsyncIterator[Speaker]:
    settings = SmsSettings(
        account_sid="AC" + "0" * 32, phone_number="+15005550006", auth_token=SecretStr("t")
    )
    async with open_sms(settings, clock, "https://connector.example") as platform:
        yield speaker(platform, Send("+15005550009", "hi"), "alpha/r1")


@asynccontextmanager
async def wecom(clock: VirtualClock) -> AsyncIterator[Speaker]:
    settings = WecomSettings(
        corp_id="ww1",
        agent_id=7,
        secret=SecretStr("s"),
        token=SecretStr("t"),
        encoding_aes_key=SecretStr("A" * 43),
    )
    async with open_wecom(settings, clock) as platform:
        yield speaker(platform, Send("ww1/zhang", "hi"), "alpha/r1")


@asynccontextmanager
async def webhook(clock: VirtualClock) -> AsyncIterator[Speaker]:
    keys = read_keys(KEY, "secret")
    settings = WebhookSettings(name="desk", url="https://program.example", deduplicates=True)
    async with httpx.AsyncClient() as client:
        sender = WebhookSender(HttpService("the receiver", client), settings.url, keys, clock)
        platform = WebhookPlatform(settings, keys, sender, clock)
        chat_id = chat_id_of("desk", WebhookChat("c1"))
        yield speaker(platform, Send(chat_id, "hi"), "alpha/r1")


@dataclass(frozen=True)
class Service:
    """A platform, a good answer of its service, and an error of it by its status."""

    opened: Callable[[VirtualClock], AbstractAsyncContextManager[Speaker]]
    good: Any
    error: Callable[[int], Any]
    # Calls that are answered before the message is sent.
    before: dict[str, tuple[int, Any]] = field(default_factory=dict)
    # Whether any 2xx is a success.
    takes_anything: bool = False


SERVICES = {
    "telegram": Service(
        telegram,
        {"ok": True, "result": {"message_id": 5}},
        lambda status: {"ok": False, "error_code": status, "description": "no"},
    ),
    "discord": Service(discord, {"id": "5"}, lambda _: {"code": 50001, "message": "no"}),
    "matrix": Service(
        matrix,
        {"event_id": "$5"},
        lambda status: {"errcode": "M_LIMIT_EXCEEDED" if status == 429 else "M_FORBIDDEN"},
        {"m.room.encryption": (404, {"errcode": "M_NOT_FOUND"})},
    ),
    "sms": Service(sms, {"sid": "SM5"}, lambda _: {"code": 21211, "message": "no"}),
    "wecom": Service(
        wecom,
        {"errcode": 0, "msgid": "5"},
        lambda _: {"message": "no"},
        {"gettoken": (200, {"errcode": 0, "access_token": "a", "expires_in": 7200})},
    ),
    "webhook": Service(webhook, {"message_id": "5"}, lambda _: {}, takes_anything=True),
}

Answer = Exception | tuple[int, bytes] | tuple[int, bytes, dict[str, str]]


def lost(kind: type[httpx.TransportError]) -> Exception:
    return kind("as a test has it")


class Script:
    """The network: gives the next answer, the last one again and again, and counts the calls."""

    def __init__(self, service: Service, answers: list[Answer]) -> None:
        self._service = service
        self._answers = answers
        self.calls = 0

    async def handle(self, request: httpx.Request) -> httpx.Response:
        for part, (status, body) in self._service.before.items():
            if part in request.url.path:
                return httpx.Response(status, stream=httpx.ByteStream(orjson.dumps(body)))
        self.calls += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        status, body, *headers = answer
        return httpx.Response(status, headers=dict(*headers), stream=httpx.ByteStream(body))


def perform(
    service: Service, monkeypatch: pytest.MonkeyPatch, *answers: Answer
) -> tuple[Result, int]:
    """Send a message; its result, as the connector reads it, and how many calls that took."""
    script = Script(service, list(answers))

    async def handle(_: Any, request: httpx.Request) -> httpx.Response:
        return await script.handle(request)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
    clock = VirtualClock()

    async def run() -> Result:
        async with service.opened(clock) as send:
            try:
                result: Result = await send()
            except TimeoutError:
                return Result(False, error="silence", outcome=Outcome.UNKNOWN)
        if result.success or result.outcome is not None:
            return result
        return Result(False, error=result.error, outcome=Outcome.PERMANENT)

    return run_virtual(run(), clock=clock, max_seconds=1000), script.calls


def limited(service: Service, name: str) -> Answer:
    """A rate limit of 40 seconds, as the service says it."""
    told = service.error(429)
    if name == "telegram":  # it says so in the body alone
        told |= {"parameters": {"retry_after": 40}}
    return 429, orjson.dumps(told), {"retry-after": "40"}


def refusal(service: Service, status: int, **headers: str) -> Answer:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return status, orjson.dumps(service.error(status)), given


RETRYABLE, PERMANENT, UNKNOWN = Outcome.RETRYABLE, Outcome.PERMANENT, Outcome.UNKNOWN
LOST: dict[str, tuple[Callable[[Service], Answer], Outcome]] = {
    "no connection": (lambda _: lost(httpx.ConnectError), RETRYABLE),
    "a connection too late": (lambda _: lost(httpx.ConnectTimeout), RETRYABLE),
    "no free connection": (lambda _: lost(httpx.PoolTimeout), RETRYABLE),
    "lost while writing": (lambda _: lost(httpx.WriteError), UNKNOWN),
    "lost while waiting": (lambda _: lost(httpx.ReadError), UNKNOWN),
    "closed without an answer": (lambda _: lost(httpx.RemoteProtocolError), UNKNOWN),
    "silence": (lambda _: lost(httpx.ReadTimeout), UNKNOWN),
    "429 with a time": (lambda each: refusal(each, 429, retry_after="40"), RETRYABLE),
    "429 without a time": (lambda each: refusal(each, 429), RETRYABLE),
    "500": (lambda each: refusal(each, 500), RETRYABLE),
    "502 of a proxy": (lambda _: (502, b"<html>"), RETRYABLE),
    "503": (lambda each: refusal(each, 503), RETRYABLE),
    "504": (lambda each: refusal(each, 504), UNKNOWN),
    "400": (lambda each: refusal(each, 400), PERMANENT),
    "403": (lambda each: refusal(each, 403), PERMANENT),
    "404": (lambda each: refusal(each, 404), PERMANENT),
}
UNREADABLE = {
    "garbage": b"\x00\xff<html>",
    "nothing": b"",
    "a list": b"[1, 2]",
    "a number": b"7",
    "another object": b'{"hello": "world"}',
    "half of an answer": b'{"ok": tr',
}


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize("kind", LOST)
def test_a_message_that_was_not_confirmed_has_the_right_outcome(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SERVICES[name]
    make, outcome = LOST[kind]
    result, _ = perform(service, monkeypatch, make(service))
    assert (result.success, result.outcome) == (False, outcome)
    if kind == "429 without a time":
        assert result.retry_after is not None
    assert "SECRET" not in (result.error or "")


@pytest.mark.parametrize("name", SERVICES)
def test_a_rate_limit_says_how_long(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES[name]
    result, calls = perform(service, monkeypatch, limited(service, name))
    assert (result.outcome, calls) == (RETRYABLE, 1)
    assert result.retry_after == pytest.approx(40, abs=1)


@pytest.mark.parametrize("name", SERVICES)
def test_all_connectors_of_a_bot_keep_to_a_rate_limit(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was told says it to the others, and neither sends anything until it is over."""
    service = SERVICES[name]
    good: Answer = (200, orjson.dumps(service.good))
    script = Script(service, [limited(service, name), good])

    async def handle(_: Any, request: httpx.Request) -> httpx.Response:
        return await script.handle(request)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
    clock = VirtualClock()

    async def run() -> None:
        context = KeptContext()
        async with service.opened(clock) as first, service.opened(clock) as second:
            first.bind(context)
            assert (await first()).outcome is RETRYABLE
            [(what, seconds)] = context.pauses
            assert seconds == pytest.approx(40, abs=1)
            second.pause(what, seconds)
            await asyncio.sleep(10)
            for each in (first, second):
                waiting = await each()
                assert (waiting.success, waiting.outcome) == (False, RETRYABLE)
                assert waiting.retry_after == pytest.approx(30, abs=2)
            assert script.calls == 1
            assert len(context.pauses) == 1, "others are told once"
            await asyncio.sleep(31)
            for each in (first, second):
                assert (await each()).success
            assert script.calls == 3

    run_virtual(run(), clock=clock, max_seconds=1000)


@pytest.mark.parametrize("name", SERVICES)
def test_a_short_pause_does_not_end_a_longer_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SERVICES[name]
    script = Script(service, [limited(service, name)])

    async def handle(_: Any, request: httpx.Request) -> httpx.Response:
        return await script.handle(request)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
    clock = VirtualClock()

    async def run() -> None:
        context = KeptContext()
        async with service.opened(clock) as sender:
            sender.bind(context)
            await sender()
            sender.pause(context.pauses[0][0], 1.0)
            await asyncio.sleep(5)
            assert (await sender()).outcome is RETRYABLE
            assert script.calls == 1

    run_virtual(run(), clock=clock, max_seconds=1000)


@pytest.mark.parametrize("name", SERVICES)
@pytest.mark.parametrize("kind", UNREADABLE)
def test_a_success_that_cannot_be_read_is_unknown(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SERVICES[name]
    result, _ = perform(service, monkeypatch, (200, UNREADABLE[kind]))
    if service.takes_anything:
        assert result == Result(True)
    else:
        assert (result.success, result.outcome) == (False, UNKNOWN)


@pytest.mark.parametrize("name", SERVICES)
def test_a_good_answer_is_a_success(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES[name]
    result, calls = perform(service, monkeypatch, (200, orjson.dumps(service.good)))
    assert result.success
    assert (result.message_id or "").endswith("5")
    assert calls == 1


@pytest.mark.parametrize("name", ["discord", "matrix"])
@pytest.mark.parametrize("kind", LOST)
def test_what_follows_a_silence_says_nothing_of_it(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SERVICES[name]
    result, _ = perform(service, monkeypatch, lost(httpx.ReadTimeout), LOST[kind][0](service))
    assert (result.success, result.outcome) == (False, UNKNOWN)


@pytest.mark.parametrize("name", ["discord", "matrix"])
def test_a_silence_is_repeated_where_the_service_knows_repetitions(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = SERVICES[name]
    good: Answer = (200, orjson.dumps(service.good))
    result, calls = perform(service, monkeypatch, lost(httpx.ReadTimeout), good)
    assert (result.success, calls) == (True, 2)


@pytest.mark.parametrize("name", ["telegram", "sms", "wecom"])
def test_a_silence_is_not_repeated_elsewhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    service = SERVICES[name]
    good: Answer = (200, orjson.dumps(service.good))
    result, calls = perform(service, monkeypatch, lost(httpx.ReadTimeout), good)
    assert (result.outcome, calls) == (UNKNOWN, 1)


def test_a_token_that_does_not_come_means_that_nothing_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(wecom, {}, lambda _: {})
    result, _ = perform(service, monkeypatch, lost(httpx.ReadTimeout))
    assert result.outcome is RETRYABLE
