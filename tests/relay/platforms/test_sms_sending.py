"""What agents say by text message, and how the account stands."""

import asyncio
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from tests.fakes.platform import KeptContext
from tests.fakes.webhooks.service import Trouble
from tests.fakes.webhooks.twilio import TwilioService
from tests.relay.platforms.hooked import ANN, PUBLIC, sms

from accord.kernel.clock import SystemClock
from accord.relay.connector import PlatformState
from accord.relay.errors import Code, RelayError
from accord.relay.gateway import is_rate_limited
from accord.relay.platforms.base import HttpService, watch_service
from accord.relay.platforms.sms import SmsSettings, open_sms
from accord.relay.rules import Edit, FollowUp, GetChatInfo, Send, Typing
from accord.testing import VirtualClock, run_virtual


async def test_a_message_is_sent_as_plain_text_with_a_status_callback() -> None:
    async with sms() as world:
        result = await world.platform.perform(Send(ANN, "**Hi** `there`"), "k1")
        (said,) = world.service.said
        assert (said.chat_id, said.text) == (ANN, "Hi there")
        assert (result.success, result.message_id) == (True, said.message_id)
        assert said.details["StatusCallback"] == f"{PUBLIC}/relay/platforms/sms/15005550006/status"
        assert world.platform.counts == {"sent": 1, "segments": 1}


async def test_each_refusal_is_a_sentence() -> None:
    async with sms() as world:
        world.service.unsubscribed.add(ANN)
        refused = await world.platform.perform(Send(ANN, "hi"), "k1")
        assert "unsubscribed" in str(refused.error)
        nobody = await world.platform.perform(Send("nobody", "hi"), "k2")
        assert "no phone number" in str(nobody.error)
        world.service.troubles.append(Trouble(400, {"code": 21999, "message": "x"}))
        odd = await world.platform.perform(Send(ANN, "hi"), "k3")
        assert odd.error == "Twilio refused the message (error 21999)"
        world.service.troubles.append(Trouble(500, {"message": "x"}))
        failed = await world.platform.perform(Send(ANN, "hi"), "k4")
        assert (failed.success, failed.error) == (False, "Twilio failed (500)")
        assert world.service.said == []


async def test_a_short_wait_is_waited_and_a_long_one_fails() -> None:
    async with sms() as world:
        world.service.troubles.append(Trouble(429, {"code": 20429}, {"retry-after": "0"}))
        assert (await world.platform.perform(Send(ANN, "hi"), "k1")).success
        world.service.troubles.append(Trouble(429, {"code": 20429}, {"retry-after": "60"}))
        result = await world.platform.perform(Send(ANN, "hi"), "k2")
        assert "try again later" in str(result.error)
        assert is_rate_limited(result), "a gateway would not wait and say it again"
        assert result.retry_after == 60
        assert len(world.service.said) == 1


async def test_a_revoked_token_is_told_and_so_is_its_mending() -> None:
    async with sms() as world:
        world.service.token = "new"
        result = await world.platform.perform(Send(ANN, "hi"), "k1")
        assert result.error == "Twilio refuses the auth token"
        state, reason = world.context.standings[-1]
        assert state is PlatformState.TROUBLED
        assert "auth token" in reason
        assert "twilio-test-token" not in reason
        world.service.token = "twilio-test-token"
        assert (await world.platform.perform(Send(ANN, "hi"), "k2")).success
        assert world.context.standings[-1][0] is PlatformState.READY


async def test_what_text_messages_cannot_do_fails_with_a_sentence() -> None:
    async with sms() as world:
        for action in (Edit(ANN, "SM1", "x"), Typing(ANN), FollowUp("s", "sms.x", "y")):
            result = await world.platform.perform(action, "k")
            assert not result.success
            assert result.error
        info = await world.platform.perform(GetChatInfo(ANN), "k")
        assert info.chat_info == {"name": ANN, "type": "dm"}
        assert await world.platform.can_view(ANN, None, ANN) is True
        assert await world.platform.can_view("+15550000000", None, ANN) is False
        assert await world.platform.can_manage(ANN, None, ANN) is False


async def test_a_service_that_is_away_has_done_nothing() -> None:
    async with TwilioService.served() as gone:
        settings = gone.settings
    async with open_sms(settings, SystemClock(), PUBLIC) as platform:
        result = await platform.perform(Send(ANN, "hi"), "k")
        assert result.error == "Twilio cannot be reached (ConnectError)"


async def test_a_call_that_is_cut_off_or_cannot_be_read_has_an_unknown_outcome() -> None:
    answers = [b"", b"HTTP/1.1 201 Created\r\ncontent-length: 3\r\n\r\n???", b"nonsense\r\n\r\n"]
    answers.append(b"HTTP/1.1 201 Created\r\n\r\n" + b"{" * 200_000)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers.pop(0))
        with suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = SmsSettings.model_validate(
        {
            "account_sid": "AC" + "0" * 32,
            "phone_number": "+15005550006",
            "auth_token": "t",
            "api_url": f"http://127.0.0.1:{port}",
        }
    )
    async with server, open_sms(settings, SystemClock(), PUBLIC) as platform:
        while answers:
            with pytest.raises(TimeoutError):
                await platform.perform(Send(ANN, "hi"), "k")
    assert answers == []


async def test_running_says_ready_and_raises_when_the_account_is_refused() -> None:
    async with sms() as world:
        running = asyncio.create_task(world.platform.run(world.context))
        await world.context.until(lambda: bool(world.context.standings))
        assert world.context.standings == [(PlatformState.READY, "")]
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        world.service.status = "suspended"
        with pytest.raises(RelayError, match="suspended") as refused:
            await world.platform.run(world.context)
        assert refused.value.code is Code.UNAUTHORIZED
        world.service.token = "other"
        with pytest.raises(RelayError, match="auth token"):
            await world.platform.run(world.context)


def test_trouble_of_a_service_is_told_until_it_passes() -> None:
    answers: list[Exception | None] = [
        RelayError(Code.UNAVAILABLE, "Twilio answers 500"),
        TimeoutError("Twilio did not answer"),
        None,
        None,
        RelayError(Code.UNAUTHORIZED, "Twilio refuses the auth token"),
    ]
    clock, asked = VirtualClock(), list[float]()

    async def probe() -> None:
        asked.append(clock.monotonic())
        if (answer := answers[len(asked) - 1]) is not None:
            raise answer

    async def watched() -> KeptContext:
        context = KeptContext()
        with pytest.raises(RelayError, match="refuses"):
            await watch_service(context, probe)
        return context

    context = run_virtual(watched(), clock=clock)
    assert context.standings == [
        (PlatformState.TROUBLED, "Twilio answers 500"),
        (PlatformState.TROUBLED, "Twilio did not answer"),
        (PlatformState.READY, ""),
        (PlatformState.READY, ""),
    ]
    assert asked == pytest.approx([0, 1, 3, 303, 603])


def test_a_service_may_ask_to_wait_for_a_moment_and_once() -> None:
    clock = VirtualClock()

    async def asked(*answers: tuple[int, str | None]) -> tuple[int, int]:
        left, began = list(answers), clock.monotonic()

        def answer(_request: httpx.Request) -> httpx.Response:
            status, wait = left.pop(0)
            return httpx.Response(status, headers={"retry-after": wait} if wait else {})

        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
            reply = await HttpService("A", client).call("GET", "https://a.example")
        assert left == []
        return reply.status, round(clock.monotonic() - began)

    async def everything() -> None:
        assert await asked((200, None)) == (200, 0)
        assert await asked((429, "4"), (200, None)) == (200, 4)
        assert await asked((429, None), (200, None)) == (200, 1)
        assert await asked((429, "tomorrow"), (200, None)) == (200, 1)
        assert await asked((429, "6")) == (429, 0)
        assert await asked((429, "2"), (429, "2")) == (429, 2)

    run_virtual(everything(), clock=clock)


def test_a_service_that_hangs_is_given_up() -> None:
    clock = VirtualClock()

    async def hang(_request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(3600)
        return httpx.Response(200)

    async def asked() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(hang)) as client:
            with pytest.raises(TimeoutError, match="did not answer"):
                await HttpService("A", client).call("GET", "https://a.example/t0ken")

    run_virtual(asked(), clock=clock)
    assert clock.monotonic() == pytest.approx(10)


async def test_opening_needs_a_token_and_a_public_url(tmp_path: Path) -> None:
    given = {"account_sid": "AC" + "0" * 32, "phone_number": "+15005550006"}
    for settings, url, what in (
        (given, PUBLIC, "secret is missing"),
        (given | {"auth_token": "x"}, "", "signs the URL"),
        (given | {"auth_token_file": str(tmp_path / "no")}, PUBLIC, "cannot be read"),
    ):
        with pytest.raises(RelayError, match=what):
            async with open_sms(SmsSettings.model_validate(settings), SystemClock(), url):
                pass
    (tmp_path / "token").write_text("from-a-file\n")
    kept = SmsSettings.model_validate(given | {"auth_token_file": str(tmp_path / "token")})
    async with open_sms(kept, SystemClock(), PUBLIC) as platform:
        assert platform.bot_id == "+15005550006"
        assert "from-a-file" not in repr(platform)
