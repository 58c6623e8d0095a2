"""What an operator sets in `[platforms]`, in a bot's table and in `[webchat]` takes effect."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from tests.fakes.platform import KeptContext
from tests.relay.platforms.telegram_service import TelegramService
from tests.relay.platforms.telegram_service import settings as telegram_settings
from tests.relay.webchat.conftest import serving

from accord.kernel.clock import SystemClock
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import base, discord, sms, telegram, webchat
from accord.relay.platforms.settings import (
    DEFAULT_LIMITS,
    MatrixSettings,
    PlatformLimits,
    SmsSettings,
    TelegramSettings,
    WebhookSettings,
    WecomSettings,
)
from accord.relay.platforms.webhook import read_keys
from accord.relay.platforms.wecom.platform import WecomApi
from accord.relay.rules import Send
from accord.station import settings as station_settings
from accord.station.errors import SettingsError
from accord.station.relay import open_platforms, webchat_settings
from accord.testing import VirtualClock, run_virtual

KEY = "whsec_" + "A" * 43 + "="
SMS = SmsSettings(
    account_sid="AC" + "0" * 32, phone_number="+15005550006", auth_token=SecretStr("t")
)


def service(answer: Callable[[httpx.Request], httpx.Response], **limits: Any) -> base.HttpService:
    """A service that answers so, with these limits."""
    client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return base.HttpService("the service", client, PlatformLimits(**limits))


def limited(times: list[float], seconds: str | None) -> Callable[[httpx.Request], httpx.Response]:
    """A service that is asked too often; `times` has when it was asked."""

    def answer(_request: httpx.Request) -> httpx.Response:
        times.append(asyncio.get_running_loop().time())
        headers = {} if seconds is None else {"retry-after": seconds}
        return httpx.Response(429, headers=headers)

    return answer


@pytest.mark.parametrize(
    ("limits", "seconds", "pauses"),
    [
        ({}, "3", [3]),
        ({"rate_tries": 4}, "3", [3, 3, 3]),
        ({"rate_wait_seconds": 2}, "3", []),
        ({"rate_wait_seconds": 30}, "20", [20]),
        ({"rate_default_seconds": 4}, None, [4]),
    ],
)
def test_rate_limits_are_waited_for_as_often_and_as_long_as_is_set(
    limits: dict[str, Any], seconds: str | None, pauses: list[float]
) -> None:
    times: list[float] = []

    async def call() -> None:
        reply = await service(limited(times, seconds), **limits).call("GET", "http://a.example")
        assert reply.status == 429

    run_virtual(call())
    waited = [round(later - earlier) for earlier, later in pairwise(times)]
    assert waited == pauses


async def test_answers_are_read_up_to_the_length_that_is_set() -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"x" * 2000)

    for most, is_too_long in ((1024, True), (4096, False)):
        reply = await service(answer, answer_bytes=most).send("GET", "http://a.example")
        assert reply.is_too_long is is_too_long


@asynccontextmanager
async def silent_server() -> AsyncIterator[str]:
    """A service that takes requests and never answers."""

    async def wait(_request: Request) -> Response:
        await asyncio.Event().wait()
        return Response()

    async with serving([Route("/{rest:path}", wait, methods=["GET", "POST"])]) as url:
        yield url


async def test_a_service_may_take_as_long_as_is_set() -> None:
    async with asyncio.timeout(8), silent_server() as url:
        settings = SMS.model_copy(update={"api_url": url})
        for limits in (PlatformLimits(call_seconds=0.05), PlatformLimits(silent_seconds=0.05)):
            async with sms.open_sms(
                settings, SystemClock(), "https://here.example", limits=limits
            ) as platform:
                with pytest.raises(TimeoutError, match="Twilio did not answer"):
                    await platform.perform(Send("+15005550001", "hi"), "k")


def test_the_time_to_connect_is_one_of_the_clients_timeouts() -> None:
    chosen = base.timeouts(PlatformLimits(connect_seconds=3, silent_seconds=7), 20)
    assert (chosen.connect, chosen.pool, chosen.write, chosen.read) == (3, 3, 7, 27)


def test_services_are_watched_as_often_as_is_set() -> None:
    asked: list[float] = []
    failing = [True, True, True, True]

    async def probe() -> None:
        asked.append(asyncio.get_running_loop().time())
        if failing:
            failing.pop()
            raise RelayError(Code.UNAVAILABLE, "it is down")

    async def watch() -> None:
        limits = PlatformLimits(watch_seconds=40, pause_seconds=3)
        async with asyncio.timeout(100):
            await base.watch_service(KeptContext(), probe, limits)

    clock = VirtualClock()
    with pytest.raises(TimeoutError):
        run_virtual(watch(), clock=clock)
    pauses = [round(later - earlier) for earlier, later in pairwise(asked)]
    assert pauses == [1, 2, 3, 3, 40, 40]


async def post(app_routes: Any, path: str, body: bytes, *, age: int = 0) -> int:
    """Post a signed webhook; the status."""
    now = int(SystemClock().now()) - age
    headers = {
        "webhook-id": f"m{age}-{len(body)}",
        "webhook-timestamp": str(now),
        "webhook-signature": read_keys(KEY, "secret").sign(f"m{age}-{len(body)}", now, body),
    }
    transport = httpx.ASGITransport(app=Starlette(routes=list(app_routes)))
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
        return (await client.post(path, content=body, headers=headers)).status_code


async def test_the_settings_file_reaches_every_platform(tmp_path: Path) -> None:
    (tmp_path / "accord.toml").write_text(
        "[platforms]\nbody_bytes = 2048\ntolerance_seconds = 3600\n"
        f'[[relay.webhook]]\nname = "hook"\nsecret = "{KEY}"\n'
    )
    settings = station_settings.load(tmp_path)
    async with open_platforms(settings, SystemClock()) as opened:
        [platform] = opened.platforms
        platform.bind(KeptContext())
        path = "/relay/platforms/webhook/hook"
        said = b'{"chat_id": "c", "user_id": "u", "text": "hello"}'
        assert await post(platform.routes, path, said, age=3000) == 200
        assert await post(platform.routes, path, said, age=4000) == 400
        assert await post(platform.routes, path, said + b" " * 3000) == 413


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[platforms]\ncall_seconds = 0", "[platforms] call_seconds"),
        ("[platforms]\nrate_tries = 0", "[platforms] rate_tries"),
        ("[platforms]\nbody_byte = 5", "[platforms] body_byte"),
        ("[webchat]\npage = 0", "[webchat] page"),
        ('[[relay.sms]]\naccount_sid = "AC"\nphone_number = "+1"\nmedia = -1', "[relay] sms"),
        ('[[relay.discord]]\napplication_id = "1"\ncatch_up_page = 101', "catch_up_page"),
        ('[[relay.discord]]\napplication_id = "1"\nreply_seconds = 3.0', "reply_seconds"),
        ("[[relay.telegram]]\ncommands_pause_seconds = 500", "[relay] telegram, table 1"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place(tmp_path: Path, text: str, where: str) -> None:
    (tmp_path / "accord.toml").write_text(text)
    with pytest.raises(SettingsError) as refused:
        station_settings.load(tmp_path)
    assert where in str(refused.value)


def test_what_is_set_counts_before_a_platforms_own_default() -> None:
    assert DEFAULT_LIMITS.of(TelegramSettings()).call_seconds == 20
    assert PlatformLimits(call_seconds=3).of(TelegramSettings()).call_seconds == 3
    own = TelegramSettings(call_seconds=40)
    assert PlatformLimits(call_seconds=3).of(own).call_seconds == 40
    # Applied once more it is the same.
    assert PlatformLimits(call_seconds=3).of(own).of(own).call_seconds == 40
    matrix = MatrixSettings(homeserver="https://x.org", user_id="@b:x.org")
    limits = PlatformLimits(pause_seconds=7).of(matrix)
    assert (limits.rate_tries, limits.silent_seconds, limits.pause_seconds) == (4, 20, 7)


def test_limits_are_values_that_make_sense() -> None:
    for wrong in ({"call_seconds": -1}, {"body_bytes": 10}, {"rate_tries": True}):
        with pytest.raises(ValidationError):
            PlatformLimits(**wrong)


async def test_telegram_is_asked_for_pages_of_the_size_that_is_set() -> None:
    fake = TelegramService()
    async with fake.serving() as url:
        chosen = telegram_settings(url, page=3, poll_seconds=1)
        async with telegram.open_telegram(chosen, SystemClock()) as platform:
            context = KeptContext()
            listening = asyncio.create_task(platform.run(context))
            for number in range(7):
                fake.write(str(number))
            await context.until(lambda: len(context.taken) == 7)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
    assert {asked["limit"] for asked in fake.asked("getUpdates")} == {3}


def test_discord_may_miss_as_many_heartbeats_as_is_set() -> None:
    hello = {"op": 10, "d": {"heartbeat_interval": 1000}}
    strict, patient = discord.Heartbeat.of(hello), discord.Heartbeat.of(hello, 2)
    assert [strict.beat() for _ in range(2)] == [True, False]
    assert [patient.beat() for _ in range(4)] == [True, True, True, False]
    patient.acknowledged()
    assert patient.beat()


def test_of_a_text_message_as_many_media_are_passed_on_as_is_set() -> None:
    fields = {
        "MessageSid": ["SM1"],
        "From": ["+15005550001"],
        "AccountSid": ["AC1"],
        "To": ["+15005550006"],
        "NumMedia": ["4"],
        **{f"MediaUrl{number}": [f"https://m.example/{number}"] for number in range(4)},
    }
    for most in (0, 2, 10):
        inbound = sms.message_inbound(fields, "AC1", "+15005550006", most)
        assert inbound is not None
        assert len(inbound.event.media_urls) == min(most, 4)


@pytest.mark.parametrize(("early", "fetched"), [(300.0, 1), (7000.0, 2)])
def test_an_access_token_of_wecom_is_renewed_as_early_as_is_set(early: float, fetched: int) -> None:
    settings = WecomSettings(corp_id="ww1", agent_id=1, token_early_seconds=early)
    asked: list[str] = []
    clock = VirtualClock()

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        return httpx.Response(200, json={"errcode": 0, "access_token": "t", "expires_in": 7200})

    async def ask() -> None:
        api = WecomApi(service(answer), settings, SecretStr("s"), clock)
        await api.token()
        await asyncio.sleep(300)
        await api.token()

    run_virtual(ask(), clock=clock)
    assert len(asked) == fetched


def test_a_webhooks_receiver_may_be_silent_as_long_as_its_table_says() -> None:
    own = WebhookSettings(name="hook")
    assert DEFAULT_LIMITS.of(own).silent_seconds == 5
    assert DEFAULT_LIMITS.of(WebhookSettings(name="hook", silent_seconds=9)).silent_seconds == 9


def test_what_the_web_chat_is_given_is_what_is_set(tmp_path: Path) -> None:
    assert webchat_settings(station_settings.load(tmp_path)) == webchat.WebChatSettings()
    (tmp_path / "accord.toml").write_text("[webchat]\npage = 2\nstreams = 7\n")
    chosen = webchat_settings(station_settings.load(tmp_path))
    assert (chosen.page, chosen.streams) == (2, 7)
