"""People on a real homeserver: what somebody with an ordinary client does.

async with Town.open(server) as town:
    ann, bot = await town.person("ann"), town.bot()
    room = await ann.room(invite=[bot.user_id])
    await ann.say(room, "hello")
    await ann.heard(room, bot.user_id, 1)      # what the bot said there
"""

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
from pydantic import SecretStr
from tests.fakes.platform import KeptContext

from accord.kernel.clock import SystemClock
from accord.relay.platforms import matrix
from accord.testing.servers import Server, register_user

CLIENT = "/_matrix/client/v3"
_numbers = itertools.count()


class Person:
    """Somebody with a client."""

    def __init__(self, user_id: str, http: httpx.AsyncClient) -> None:
        self.id = user_id
        self.http = http

    async def ask(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        answer = await self.http.request(method, f"{CLIENT}{path}", json=body, params=query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def room(self, **given: Any) -> str:
        made = await self.ask("POST", "/createRoom", {"preset": "private_chat", **given})
        return str(made["room_id"])

    async def space(self, *rooms: str, **given: Any) -> str:
        """A space that lists rooms."""
        space = await self.room(creation_content={"type": "m.space"}, name="a space", **given)
        for room in rooms:
            await self.set(space, "m.space.child", room, {"via": ["synapse.test"]})
        return space

    async def set(self, room: str, kind: str, key: str, content: Any) -> None:
        path = f"/rooms/{quote(room)}/state/{kind}/{quote(key, safe='')}"
        await self.ask("PUT", path, content)

    async def say(self, room: str, text: str, **more: Any) -> str:
        return await self.send(room, {"msgtype": "m.text", "body": text, **more})

    async def send(self, room: str, content: Any, kind: str = "m.room.message") -> str:
        path = f"/rooms/{quote(room)}/send/{kind}/t{next(_numbers)}"
        return str((await self.ask("PUT", path, content))["event_id"])

    async def invite(self, room: str, user_id: str) -> None:
        await self.ask("POST", f"/rooms/{quote(room)}/invite", {"user_id": user_id})

    async def join(self, room: str) -> None:
        await self.ask("POST", f"/join/{quote(room)}", {})

    async def leave(self, room: str) -> None:
        await self.ask("POST", f"/rooms/{quote(room)}/leave", {})

    async def kick(self, room: str, user_id: str) -> None:
        await self.ask("POST", f"/rooms/{quote(room)}/kick", {"user_id": user_id})

    async def messages(self, room: str, sender: str) -> list[dict[str, Any]]:
        """What somebody said in a room, in order."""
        path, chunk = f"/rooms/{quote(room)}/messages", []
        page = await self.ask("GET", path, dir="b", limit="500")
        while page["chunk"]:
            chunk += page["chunk"]
            if "end" not in page or len(page["chunk"]) < 500:
                break
            since = {"from": page["end"]}
            page = await self.ask("GET", path, dir="b", limit="500", **since)
        return [
            each
            for each in reversed(chunk)
            if each["type"] == "m.room.message" and each["sender"] == sender
        ]

    async def heard(self, room: str, sender: str, count: int) -> list[dict[str, Any]]:
        """The contents of what somebody said in a room, once it is so many messages."""
        async with asyncio.timeout(30):
            # The homeserver tells those alone who ask.
            while len(said := await self.messages(room, sender)) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return [each["content"] for each in said]

    async def until_member(self, room: str, user_id: str, membership: str = "join") -> None:
        """Wait until somebody is in a room, or out of it."""
        path = f"{CLIENT}/rooms/{quote(room)}/state/m.room.member/{quote(user_id)}"
        async with asyncio.timeout(30):
            while True:
                answer = await self.http.get(path)
                if answer.json().get("membership") == membership:
                    return
                await asyncio.sleep(0.05)


@dataclass
class Town:
    """Everybody of one test."""

    server: Server
    stack: contextlib.AsyncExitStack
    suffix: str = field(default_factory=lambda: secrets.token_hex(4))

    @classmethod
    @asynccontextmanager
    async def open(cls, server: Server) -> "AsyncIterator[Town]":
        async with contextlib.AsyncExitStack() as stack:
            yield cls(server, stack)

    async def person(self, name: str) -> Person:
        made = await asyncio.to_thread(register_user, self.server, f"{name}-{self.suffix}")
        return await self._client(made.id, made.token)

    async def bot(self, name: str = "bot", **given: Any) -> tuple[matrix.MatrixSettings, Person]:
        """A bot's settings, and the bot as one who can use a client."""
        made = await asyncio.to_thread(register_user, self.server, f"{name}-{self.suffix}")
        settings = matrix.MatrixSettings(
            homeserver=self.server.url,
            user_id=made.id,
            access_token=SecretStr(made.token),
            **{"sync_seconds": 5, **given},
        )
        return settings, await self._client(made.id, made.token)

    async def _client(self, user_id: str, token: str) -> Person:
        client = httpx.AsyncClient(
            base_url=self.server.url,
            headers={"authorization": f"Bearer {token}"},
            trust_env=False,
            timeout=60,
        )
        return Person(user_id, await self.stack.enter_async_context(client))


@asynccontextmanager
async def running(
    settings: matrix.MatrixSettings, context: KeptContext | None = None
) -> AsyncIterator[tuple[matrix.MatrixPlatform, KeptContext]]:
    """A bot that listens until the block ends, from where this context's last one stopped."""
    context = context or KeptContext()
    async with matrix.open_matrix(settings, SystemClock()) as platform:
        platform.bind(context)
        listening = asyncio.create_task(platform.run(context))
        try:
            await context.until(lambda: "since" in context.remembered)
            yield platform, context
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


def texts_in(context: KeptContext, room: str) -> list[str]:
    """What was taken of a room, in order."""
    return [each.event.text for each in context.taken if each.event.source.chat_id == room]
