"""A connector that will be killed: PostgreSQL, Redis, the web chat, and a platform that it polls.

The platform is a service of the test: it hands out what waits to whoever asks, until it is told
that something was received. Prints the port that it listens on once it serves.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from accord.kernel.clock import SystemClock
from accord.relay.connector import (
    RELAY,
    InboundEvent,
    Keyring,
    PlatformContext,
    RedisBus,
    open_connector,
)
from accord.relay.platforms.webchat import WebChatSettings, open_webchat
from accord.relay.rules import (
    Action,
    Descriptor,
    GetChatInfo,
    MessageEvent,
    Result,
    Send,
    SessionSource,
)
from accord.station import listener, logs
from accord.station.sections import LogSettings
from accord.storage import open_store

CLOCK = SystemClock()


class Polled:
    """The connector's side of the service."""

    name = "polled"
    bot_id = "bot"
    idempotent = True
    routes: Sequence[BaseRoute] = ()

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    def descriptor(self) -> Descriptor:
        return Descriptor(
            platform=self.name,
            label="Polled",
            max_message_length=2000,
            supports_draft_streaming=False,
            supports_edit=False,
            supports_threads=False,
            markdown_dialect="plain",
            len_unit="chars",
        )

    def bind(self, context: PlatformContext) -> None:
        pass

    async def run(self, context: PlatformContext) -> None:
        while True:
            page = (await self._http.get("/updates")).json()
            chats: dict[str, list[dict[str, Any]]] = {}
            for event in page:
                chats.setdefault(event["chat"], []).append(event)
            async with asyncio.TaskGroup() as group:
                for events in chats.values():
                    group.create_task(self._take(context, events))

    async def _take(self, context: PlatformContext, events: list[dict[str, Any]]) -> None:
        for event in events:
            source = SessionSource(
                platform=self.name,
                chat_id=event["chat"],
                chat_type="group",
                user_id=event["user"],
                scope_id="g1",
                message_id=event["id"],
            )
            message = MessageEvent(
                event["text"], source, message_id=event["id"], bot_id=self.bot_id
            )
            await context.ingest(InboundEvent(self.name, self.bot_id, event["id"], message))
        await self._http.post("/received", json=[event["id"] for event in events])

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        if isinstance(action, Send):
            said = {"key": idempotency_key, "chat": action.chat_id, "text": action.content}
            return Result(True, (await self._http.post("/said", json=said)).json())
        if isinstance(action, GetChatInfo):
            return Result(True, chat_info={"name": action.chat_id, "type": "group"})
        return Result(True)

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        return True

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        return True


async def main(where: str, redis: str, key: str, service: str, port: str, name: str) -> None:
    busy = WebChatSettings(posts_per_minute=60_000, entries_per_minute=6_000)
    async with (
        httpx.AsyncClient(base_url=service, timeout=30) as http,
        open_store(where, RELAY) as store,
        open_webchat(where, CLOCK, busy) as chat,
        open_connector(
            store,
            Keyring.load(Path(key)),
            CLOCK,
            name=name,
            platforms=[Polled(http), *chat.platforms],
            bus=RedisBus(redis),
        ) as connector,
    ):
        with listener.bind("127.0.0.1", int(port)) as listening:
            server = listener.Listener(Starlette(routes=connector.routes))
            serving = asyncio.create_task(server.serve([listening]))
            await server.serving.wait()
            print(listening.getsockname()[1], flush=True)
            await serving


if __name__ == "__main__":
    with logs.configured(LogSettings()):
        asyncio.run(main(*sys.argv[1:]))
