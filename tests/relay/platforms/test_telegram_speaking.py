"""What agents do on Telegram, and what becomes of it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from tests.fakes.platform import KeptContext
from tests.relay.platforms.telegram_service import (
    FORUM,
    GROUP,
    TOKEN,
    Refused,
    TelegramService,
    settings,
)

from accord.kernel.clock import SystemClock
from accord.relay.connector import PlatformWithCommands
from accord.relay.platforms import telegram
from accord.relay.platforms.settings import DEFAULT_LIMITS
from accord.relay.rules import (
    Action,
    Edit,
    FollowUp,
    GetChatInfo,
    Result,
    Send,
    SessionSource,
    Typing,
)
from accord.testing import VirtualClock, run_virtual


@asynccontextmanager
async def speaking(service: TelegramService) -> AsyncIterator[telegram.TelegramPlatform]:
    async with service.serving() as url:
        chosen = settings(url, commands="union", commands_from=("one", "two"))
        async with telegram.open_telegram(chosen, SystemClock()) as platform:
            yield platform


async def do(platform: telegram.TelegramPlatform, action: Action) -> Result:
    return await platform.perform(action, "key")


async def test_an_answer_is_sent_with_its_marks_and_can_be_edited() -> None:
    service = TelegramService()
    async with speaking(service) as platform:
        sent = await do(platform, Send("41", "**1.5** (at last)!", reply_to="7"))
        assert sent.success
        assert sent.message_id is not None
        edited = await do(platform, Edit("41", sent.message_id, "now `x`"))
        again = await do(platform, Edit("41", sent.message_id, "now `x`"))
    assert edited == again == Result(True, sent.message_id)
    assert service.said[0].texts == ["1.5 (at last)!", "now x"]
    assert service.said[0].asked == {
        "chat_id": 41,
        "text": "*1\\.5* \\(at last\\)\\!",
        "parse_mode": "MarkdownV2",
        "reply_parameters": {"message_id": 7, "allow_sending_without_reply": True},
    }


async def test_a_text_of_full_length_fits() -> None:
    service = TelegramService()
    async with speaking(service) as platform:
        text = "😀." * 1365 + "!"
        assert telegram.DESCRIPTOR.measure(text) == telegram.DESCRIPTOR.max_message_length
        assert (await do(platform, Send("41", text))).success
    assert service.texts == [text]


async def test_a_text_that_telegram_cannot_read_is_sent_plainly() -> None:
    service = TelegramService()
    what = {"ok": False, "error_code": 400, "description": "Bad Request: can't parse entities: x"}
    service.fail("sendMessage", 400, what)
    async with speaking(service) as platform:
        assert (await do(platform, Send("41", "**a**"))).success
    assert service.texts == ["**a**"]


@pytest.mark.parametrize(
    ("metadata", "reply_to", "topic"),
    [
        ({"thread_id": "17"}, None, 17),
        ({"thread_id": "17"}, "5", 17),
        ({}, "5", 23),  # an existing gateway names only the message that it answers
        ({}, "6", None),
        ({}, None, None),
        ({"thread_id": "1"}, None, None),  # the general topic, which Telegram does not want named
        ({"thread_id": "x"}, None, None),
        ({"thread_id": 17}, None, None),
    ],
)
async def test_an_answer_goes_to_the_topic_of_its_question(
    metadata: Mapping[str, Any], reply_to: str | None, topic: int | None
) -> None:
    service, context = TelegramService(), KeptContext()
    async with speaking(service) as platform:
        service._next_message = 4
        service.write("hello", chat=FORUM, message_thread_id=23, is_topic_message=True)
        running = asyncio.create_task(platform.run(context))
        await context.until(lambda: bool(context.taken))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await do(platform, Send("-1002", "x", reply_to, metadata))).success
        await do(platform, Typing("-1002"))
        await do(platform, Typing("-1001"))
    assert service.said[0].asked.get("message_thread_id") == topic
    assert service.typed == [
        {"chat_id": -1002, "action": "typing", "message_thread_id": 23},
        {"chat_id": -1001, "action": "typing"},
    ]


def test_topics_are_remembered_within_a_limit() -> None:
    topics = telegram.RecentTopics()
    for number in range(20_000):
        topics.remember(SessionSource("telegram", str(number), thread_id="3", message_id="1"))
    assert len(topics._known) == 10_000
    assert topics.of_message("19999", "1") == topics.latest("19999") == "3"
    topics.remember(SessionSource("telegram", "19999", message_id="2"))
    assert topics.latest("19999") is None


@pytest.mark.parametrize(
    ("status", "description", "expected"),
    [
        (400, "Bad Request: chat not found", "chat not found"),
        (403, "Forbidden: bot was kicked from the supergroup chat", "kicked"),
        (403, "Forbidden: bot was blocked by the user", "blocked"),
        (401, "Unauthorized", "Unauthorized"),
        (500, "Internal Server Error", "failed with 500"),
    ],
)
async def test_what_telegram_refuses_is_a_result_with_its_words(
    status: int, description: str, expected: str
) -> None:
    service = TelegramService()
    service.fail("sendMessage", status, Refused(status, description).body)
    async with speaking(service) as platform:
        result = await do(platform, Send("-1001", "x"))
    assert not result.success
    assert expected in (result.error or "")


@pytest.mark.parametrize(
    ("action", "error"),
    [
        (Send("no number", "x"), "no such chat"),
        (Send("9" * 400, "x"), "no such chat"),
        (Send("--1", "x"), "no such chat"),
        (Send("41", "half \ud83d"), "JSON"),
        (Edit("41", "x", "y"), "no such message"),
        (Edit("41", "99", "y"), "message to edit not found"),
        (GetChatInfo("-1009"), "chat not found"),
        (FollowUp("s", "telegram.x", "y"), "capabilities"),
    ],
)
async def test_what_cannot_be_done_is_said_so(action: Action, error: str) -> None:
    async with speaking(TelegramService()) as platform:
        result = await do(platform, action)
    assert not result.success
    assert error in (result.error or "")


async def test_an_answer_that_cannot_be_read_is_a_failure() -> None:
    service = TelegramService()
    async with speaking(service) as platform:
        for body in ("<html>", "[]", "[" * 100_000, "x" * (settings().answer_bytes + 1)):
            service.fail("sendMessage", 200, PlainTextResponse(body))
            assert not (await do(platform, Send("41", "x"))).success
        service.fail("sendMessage", 302, PlainTextResponse("", 302, {"location": "/elsewhere"}))
        assert not (await do(platform, Send("41", "x"))).success
    assert {method for method, _ in service.calls} == {"sendMessage"}


async def test_a_service_out_of_reach_is_a_failure_and_a_lost_answer_is_unknown() -> None:
    async with TelegramService().serving() as url:
        pass
    async with telegram.open_telegram(settings(url), SystemClock()) as platform:
        result = await do(platform, Send("41", "x"))
        assert "cannot be reached" in (result.error or "")
        assert await platform.can_view("41", None, "-1001") is None

    async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(cut, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        chosen = settings(f"http://127.0.0.1:{port}")
        async with telegram.open_telegram(chosen, SystemClock()) as platform:
            with pytest.raises(TimeoutError) as lost:
                await do(platform, Send("41", "x"))
    assert TOKEN not in str(lost.value)


def limited(*waits: int | None) -> tuple[list[float], list[Result]]:
    """Send as often as there are answers; when Telegram was asked, and what came of it."""
    clock, asked, answers = VirtualClock(), list[float](), list(waits)

    class Scripted(telegram.BotApi):
        def __init__(self) -> None:
            self.limits = DEFAULT_LIMITS.of(settings())

        async def call(
            self, method: str, parameters: Mapping[str, Any] | None = None, *, patience: float = 0.0
        ) -> telegram.TelegramResponse:
            asked.append(clock.monotonic())
            wait = answers.pop(0)
            if wait is None:
                return telegram.TelegramResponse(True, {"message_id": 5})
            return telegram.TelegramResponse(
                False, code=429, description="Too Many Requests", retry_after=wait
            )

    async def send() -> list[Result]:
        speaker = telegram.TelegramSender(Scripted(), telegram.RecentTopics(), clock)
        results = [await speaker.perform(Send("41", "x"))]
        if answers:
            results.append(await speaker.perform(Send("41", "y")))
            results.append(await speaker.perform(Send("42", "z")))
            await asyncio.sleep(60)
            results.append(await speaker.perform(Send("41", "y")))
        return results

    return asked, run_virtual(send(), clock=clock)


def test_a_short_wait_is_waited_for() -> None:
    asked, results = limited(3, None)
    assert asked == [0, 3]
    assert results == [Result(True, "5")]


def test_a_long_wait_is_told_and_until_then_telegram_is_left_alone() -> None:
    asked, results = limited(40, None, None)
    assert asked == [0, 0, 60]
    assert [each.success for each in results] == [False, False, True, True]
    assert "retry after 40 seconds" in (results[0].error or "")
    assert results[0].retry_after == 40
    assert "retry after" in (results[1].error or "")


@pytest.mark.parametrize(
    ("chat", "info"),
    [
        (GROUP, {"name": "Friends", "type": "group"}),
        (FORUM | {"description": "Plans"}, {"name": "Forum", "type": "forum", "topic": "Plans"}),
        ({"id": 41, "type": "private", "first_name": "Ann"}, {"name": "Ann", "type": "dm"}),
        ({"id": -5, "type": "channel", "title": "News"}, {"name": "News", "type": "channel"}),
    ],
)
async def test_a_chat_is_described(chat: dict[str, Any], info: dict[str, str]) -> None:
    service = TelegramService()
    service.chats[chat["id"]] = chat
    async with speaking(service) as platform:
        assert (await do(platform, GetChatInfo(str(chat["id"])))).chat_info == info


@pytest.mark.parametrize(
    ("member", "views", "manages"),
    [
        ({"status": "creator"}, True, True),
        ({"status": "administrator"}, True, True),
        ({"status": "member"}, True, False),
        ({"status": "restricted", "is_member": True}, True, False),
        ({"status": "restricted", "is_member": False}, False, False),
        ({"status": "restricted"}, None, None),
        ({"status": "left"}, False, False),
        ({"status": "kicked"}, False, False),
        ({"status": "something new"}, None, None),
        ({"status": ["member"]}, None, None),
        (None, None, None),
    ],
)
async def test_who_sees_and_manages_a_chat_is_telegrams_to_say(
    member: dict[str, Any] | None, views: bool | None, manages: bool | None
) -> None:
    service = TelegramService()
    if member is not None:
        service.members[-1001, 41] = member
    async with speaking(service) as platform:
        assert await platform.can_view("41", None, "-1001") is views
        assert await platform.can_manage("41", None, "-1001") is manages


async def test_a_private_chat_is_seen_by_the_one_person_in_it() -> None:
    service = TelegramService()
    async with speaking(service) as platform:
        assert await platform.can_view("41", None, "41") is True
        assert await platform.can_view("42", None, "41") is False
        assert await platform.can_view("x", None, "41") is None
    assert service.calls == []


async def test_the_menu_is_the_operators_alone_where_that_was_chosen(
    tmp_path: Path,
) -> None:
    service = TelegramService()
    file = tmp_path / "commands.json"
    file.write_text('[{"name": "mine", "description": "My own"}]')
    async with service.serving() as url:
        chosen = settings(url, commands="pinned", commands_file=str(file))
        async with telegram.open_telegram(chosen, SystemClock()) as platform:
            platform.begin_commands()
            platform.offer_commands("one", [{"name": "theirs"}])
            await service.until(lambda: bool(service.commands))
        assert service.commands == [{"command": "mine", "description": "My own"}]
        service.commands.clear()
        async with telegram.open_telegram(settings(url), SystemClock()) as platform:
            platform.offer_commands("one", [{"name": "theirs"}])
            await asyncio.sleep(0.05)
        assert service.commands == []


async def test_commands_of_all_agents_are_shown_and_can_be_replaced() -> None:
    service = TelegramService()
    service.fail("setMyCommands", 500)
    async with speaking(service) as platform:
        assert isinstance(platform, PlatformWithCommands)
        platform.offer_commands("one", [{"name": "/Look-up", "description": "Looks something up."}])
        platform.offer_commands("two", {"commands": [{"name": "help"}, {"name": "look_up"}]})
        await service.until(lambda: len(service.commands) == 2)
        assert service.commands == [
            {"command": "help", "description": "help"},
            {"command": "look_up", "description": "Looks something up."},
        ]
        platform.offer_commands("two", None)
        await service.until(lambda: len(service.commands) == 1)
        for nonsense in (7, [None, {}, {"name": 3}, {"name": "Ü"}, {"name": "x" * 33}], {"a": 1}):
            platform.offer_commands("two", nonsense)
    assert len(service.commands) == 1


async def test_the_token_is_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    service, context = TelegramService(), KeptContext()
    async with speaking(service) as platform:
        await do(platform, Send("41", "x"))
        service.revoked = True
        await do(platform, Send("41", "x"))
        await asyncio.gather(platform.run(context), return_exceptions=True)
    assert "sendMessage" in caplog.text
    assert TOKEN.partition(":")[2] not in caplog.text
    assert TOKEN.partition(":")[2] not in repr(platform)


async def test_an_answer_that_is_coming_is_drafted_in_private_chats_alone() -> None:
    service = TelegramService()
    async with speaking(service) as platform:
        assert (await do(platform, Typing("41", "so **far**"))).success
        assert (await do(platform, Typing(str(GROUP["id"]), "so far"))).success
        assert (await do(platform, Typing("41"))).success
    assert service.drafted == ["so far"]
    assert [each["chat_id"] for each in service.typed] == [GROUP["id"], 41]


@pytest.mark.parametrize("drafts", [True, False])
async def test_drafts_are_offered_where_the_operator_wants_them(drafts: bool) -> None:
    chosen = settings("http://127.0.0.1:1").model_copy(update={"drafts": drafts})
    async with telegram.open_telegram(chosen, SystemClock()) as platform:
        assert platform.descriptor().supports_draft_streaming is drafts
