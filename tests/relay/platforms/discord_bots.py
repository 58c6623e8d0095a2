"""A bot of ours on a Discord of ours, with a connector that a test controls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr
from starlette.applications import Starlette
from tests.fakes.discord.opcodes import Op
from tests.fakes.discord.server import FakeDiscord
from tests.fakes.platform import KeptContext

from accord.kernel.clock import SystemClock
from accord.relay.connector import PlatformState
from accord.relay.platforms import discord
from accord.station import listener

READY = (PlatformState.READY, "")


def settings(fake: FakeDiscord, **more: Any) -> discord.DiscordSettings:
    """The settings of the fake's bot."""
    chosen = {
        "application_id": fake.bot.id,
        "token": SecretStr(fake.token),
        "public_key": fake.public_key,
        "api_url": fake.api_url,
        "commands_settle_seconds": 0.0,
        "commands_pause_seconds": 0.01,
        "checkpoint_seconds": 0.0,
        **more,
    }
    return discord.DiscordSettings(**chosen)


def resumes(fake: FakeDiscord) -> int:
    """How often the bot went on with a session."""
    return sum(op == Op.RESUME for op, _ in fake.gateway.received)


def identifies(fake: FakeDiscord) -> int:
    """How often the bot began a session."""
    return sum(op == Op.IDENTIFY for op, _ in fake.gateway.received)


@dataclass
class Bot:
    """A platform and what it told the connector."""

    platform: discord.DiscordPlatform
    context: KeptContext

    @asynccontextmanager
    async def listening(self) -> AsyncIterator["asyncio.Task[None]"]:
        """Listen within the block."""
        task = asyncio.create_task(self.platform.run(self.context))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def heard(self, *texts: str) -> None:
        """Wait until exactly these were taken."""
        await self.context.until(lambda: len(self.context.taken) >= len(texts))
        assert self.context.texts == list(texts)

    async def is_ready(self, times: int = 1) -> None:
        """Wait until it has said so often that it is ready."""
        await self.context.until(lambda: self.context.standings.count(READY) >= times)


@asynccontextmanager
async def opened(
    fake: FakeDiscord, context: KeptContext | None = None, **more: Any
) -> AsyncIterator[Bot]:
    """A bot that is bound and does not listen yet; chance is never in its way."""
    async with discord.open_discord(
        settings(fake, **more), SystemClock(), chance=lambda: 0.0
    ) as platform:
        bot = Bot(platform, context or KeptContext())
        platform.bind(bot.context)
        yield bot


@asynccontextmanager
async def served(bot: Bot) -> AsyncIterator[str]:
    """The bot's routes on a port of this machine; the address of its interactions."""
    with listener.bind("127.0.0.1", 0) as listening:
        server = listener.Listener(Starlette(routes=list(bot.platform.routes)))
        task = asyncio.create_task(server.serve([listening]))
        await server.serving.wait()
        try:
            path = f"/relay/platforms/discord/{bot.platform.bot_id}/interactions"
            yield listener.address(listening) + path
        finally:
            server.should_exit = True
            await task
