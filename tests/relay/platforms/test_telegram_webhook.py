"""How Telegram calls the connector, and who else may not."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from tests.fakes.platform import KeptContext
from tests.relay.platforms.telegram_service import BOT, TOKEN, TelegramService, settings
from tests.relay.platforms.telegram_updates import update

from accord.kernel.clock import SystemClock
from accord.relay.connector import PlatformState
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import telegram
from accord.relay.platforms.settings import DEFAULT_LIMITS
from accord.station import listener
from accord.testing import VirtualClock, run_virtual

PATH = f"/relay/platforms/telegram/{BOT}"
HEADER = "x-telegram-bot-api-secret-token"


@dataclass
class Edge:
    """A connector's edge with one bot, called by Telegram and by a test."""

    service: TelegramService
    context: KeptContext
    platform: telegram.TelegramPlatform
    client: httpx.AsyncClient

    @property
    def secret(self) -> str:
        return str(self.service.webhook["secret_token"])

    async def post(self, body: bytes | Mapping[str, Any], secret: str | None = None) -> int:
        headers = {HEADER: self.secret if secret is None else secret}
        if isinstance(body, bytes):
            answer = await self.client.post(PATH, content=body, headers=headers)
        else:
            answer = await self.client.post(PATH, json=body, headers=headers)
        return answer.status_code


@asynccontextmanager
async def called(*, bound: bool = True) -> AsyncIterator[Edge]:
    service, context = TelegramService(), KeptContext()
    async with service.serving() as url:
        with listener.bind("127.0.0.1", 0) as listening:
            public = listener.address(listening)
            chosen = settings(url, mode="webhook")
            async with telegram.open_telegram(chosen, SystemClock(), public + "/") as platform:
                if bound:
                    platform.bind(context)
                server = listener.Listener(Starlette(routes=list(platform.routes)))
                serving = asyncio.create_task(server.serve([listening]))
                running = asyncio.create_task(platform.run(context))
                try:
                    await service.until(lambda: bool(service.webhook))
                    async with httpx.AsyncClient(base_url=public, trust_env=False) as client:
                        yield Edge(service, context, platform, client)
                finally:
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
                    server.should_exit = True
                    await serving


async def test_telegram_is_told_where_to_call_and_what_it_brings_arrives() -> None:
    async with called() as edge:
        assert edge.service.webhook["url"].endswith(PATH)
        assert edge.service.webhook["drop_pending_updates"] is False
        for number in range(3):
            edge.service.write(f"m{number}")
        await edge.context.until(lambda: len(edge.context.taken) == 3)
        assert edge.context.texts == ["m0", "m1", "m2"]
        assert edge.context.standings == [(PlatformState.READY, "")]


async def test_what_telegram_must_show_says_nothing_of_the_token() -> None:
    async with called() as edge:
        assert len(edge.secret) == 64
        assert TOKEN.partition(":")[2] not in edge.secret


async def test_whoever_does_not_know_the_secret_is_refused() -> None:
    async with called() as edge:
        assert (await edge.client.post(PATH, json=update(text="x"))).status_code == 401
        for secret in (b"", b"wrong", b"\xff", b"0" * 64):
            headers = {HEADER.encode(): secret}
            answer = await edge.client.post(PATH, json=update(text="x"), headers=headers)
            assert answer.status_code == 401
        assert edge.context.taken == []


async def test_a_body_that_makes_no_sense_changes_nothing() -> None:
    bodies = {
        b"": 400,
        b"{": 400,
        b"\xff\xfe{}": 400,
        b"[1]": 400,
        b"[" * 100_000: 400,
        b'"' + b"x" * settings().body_bytes + b'"': 413,
        b"{}": 200,
        b'{"update_id": 1, "message": 5}': 200,
    }
    async with called() as edge:
        assert [await edge.post(body) for body in bodies] == list(bodies.values())
        assert edge.context.taken == []


async def test_a_replayed_call_is_taken_once() -> None:
    async with called() as edge:
        assert await edge.post(update(text="x")) == 200
        assert await edge.post(update(text="x")) == 200
        assert edge.context.texts == ["x"]
        assert edge.context.repeated == ["9001"]


async def test_what_was_not_kept_is_not_acknowledged_and_comes_again() -> None:
    async with called() as edge:
        edge.context.refusing = RelayError(Code.CONFLICT, "the ownership is lost")
        edge.service.write("hello")
        await edge.service.until(lambda: bool(edge.service.pushed))
        assert edge.service.pushed[0] == 503
        edge.context.refusing = None
        await edge.context.until(lambda: edge.context.texts == ["hello"])
        await edge.service.until(lambda: not edge.service.waiting)


async def test_what_can_never_be_kept_is_acknowledged() -> None:
    async with called() as edge:
        edge.context.refusing = RelayError(Code.BAD_REQUEST, "an id is too long")
        assert await edge.post(update(text="x")) == 200


async def test_a_process_that_does_not_listen_itself_takes_calls_too() -> None:
    service, context = TelegramService(), KeptContext()
    async with service.serving() as url:
        chosen = settings(url, mode="webhook")
        async with telegram.open_telegram(
            chosen, SystemClock(), "https://here.example"
        ) as platform:
            secret = {HEADER: _secret_of(platform)}
            transport = httpx.ASGITransport(Starlette(routes=list(platform.routes)))
            async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
                early = await client.post(PATH, json=update(text="x"), headers=secret)
                platform.bind(context)
                service.fail("getMe", 500)
                unlucky = await client.post(PATH, json=update(text="x"), headers=secret)
                taken = await client.post(PATH, json=update(text="x"), headers=secret)
    assert [early.status_code, unlucky.status_code, taken.status_code] == [503, 503, 200]
    assert context.texts == ["x"]


def _secret_of(platform: telegram.TelegramPlatform) -> str:
    assert platform._webhook is not None
    return platform._webhook._secret


async def test_only_posts_are_taken() -> None:
    async with called() as edge:
        assert (await edge.client.get(PATH)).status_code == 405


def test_a_webhook_that_telegram_cannot_reach_is_trouble_until_it_can() -> None:
    clock, context = VirtualClock(), KeptContext()
    good: dict[str, Any] = {"url": f"https://here.example{PATH}"}
    bad = good | {"last_error_date": 7, "last_error_message": "Connection refused"}
    infos = [good, bad, bad, {"url": "https://elsewhere.example"}, good]
    asked: list[str] = []

    class Scripted(telegram.BotApi):
        def __init__(self) -> None:
            pass

        async def call(
            self, method: str, parameters: Mapping[str, Any] | None = None, *, patience: float = 0.0
        ) -> telegram.TelegramResponse:
            asked.append(method)
            return telegram.TelegramResponse(
                True, infos.pop(0) if method == "getWebhookInfo" else True
            )

    async def watch() -> None:
        limits = DEFAULT_LIMITS.of(settings())
        webhook = telegram.WebhookEdge(
            "https://here.example", str(BOT), settings().token, _nothing, limits
        )
        async with asyncio.timeout(310):
            await webhook.run(telegram.RetryingApi(Scripted(), context))

    with pytest.raises(TimeoutError):
        run_virtual(watch(), clock=clock)
    assert [state for state, _ in context.standings] == [
        PlatformState.READY,
        PlatformState.TROUBLED,
        PlatformState.READY,
    ]
    assert "Connection refused" in context.standings[1][1]
    assert asked.count("setWebhook") == 2


async def _nothing(_: Any) -> None:
    pass
