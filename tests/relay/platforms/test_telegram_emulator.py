"""Against `telegram-test-api`, an emulation of the Bot API that others wrote and use.

It hands each update out once, whatever the offset, and knows neither members nor topics; what
depends on those is shown against a service of our own.
"""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from filelock import FileLock
from tests.fakes.platform import KeptContext
from tests.relay.platforms.telegram_service import settings

from accord.kernel.clock import SystemClock
from accord.relay.platforms import telegram
from accord.relay.rules import Edit, MessageType, Send, Typing
from accord.testing import HarnessError, nodejs

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent / "telegram"
TOKEN = "666:emulated-token"


@pytest.fixture(scope="module")
def emulator(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The emulated Bot API, installed by npm into pytest's own cache."""
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    home = cache.mkdir("accord-telegram") if cache else tmp_path_factory.mktemp("telegram")
    try:
        with FileLock(home.with_suffix(".lock")):
            nodejs.install_packages((FOLDER / "package.json").read_bytes(), home)
    except HarnessError as error:
        pytest.skip(f"no emulation of Telegram: {error}")
    with subprocess.Popen(
        [nodejs.node_program(), str(FOLDER / "serve.mjs")],
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.stdin.close()
            server.wait(20)


class Person:
    """Somebody on the emulated Telegram."""

    def __init__(self, client: httpx.AsyncClient, number: int, chat_type: str = "private") -> None:
        self.client = client
        self.user = {"id": number, "first_name": "Ann", "username": "ann", "is_bot": False}
        chat = number if chat_type == "private" else -number
        self.chat = {"id": chat, "type": chat_type, "title": "Ann", "first_name": "Ann"}

    async def write(self, text: str, **more: Any) -> None:
        """Write to the bot, as the emulation's own client does."""
        message = {"botToken": TOKEN, "from": self.user, "chat": self.chat, "date": 1767225600}
        path = "/sendCommand" if "entities" in more else "/sendMessage"
        answer = await self.client.post(path, json=message | {"text": text} | more)
        assert answer.json()["ok"] is True

    async def sees(self) -> list[dict[str, Any]]:
        """What the bot has ever said here, as it is now."""
        answer = await self.client.post("/getUpdatesHistory", json={"token": TOKEN})
        return [
            each["message"]
            for each in answer.json()["result"]
            if str(each["message"].get("chat_id")) == str(self.chat["id"])
        ]


@asynccontextmanager
async def talking(
    url: str,
) -> AsyncIterator[tuple[telegram.TelegramPlatform, KeptContext, Callable[..., Person]]]:
    context = KeptContext()
    chosen = settings(url, token=TOKEN, poll_seconds=1, commands="union", commands_from=("one",))
    async with (
        telegram.open_telegram(chosen, SystemClock()) as platform,
        httpx.AsyncClient(base_url=url, trust_env=False) as client,
    ):
        running = asyncio.create_task(platform.run(context))
        try:
            yield platform, context, lambda *given: Person(client, *given)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_conversation_on_an_emulated_telegram(emulator: str) -> None:
    async with talking(emulator) as (platform, context, person):
        ann = person(1001)
        await ann.write("hello there")
        await context.until(lambda: len(context.taken) == 1)
        [inbound] = context.taken
        source = inbound.event.source
        assert (source.chat_id, source.chat_type, source.user_id) == ("1001", "dm", "1001")
        assert inbound.event.text == "hello there"

        sent = await platform.perform(Send(source.chat_id, "**Hi!**", source.message_id), "k1")
        assert sent.success
        assert sent.message_id is not None
        edited = await platform.perform(Edit(source.chat_id, sent.message_id, "Hi, _Ann_."), "k2")
        assert edited.success
        [seen] = await ann.sees()
        assert (seen["text"], seen["parse_mode"]) == ("Hi, _Ann_\\.", "MarkdownV2")
        assert seen["reply_parameters"]["message_id"] == int(source.message_id or 0)


async def test_a_command_in_a_group_of_an_emulated_telegram(emulator: str) -> None:
    async with talking(emulator) as (_, context, person):
        group = person(1002, "group")
        marked = [{"type": "bot_command", "offset": 0, "length": 18}]
        await group.write("/start@TestNameBot now", entities=marked)
        await group.write("not for the bot")
        await context.until(lambda: len(context.taken) == 2)
        command, chatter = context.taken
        assert (command.event.text, command.event.message_type) == (
            "/start now",
            MessageType.COMMAND,
        )
        assert command.addressed
        assert not chatter.addressed
        assert chatter.event.source.chat_type == "group"


async def test_what_an_emulated_telegram_does_not_know_fails_and_nothing_else_does(
    emulator: str,
) -> None:
    async with talking(emulator) as (platform, context, person):
        assert not (await platform.perform(Typing("1003"), "k")).success
        assert await platform.can_view("1003", None, "-1003") is None
        platform.offer_commands("one", [{"name": "help", "description": "Helps."}])
        ann = person(1003)
        for number in range(20):
            await ann.write(f"m{number}")
        await context.until(lambda: len(context.taken) == 20)
        assert context.texts == [f"m{number}" for number in range(20)]
