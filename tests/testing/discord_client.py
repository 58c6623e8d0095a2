"""A bare bot for tests of the fake: it says what it is told to say, and keeps what it hears."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from tests.fakes.discord.intents import Intent
from tests.fakes.discord.server import FakeDiscord
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

Json = dict[str, Any]

USER_AGENT = "DiscordBot (https://example.org, 1)"
TALKING = (
    Intent.GUILDS
    | Intent.GUILD_MEMBERS
    | Intent.GUILD_MESSAGES
    | Intent.DIRECT_MESSAGES
    | Intent.MESSAGE_CONTENT
)


class Line:
    """A socket of the gateway."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def hear(self) -> Json:
        """The next payload."""
        heard: Json = json.loads(await self.socket.recv())
        return heard

    async def hear_event(self, name: str) -> Json:
        """The next dispatch, which must be this one."""
        heard = await self.hear()
        assert heard["t"] == name, heard
        return heard

    async def say(self, op: int, data: Any) -> None:
        """Send a payload."""
        await self.socket.send(json.dumps({"op": op, "d": data}))

    async def identify(self, token: str, intents: int = TALKING, **details: Any) -> Json:
        """Begin a session; gives what the gateway answers."""
        await self.say(2, identity(token, intents, **details))
        return await self.hear()

    async def resume(self, token: str, session_id: str, seq: int) -> Json:
        """Go on with a session; gives what the gateway answers first."""
        await self.say(6, {"token": token, "session_id": session_id, "seq": seq})
        return await self.hear()

    async def drain(self, until: str) -> list[Json]:
        """Everything up to a dispatch of this name."""
        heard = [await self.hear()]
        while heard[-1]["t"] != until:
            heard.append(await self.hear())
        return heard

    async def ended(self) -> int | None:
        """The code with which the gateway ended the socket; what it still said is skipped."""
        try:
            while True:
                await self.socket.recv()
        except ConnectionClosed as end:
            return None if end.rcvd is None else end.rcvd.code


def identity(token: str, intents: int = TALKING, **details: Any) -> Json:
    properties = {"os": "linux", "browser": "test", "device": "test"}
    return {"token": token, "intents": int(intents), "properties": properties, **details}


@asynccontextmanager
async def dialled(fake: FakeDiscord, path: str = "/?v=10&encoding=json") -> AsyncIterator[Line]:
    """An open socket that has heard HELLO."""
    async with connect(fake.gateway.url + path, proxy=None) as socket:
        line = Line(socket)
        yield line


@asynccontextmanager
async def greeted(fake: FakeDiscord) -> AsyncIterator[Line]:
    async with dialled(fake) as line:
        assert (await line.hear())["op"] == 10
        yield line


@asynccontextmanager
async def ready(fake: FakeDiscord, intents: int = TALKING) -> AsyncIterator[tuple[Line, Json]]:
    """A session that has heard READY and its guilds; gives the socket and READY."""
    async with greeted(fake) as line:
        first = await line.identify(fake.token, intents)
        assert first["t"] == "READY", first
        if intents & Intent.GUILDS:
            for _ in first["d"]["guilds"]:
                await line.hear_event("GUILD_CREATE")
        yield line, first["d"]


@asynccontextmanager
async def calling(fake: FakeDiscord, token: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API."""
    headers = {"Authorization": f"Bot {token or fake.token}", "User-Agent": USER_AGENT}
    async with httpx.AsyncClient(
        base_url=fake.api_url, headers=headers, trust_env=False, timeout=10
    ) as client:
        yield client
