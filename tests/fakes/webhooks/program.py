"""A program that speaks for people by signed webhooks, and is told what agents do."""

import itertools
from collections.abc import Sequence
from typing import Any

import httpx
import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from tests.fakes.webhooks.service import HookService, Said

from accord.kernel.clock import Clock, SystemClock
from accord.relay.platforms import webhook

_IN = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
_OUT = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA="


class ProgramService(HookService):
    """The program, with one webhook; it does nothing twice for one `webhook-id`.

    Attributes:
        typed: The chats in which an agent was typing.
        edited: What messages were changed to.
    """

    def __init__(self, name: str = "desk") -> None:
        super().__init__()
        self.name = name
        self.clock: Clock = SystemClock()
        self.typed: list[str] = []
        self.edited: list[tuple[str, str]] = []
        self._done: dict[str, str] = {}
        self._keys = webhook.read_keys(_IN, "secret")
        self._proof = webhook.read_keys(_OUT, "send_secret")
        self._numbers = itertools.count(1)

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """Where it is told."""
        return [Route("/actions", self._told, methods=["POST"])]

    @property
    def settings(self) -> webhook.WebhookSettings:
        """The settings of a connector that this program speaks to."""
        return webhook.WebhookSettings.model_validate(
            {
                "name": self.name,
                "secret": _IN,
                "url": f"{self.api_url}/actions",
                "send_secret": _OUT,
                "edits": True,
                "deduplicates": True,
                "allow_http": True,
                "ports": [httpx.URL(self.api_url).port],
                "networks": ["127.0.0.0/8"],
            }
        )

    @property
    def hook_url(self) -> str:
        """Where it posts messages."""
        return f"{self.public_url}/relay/platforms/webhook/{self.name}"

    def user_id(self, user: str) -> str:
        """What the relay calls a user of the program."""
        return f"{self.name}/{user}"

    async def write(
        self, user: str, text: str, *, event_id: str = "", until_taken: bool = False, **more: Any
    ) -> httpx.Response:
        """A user writes, in a direct chat unless `more` says otherwise."""
        body = orjson.dumps({"chat_id": user, "user_id": user, "text": text, **more})
        name = event_id or f"msg_{next(self._numbers)}"
        return await self.call(lambda: self.signed(body, name), until_taken=until_taken)

    def signed(self, body: bytes, name: str, *, timestamp: int | None = None) -> httpx.Request:
        """The request that brings a body."""
        now = int(self.clock.now()) if timestamp is None else timestamp
        headers = {
            "content-type": "application/json",
            "webhook-id": name,
            "webhook-timestamp": str(now),
            "webhook-signature": self._keys.sign(name, now, body),
        }
        return httpx.Request("POST", self.hook_url, content=body, headers=headers)

    async def _told(self, request: Request) -> Response:
        if wrong := self.troubled(request):
            return wrong
        raw, headers = await request.body(), request.headers
        name = headers["webhook-id"]
        if not self._proof.is_signed(
            name, headers["webhook-timestamp"], raw, headers["webhook-signature"]
        ):
            return JSONResponse({"error": "not signed"}, 401)
        if name not in self._done:
            action = orjson.loads(raw)
            self._done[name] = f"d{next(self._numbers)}"
            await self._do(action, self._done[name])
        return JSONResponse({"message_id": self._done[name]})

    async def _do(self, action: dict[str, Any], message_id: str) -> None:
        if action["type"] == "typing":
            self.typed.append(action["chat_id"])
        elif action["type"] == "edit":
            self.edited.append((action["message_id"], action["text"]))
        else:
            await self.say(Said(action["chat_id"], action["text"], message_id, action))
