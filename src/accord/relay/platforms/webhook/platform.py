"""A generic webhook as the connector sees it: a program that speaks for people.

Owns the route, the descriptor and the actions of agents. What is posted is taken if it is signed
by a key of the settings and in time, and once; what agents do is posted to the program's URL.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any, Final

from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.outgoing import guarded_client, url_allowed
from accord.relay.platforms import calling, edge
from accord.relay.platforms.plain import plain
from accord.relay.platforms.secrets import secret
from accord.relay.platforms.settings.webhook import WebhookSettings
from accord.relay.platforms.webhook.incoming import PLATFORM, normalise, place_of, user_of
from accord.relay.platforms.webhook.keys import Keys, read_keys
from accord.relay.platforms.webhook.sending import Receiver
from accord.relay.wire.actions import Action, Edit, FollowUp, GetChatInfo, Result, Send, Typing
from accord.relay.wire.descriptor import Descriptor
from accord.relay.wire.members import bad

DESCRIPTOR: Final = Descriptor(
    platform=PLATFORM,
    label="Webhook",
    max_message_length=4096,
    supports_draft_streaming=False,
    supports_edit=False,
    supports_threads=True,
    markdown_dialect="markdown",
    len_unit="chars",
    emoji="🪝",
)
TOLERANCE: Final = 300.0
"""How many seconds the time of a request may be away from ours."""

_LONGEST_ID: Final = 256
_NO_CHAT: Final = Result(False, error="there is no such chat")


class WebhookPlatform:
    """One webhook.

    Args:
        settings: Its settings.
        keys: What proves what comes in.
        receiver: Where actions are posted; None for nowhere.
        clock: By which a request is late.
    """

    name = PLATFORM

    def __init__(
        self, settings: WebhookSettings, keys: Keys, receiver: Receiver | None, clock: Clock
    ) -> None:
        self._settings = settings
        self._hook = settings.name
        self._keys = keys
        self._receiver = receiver
        self._clock = clock
        self._context: PlatformContext | None = None
        self._sender = calling.Sender()
        self.routes: Sequence[BaseRoute] = (
            edge.hook(f"/relay/platforms/{PLATFORM}/{self._hook}", self._posted, PLATFORM),
        )

    @property
    def bot_id(self) -> str:
        """The webhook's name."""
        return self._hook

    @property
    def idempotent(self) -> bool:
        """Whether the receiver does nothing twice."""
        return self._settings.deduplicates

    def descriptor(self) -> Descriptor:
        """What the receiver can do."""
        return replace(
            DESCRIPTOR,
            max_message_length=self._settings.max_message_length,
            supports_edit=self._settings.edits,
            markdown_dialect="markdown" if self._settings.markdown else "plain",
        )

    def bind(self, context: PlatformContext) -> None:
        """Get to know the connector, for what is posted to this process."""
        self._context = self._sender.context = context

    async def run(self, context: PlatformContext) -> None:
        """Stand ready; everything comes by webhook."""
        context.ready()
        await asyncio.Event().wait()

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Do what an agent asked for and the gate allowed."""
        if isinstance(action, FollowUp):
            return Result(False, error="a webhook gives no capabilities")
        place = place_of(self._hook, action.chat_id)
        if place is None:
            return _NO_CHAT
        if isinstance(action, GetChatInfo):
            kind = "chat" if place.thread_id is None else "thread"
            return Result(True, chat_info={"name": place.chat_id, "type": kind})
        if isinstance(action, Edit) and not self._settings.edits:
            return Result(False, error="the receiver cannot change messages")
        if self._receiver is None:
            return Result(False, error="this webhook has no URL to which anything could be sent")
        told: dict[str, Any] = {"type": action.op, "chat_id": place.chat_id}
        if place.thread_id is not None:
            told["thread_id"] = place.thread_id
        match action:
            case Send(_, content, reply_to):
                told |= {"text": self._text(content), "reply_to": reply_to}
            case Edit(_, message_id, content):
                told |= {"text": self._text(content), "message_id": message_id}
            case Typing():
                pass
        return await self._sender.send(self._receiver.post(told, idempotency_key))

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether the settings say so; nobody else could tell."""
        if place_of(self._hook, channel_id) is None:
            return False
        return True if self._settings.open_chats or self._is_manager(user_id) else None

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether the settings name the user."""
        return place_of(self._hook, channel_id) is not None and self._is_manager(user_id)

    def _is_manager(self, user_id: str) -> bool:
        return any(user_id == user_of(self._hook, each) for each in self._settings.managers)

    def _text(self, content: str) -> str:
        return content if self._settings.markdown else plain(content)

    async def _posted(self, request: Request) -> Response:
        headers = request.headers
        message_id, signature = headers.get("webhook-id", ""), headers.get("webhook-signature", "")
        timestamp = headers.get("webhook-timestamp", "")
        if not message_id or not signature or not timestamp:
            raise RelayError(
                Code.UNAUTHORIZED,
                "the request is not signed",
                mend="send webhook-id, webhook-timestamp and webhook-signature",
            )
        body = await edge.raw_body(request)
        if not self._keys.is_signed(message_id, timestamp, body, signature):
            raise RelayError(Code.UNAUTHORIZED, "the signature is by no key of this webhook")
        if not (timestamp.isascii() and timestamp.isdecimal() and len(timestamp) <= 12):
            raise bad("the timestamp is no number of seconds", where="webhook-timestamp")
        if abs(self._clock.now() - int(timestamp)) > TOLERANCE:
            raise bad("the request is too old, or from the future", where="webhook-timestamp")
        if len(message_id) > _LONGEST_ID:
            raise bad(f"an id has at most {_LONGEST_ID} characters", where="webhook-id")
        inbound = normalise(edge.json_object(body), self._hook, message_id)
        is_new = await edge.take(self._context, inbound)
        return JSONResponse({"id": message_id, "new": is_new})


@asynccontextmanager
async def open_webhook(
    settings: WebhookSettings, clock: Clock, public_url: str = ""
) -> AsyncIterator[WebhookPlatform]:
    """A webhook, ready to be given to the connector; it posts nothing yet.

    Args:
        settings: Its settings.
        clock: Where the time comes from.
        public_url: Where the connector is reached from outside; it is not signed.

    Raises:
        RelayError: A key cannot be had, or the URL may not be called.
    """
    given = secret(settings.secret, settings.secret_file, "secret").get_secret_value()
    keys = read_keys(given, "secret")
    async with AsyncExitStack() as stack:
        receiver = None
        if settings.url:
            url_allowed(settings.url, settings.outgoing).demand()
            own = secret(settings.send_secret, settings.send_secret_file, "send_secret")
            client = await stack.enter_async_context(guarded_client(settings.outgoing))
            send_keys = read_keys(own.get_secret_value(), "send_secret")
            receiver = Receiver(client, settings.url, send_keys, clock)
        yield WebhookPlatform(settings, keys, receiver, clock)
