"""A generic webhook: a program that speaks for people.

Requests must be signed by a key of the settings, and recent. Actions are signed and posted to the
program's URL, where the guard of outgoing requests allows it; their `webhook-id` follows from the
idempotency key, so that a receiver can recognise repetitions. Ids of two webhooks must not collide:
a user is `name/user`, a chat `name/chat` and a thread `name/chat/thread`, percent-encoded.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, unquote

import orjson
from blake3 import blake3
from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute

from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.schema import compile_schema
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import base
from accord.relay.platforms.base import HttpService, ServiceResponse, plain_text
from accord.relay.platforms.settings import (
    DEFAULT_LIMITS,
    PlatformLimits,
    WebhookSettings,
    resolve_secret,
)
from accord.relay.platforms.webhook.rules import WebhookKeys, read_keys
from accord.relay.rules.frames import (
    Action,
    Descriptor,
    Edit,
    FollowUp,
    GetChatInfo,
    Result,
    Send,
    Typing,
)
from accord.relay.rules.members import Payload, bad
from accord.relay.rules.messages import (
    InboundEvent,
    MessageEvent,
    MessageType,
    SessionSource,
    inbound_kind,
)
from accord.web.outgoing import guarded_client, url_allowed

PLATFORM: Final = "webhook"
SCHEMA: Final[Any] = canonical.decode(
    files("accord.relay.platforms.webhook").joinpath("message.schema.json").read_bytes()
)
_SCHEMA: Final = compile_schema(SCHEMA)
_PLAIN: Final = "@:+,;=!$&'()*~ "
_SERVICE: Final = "the webhook's receiver"
_REFUSED: Final = frozenset({401, 403, 410})
_LONGEST_MESSAGE_ID: Final = 512
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
    supported_ops=("send", "typing", "get_chat_info"),
)
_LONGEST_ID: Final = 256
_NO_CHAT: Final = Result(False, error="there is no such chat")


@dataclass(frozen=True, slots=True)
class WebhookChat:
    """A chat as the program names it."""

    chat_id: str
    thread_id: str | None = None


def chat_id_of(name: str, place: WebhookChat) -> str:
    """The chat's id in the relay."""
    parts = [place.chat_id] if place.thread_id is None else [place.chat_id, place.thread_id]
    return "/".join([name, *(quote(part, safe=_PLAIN) for part in parts)])


def user_id_of(name: str, user_id: str) -> str:
    """The user's id in the relay."""
    return f"{name}/{quote(user_id, safe=_PLAIN)}"


def read_chat_id(name: str, chat_id: str) -> WebhookChat | None:
    """The program's id of a chat in the relay; None if it is not this webhook's."""
    own, *parts = chat_id.split("/")
    if own != name or len(parts) not in (1, 2) or not all(parts):
        return None
    return WebhookChat(*map(unquote, parts))


def message_inbound(body: Payload, name: str, event_id: str) -> InboundEvent:
    """The inbound event of a message; raises RelayError if it does not match the schema."""
    for finding in _SCHEMA.findings(body):
        raise bad(f"this is no message: {finding.message}", where=finding.pointer or None)
    thread, is_dm = body.get("thread_id"), body.get("chat_type", "dm") == "dm"
    chat_id = chat_id_of(name, WebhookChat(body["chat_id"], thread))
    media = tuple(body.get("media_urls", ()))
    message_id = body.get("message_id", event_id)
    source = SessionSource(
        platform=PLATFORM,
        chat_id=chat_id,
        chat_type="thread" if thread is not None else body.get("chat_type", "dm"),
        chat_name=body.get("chat_name"),
        user_id=user_id_of(name, body["user_id"]),
        user_name=body.get("user_name"),
        thread_id=None if thread is None else chat_id,
        scope_id=None if is_dm else name,
        parent_chat_id=None if thread is None else chat_id_of(name, WebhookChat(body["chat_id"])),
        message_id=message_id,
    )
    event = MessageEvent(
        body["text"],
        source,
        MessageType.DOCUMENT if media else MessageType.TEXT,
        message_id=message_id,
        reply_to_message_id=body.get("reply_to"),
        media_urls=media,
        bot_id=name,
    )
    return InboundEvent(
        PLATFORM,
        name,
        event_id,
        event,
        kind=inbound_kind(body["text"]),
        author_is_bot=body.get("is_bot", False),
        addressed=is_dm or body.get("addressed", False),
        route_key=name,
    )


@dataclass(frozen=True, slots=True)
class WebhookSender:
    """Posts actions to the webhook's receiver, signed by `keys`."""

    service: HttpService
    url: str
    keys: WebhookKeys
    clock: Clock

    async def post(self, action: dict[str, Any], key: str) -> Result:
        """Post an action; by `key` the receiver can tell that it had it before.

        Raises:
            RelayError: It was refused (UNAUTHORIZED), or not sent.
            TimeoutError: It was not answered.
        """
        # A key may have any characters and length; a header may not.
        name = f"act_{blake3(key.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"
        body = orjson.dumps(action)
        now = int(self.clock.now())
        reply = await self.service.call(
            "POST",
            self.url,
            content=body,
            headers={
                "content-type": "application/json",
                "webhook-id": name,
                "webhook-timestamp": str(now),
                "webhook-signature": self.keys.sign(name, now, body),
            },
        )
        if reply.status in _REFUSED:
            raise RelayError(
                Code.UNAUTHORIZED,
                f"{_SERVICE} refuses us ({reply.status})",
                mend="compare url and send_secret in [[relay.webhook]] with the receiver's",
            )
        if not reply.succeeded:
            error = f"{_SERVICE} answered {reply.status}"
            outcome = base.status_outcome(reply.status)
            return Result(False, error=error, retry_after=reply.retry_after, outcome=outcome)
        return Result(True, _message_id(reply))


def _message_id(reply: ServiceResponse) -> str | None:
    given = reply.members.get("message_id")
    return given if isinstance(given, str) and 0 < len(given) <= _LONGEST_MESSAGE_ID else None


class WebhookPlatform(base.HookedPlatform):
    """One webhook; without a `receiver`, agents cannot reply."""

    name = PLATFORM

    def __init__(
        self,
        settings: WebhookSettings,
        keys: WebhookKeys,
        receiver: WebhookSender | None,
        clock: Clock,
        limits: PlatformLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(_SERVICE, clock)
        self._settings = settings
        self._limits = limits
        self._hook = settings.name
        self._keys = keys
        self._receiver = receiver
        self._clock = clock
        self.routes: Sequence[BaseRoute] = (
            base.webhook_route(f"/relay/platforms/{PLATFORM}/{self._hook}", self._posted, PLATFORM),
        )

    @property
    def bot_id(self) -> str:
        """The webhook's name."""
        return self._hook

    @property
    def idempotent(self) -> bool:
        """Whether the receiver ignores repetitions."""
        return self._settings.deduplicates

    def descriptor(self) -> Descriptor:
        """What the receiver can do."""
        return replace(
            DESCRIPTOR,
            max_message_length=self._settings.max_message_length,
            supports_edit=self._settings.edits,
            supported_ops=(*DESCRIPTOR.supported_ops, *(["edit"] if self._settings.edits else [])),
            markdown_dialect="markdown" if self._settings.markdown else "plain",
        )

    async def run(self, context: PlatformContext) -> None:
        """Do nothing: everything comes by webhook."""
        context.ready()
        await asyncio.Event().wait()

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Perform an action that the gate allowed."""
        if isinstance(action, FollowUp):
            return Result(False, error="a webhook gives no capabilities")
        place = read_chat_id(self._hook, action.chat_id)
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
        receiver = self._receiver
        return await self._deliver(lambda: receiver.post(told, idempotency_key))

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether the settings say so; there is nobody else who could know."""
        if read_chat_id(self._hook, channel_id) is None:
            return False
        return self._settings.open_chats or self._is_manager(user_id)

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether the settings name the user."""
        return read_chat_id(self._hook, channel_id) is not None and self._is_manager(user_id)

    def _is_manager(self, user_id: str) -> bool:
        return any(user_id == user_id_of(self._hook, each) for each in self._settings.managers)

    def _text(self, content: str) -> str:
        return content if self._settings.markdown else plain_text(content)

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
        body = await base.read_body(request, self._limits)
        if not self._keys.is_signed(message_id, timestamp, body, signature):
            raise RelayError(Code.UNAUTHORIZED, "the signature is by no key of this webhook")
        base.require_recent(timestamp, self._clock.now(), "webhook-timestamp", self._limits)
        if len(message_id) > _LONGEST_ID:
            raise bad(f"an id has at most {_LONGEST_ID} characters", where="webhook-id")
        inbound = message_inbound(base.json_object(body), self._hook, message_id)
        is_new = await base.ingest(self.context, inbound)
        return JSONResponse({"id": message_id, "new": is_new})


@asynccontextmanager
async def open_webhook(
    settings: WebhookSettings,
    clock: Clock,
    public_url: str = "",
    *,
    limits: PlatformLimits = DEFAULT_LIMITS,
) -> AsyncIterator[WebhookPlatform]:
    """Open a webhook; nothing is posted yet. `public_url` is unused, since it is not signed.

    Raises:
        RelayError: A key cannot be read, or the URL is not allowed.
    """
    given = resolve_secret(settings.secret, settings.secret_file, "secret").get_secret_value()
    keys = read_keys(given, "secret")
    limits = limits.of(settings)
    async with AsyncExitStack() as stack:
        receiver = None
        if settings.url:
            verdict = url_allowed(settings.url, settings.outgoing)
            if not verdict.allowed:
                raise RelayError(Code.FORBIDDEN, verdict.reason, where=verdict.rule)
            own = resolve_secret(settings.send_secret, settings.send_secret_file, "send_secret")
            client = await stack.enter_async_context(
                guarded_client(settings.outgoing, seconds=limits.silent_seconds)
            )
            send_keys = read_keys(own.get_secret_value(), "send_secret")
            service = HttpService(_SERVICE, client, limits)
            receiver = WebhookSender(service, settings.url, send_keys, clock)
        yield WebhookPlatform(settings, keys, receiver, clock, limits)
