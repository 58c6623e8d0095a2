"""How the connector hears Telegram by asking it: nothing lost, nothing twice, in order."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from tests.fakes.platform import KeptContext
from tests.relay.platforms.telegram_service import (
    BOT,
    FORUM,
    GROUP,
    TOKEN,
    TelegramService,
    settings,
)
from tests.relay.platforms.telegram_updates import SUPERGROUP, membership, message

from accord.kernel.clock import SystemClock
from accord.relay.connector import PlatformState
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import telegram
from accord.relay.platforms.settings import DEFAULT_LIMITS
from accord.testing import VirtualClock, run_virtual

READY, TROUBLED = PlatformState.READY, PlatformState.TROUBLED


@asynccontextmanager
async def listening(
    service: TelegramService, context: KeptContext
) -> AsyncIterator[telegram.TelegramPlatform]:
    """A bot that listens to the service until the end of the block."""
    async with service.serving() as url:
        chosen = settings(url, poll_seconds=20)
        async with telegram.open_telegram(chosen, SystemClock()) as platform:
            running = asyncio.create_task(platform.run(context))
            try:
                yield platform
            finally:
                running.cancel()
                with suppress(asyncio.CancelledError):
                    await running


async def test_what_is_written_arrives_once_and_in_order() -> None:
    service, context = TelegramService(), KeptContext()
    async with listening(service, context):
        for number in range(5):
            service.write(f"m{number}")
        await context.until(lambda: len(context.taken) == 5)
        service.write("later", chat=GROUP)
        await context.until(lambda: len(context.taken) == 6)
        await service.until(lambda: not service.waiting)
    assert context.texts == ["m0", "m1", "m2", "m3", "m4", "later"]
    assert context.repeated == []
    assert context.standings == [(READY, "")]


async def test_telegram_is_asked_only_for_what_is_heard() -> None:
    service, context = TelegramService(), KeptContext()
    async with listening(service, context):
        await service.until(lambda: bool(service.asked("getUpdates")))
    question = service.asked("getUpdates")[0]
    assert question["allowed_updates"] == list(telegram.UPDATE_KINDS)
    assert "offset" not in question


async def test_a_webhook_that_was_set_before_is_taken_away_without_losing_what_waits() -> None:
    service, context = TelegramService(), KeptContext()
    service.webhook = {"url": "http://127.0.0.1:9/", "secret_token": "x"}
    service.write("hello")
    async with listening(service, context):
        await context.until(lambda: bool(context.taken))
    assert service.asked("deleteWebhook") == [{"drop_pending_updates": False}]


async def test_what_was_not_taken_is_not_acknowledged_and_comes_again() -> None:
    service, context = TelegramService(), KeptContext()
    context.refusing = RelayError(Code.UNAVAILABLE, "the disk is full")
    async with service.serving() as url:
        chosen = settings(url)
        service.write("hello")
        async with telegram.open_telegram(chosen, SystemClock()) as platform:
            with pytest.raises(RelayError, match="the disk is full"):
                await platform.run(context)
            assert context.remembered == {}
            assert len(service.waiting) == 1
            context.refusing = None
            running = asyncio.create_task(platform.run(context))
            await service.until(lambda: not service.waiting)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert context.texts == ["hello"]
    assert context.remembered["offset"] == "1001"


async def test_what_was_taken_but_not_acknowledged_comes_again_and_is_taken_once() -> None:
    class Forgetful(KeptContext):
        async def remember(self, state: Mapping[str, str]) -> None:
            raise RelayError(Code.UNAVAILABLE, "killed before it was acknowledged")

    service, context = TelegramService(), Forgetful()
    service.write("hello")
    service.write("there")
    async with (
        service.serving() as url,
        telegram.open_telegram(settings(url), SystemClock()) as platform,
    ):
        with pytest.raises(RelayError, match="killed"):
            await platform.run(context)
        assert len(service.waiting) == 2
        survivor = KeptContext(taken=context.taken)
        running = asyncio.create_task(platform.run(survivor))
        await service.until(lambda: not service.waiting)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert survivor.texts == ["hello", "there"]
    assert survivor.repeated == ["1000", "1001"]


async def test_an_update_that_makes_no_sense_holds_back_none_of_the_others() -> None:
    service, context = TelegramService(), KeptContext()
    nonsense: list[Any] = [
        "text",
        None,
        {"message": []},
        {"message": message(text="x") | {"chat": {"id": "one"}}},
        {"update_id": "x", "message": message(text="x")},
        {"unheard_of": {"chat": 3}},
        {"message": message(text="x", message_id=-1)},
    ]
    for update in nonsense:
        service.put(update)
    service.write("after all that")
    async with listening(service, context):
        await context.until(lambda: bool(context.taken))
        await service.until(lambda: not service.waiting)
    assert context.texts == ["after all that"]


async def test_half_of_a_surrogate_pair_does_not_hold_back_its_page() -> None:
    service, context = TelegramService(), KeptContext()
    page = (
        '{"ok":true,"result":[{"update_id":1,"message":{"message_id":1,"date":1,"text":"a\\ud83d",'
        '"chat":{"id":41,"type":"private"},"from":{"id":41,"is_bot":false}}},'
        '{"update_id":2,"message":{"message_id":2,"date":1,"text":"b",'
        '"chat":{"id":41,"type":"private"},"from":{"id":41,"is_bot":false}}}]}'
    )
    service.fail("getUpdates", 200, PlainTextResponse(page))
    async with listening(service, context):
        await context.until(lambda: context.remembered.get("offset") == "3")
    assert context.texts == ["a\ufffd", "b"]


async def test_an_event_that_can_never_be_kept_is_passed_over() -> None:
    service, context = TelegramService(), KeptContext()
    context.refusing = RelayError(Code.BAD_REQUEST, "an id is too long")
    service.write("hello")
    async with listening(service, context):
        await service.until(lambda: not service.waiting)
    assert context.taken == []


async def test_a_changed_membership_is_told() -> None:
    service, context = TelegramService(), KeptContext()
    service.put(membership("chat_member", SUPERGROUP))
    async with listening(service, context):
        await context.until(lambda: bool(context.stale))
        await service.until(lambda: not service.waiting)
    assert context.taken == []


async def test_a_revoked_token_ends_listening_with_a_remedy_and_without_the_token() -> None:
    service, context = TelegramService(), KeptContext()
    async with service.serving() as url:
        chosen = settings(url)
        async with telegram.open_telegram(chosen, SystemClock()) as platform:
            running = asyncio.create_task(platform.run(context))
            await service.until(lambda: bool(service.asked("getUpdates")))
            service.revoked = True
            service.write("wakes the question up")
            with pytest.raises(RelayError) as refusal:
                await running
    assert refusal.value.code is Code.UNAUTHORIZED
    assert refusal.value.mend is not None
    assert "BotFather" in refusal.value.mend
    assert TOKEN not in str(refusal.value)


class ScriptedApi(telegram.BotApi):
    """Answers from a script, on virtual time."""

    def __init__(
        self, answer: Callable[[str, Mapping[str, Any]], Awaitable[telegram.TelegramResponse]]
    ) -> None:
        self.answer = answer
        self.limits = DEFAULT_LIMITS.of(settings())

    async def call(
        self, method: str, parameters: Mapping[str, Any] | None = None, *, patience: float = 0.0
    ) -> telegram.TelegramResponse:
        return await self.answer(method, parameters or {})


def polling(
    api: telegram.BotApi, context: KeptContext, clock: VirtualClock, *, seconds: int = 25
) -> telegram.Poller:
    receiving = telegram.UpdateHandler(telegram.BotUser(BOT, "accord_bot"), telegram.RecentTopics())
    return telegram.Poller(telegram.RetryingApi(api, context), receiving, context, clock, seconds)


async def for_a_while(work: Awaitable[None], seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work


def test_a_minute_of_failures_is_waited_for_and_told() -> None:
    clock, context, asked = VirtualClock(), KeptContext(), list[float]()

    async def answer(method: str, _: Mapping[str, Any]) -> telegram.TelegramResponse:
        if method == "deleteWebhook":
            return telegram.TelegramResponse(True, True)
        asked.append(clock.monotonic())
        if clock.monotonic() < 60:
            return telegram.TelegramResponse(False, code=500)
        await asyncio.sleep(25)
        return telegram.TelegramResponse(True, [])

    run_virtual(for_a_while(polling(ScriptedApi(answer), context, clock).run(), 120), clock=clock)
    assert [at for at in asked if at <= 60] == [0, 1, 3, 7, 15, 31]
    assert [state for state, _ in context.standings] == [READY, *[TROUBLED] * 6, READY]
    assert "500" in context.standings[1][1]


def test_telegrams_own_wish_to_wait_is_honoured() -> None:
    clock, context, asked = VirtualClock(), KeptContext(), list[float]()

    async def answer(method: str, _: Mapping[str, Any]) -> telegram.TelegramResponse:
        if method == "deleteWebhook":
            return telegram.TelegramResponse(True, True)
        asked.append(clock.monotonic())
        if len(asked) == 1:
            return telegram.TelegramResponse(
                False, code=429, description="Too Many Requests", retry_after=47
            )
        await asyncio.sleep(25)
        return telegram.TelegramResponse(True, [])

    run_virtual(for_a_while(polling(ScriptedApi(answer), context, clock).run(), 60), clock=clock)
    assert asked[:2] == [0, 47]


def test_another_program_with_the_same_token_is_trouble_with_a_remedy() -> None:
    clock, context = VirtualClock(), KeptContext()

    async def answer(method: str, _: Mapping[str, Any]) -> telegram.TelegramResponse:
        if method == "deleteWebhook":
            return telegram.TelegramResponse(True, True)
        return telegram.TelegramResponse(
            False, code=409, description="Conflict: terminated by other getUpdates"
        )

    run_virtual(for_a_while(polling(ScriptedApi(answer), context, clock).run(), 10), clock=clock)
    assert "a token of its own" in context.standings[-1][1]


def test_a_service_that_does_not_wait_for_news_is_not_asked_without_pause() -> None:
    clock, context, asked = VirtualClock(), KeptContext(), list[float]()

    async def answer(method: str, _: Mapping[str, Any]) -> telegram.TelegramResponse:
        asked.append(clock.monotonic())
        return telegram.TelegramResponse(True, [] if method == "getUpdates" else True)

    run_virtual(for_a_while(polling(ScriptedApi(answer), context, clock).run(), 10), clock=clock)
    assert len(asked) <= 22


def test_an_old_offset_is_not_used_because_numbers_begin_anew_after_a_week() -> None:
    clock, context, asked = VirtualClock(), KeptContext(), list[Mapping[str, Any]]()
    context.remembered = {"offset": "500", "moved_at": str(int(clock.now() * 1000))}

    async def answer(method: str, parameters: Mapping[str, Any]) -> telegram.TelegramResponse:
        if method == "deleteWebhook":
            return telegram.TelegramResponse(True, True)
        asked.append(parameters)
        await asyncio.sleep(86_400)
        return telegram.TelegramResponse(True, [])

    run_virtual(
        for_a_while(polling(ScriptedApi(answer), context, clock).run(), 8 * 86_400), clock=clock
    )
    assert [each.get("offset") for each in asked] == [500] * 6 + [None, None]


@pytest.mark.parametrize(
    "state", [{}, {"offset": "x", "moved_at": "1"}, {"offset": "5"}, {"offset": "", "moved_at": ""}]
)
def test_a_memory_that_makes_no_sense_is_as_good_as_none(state: dict[str, str]) -> None:
    clock, context, asked = VirtualClock(), KeptContext(), list[Mapping[str, Any]]()
    context.remembered = state

    async def answer(method: str, parameters: Mapping[str, Any]) -> telegram.TelegramResponse:
        if method == "getUpdates":
            asked.append(parameters)
            await asyncio.sleep(25)
        return telegram.TelegramResponse(True, [] if method == "getUpdates" else True)

    run_virtual(for_a_while(polling(ScriptedApi(answer), context, clock).run(), 30), clock=clock)
    assert "offset" not in asked[0]


async def test_chats_do_not_wait_for_each_other_and_each_keeps_its_order() -> None:
    service, context = TelegramService(), KeptContext()
    for number in range(10):
        service.write(f"g{number}", chat=GROUP)
        service.write(f"f{number}", chat=FORUM)
    async with listening(service, context):
        await context.until(lambda: len(context.taken) == 20)
    for letter in "gf":
        own = [text for text in context.texts if text.startswith(letter)]
        assert own == [f"{letter}{number}" for number in range(10)]
