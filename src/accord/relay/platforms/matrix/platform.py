"""The platform of one Matrix bot: its descriptor, and the actions of agents."""

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from pydantic import SecretStr
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import RelayError
from accord.relay.platforms.base import failed_result
from accord.relay.platforms.matrix import rules
from accord.relay.platforms.matrix.api import Homeserver, Rooms, open_homeserver, room_path
from accord.relay.platforms.matrix.edge import AppService, SyncListener
from accord.relay.platforms.matrix.events import MESSAGE, PLATFORM, EventHandler
from accord.relay.platforms.matrix.rules import MatrixChat, is_event
from accord.relay.platforms.settings import (
    DEFAULT_LIMITS,
    MatrixSettings,
    PlatformLimits,
    resolve_secret,
)
from accord.relay.rules.frames import (
    Action,
    Descriptor,
    Edit,
    FollowUp,
    GetChatInfo,
    Outcome,
    Result,
    Send,
    Typing,
)

DESCRIPTOR: Final = Descriptor(
    platform=PLATFORM,
    label="Matrix",
    max_message_length=rules.MAX_TEXT,
    supports_draft_streaming=False,
    supports_edit=True,
    supports_threads=True,
    markdown_dialect="markdown",
    len_unit="chars",
    emoji="🟩",
    platform_hint=(
        "Matrix. Markdown: **bold**, *italic*, ~~struck~~, `code`, fenced code, headings, lists, "
        "quotations and links; no tables or images. Naming @user:server notifies that user."
    ),
    supported_ops=("send", "edit", "typing", "get_chat_info"),
)


class MatrixPlatform:
    """One bot on a homeserver; with `hs_token`, as an application service."""

    name = PLATFORM
    idempotent = True
    # Homeservers forget transaction ids: Synapse after half an hour at the earliest.
    idempotent_seconds = 1500.0

    def __init__(
        self,
        settings: MatrixSettings,
        homeserver: Homeserver,
        clock: Clock,
        hs_token: SecretStr | None = None,
    ) -> None:
        self._settings = settings
        self._homeserver = homeserver
        # Any process of an application service may get the state events, so they are read again.
        seconds = math.inf if hs_token is None else settings.room_seconds
        self._rooms = Rooms(homeserver, settings.user_id, clock, seconds)
        handler = EventHandler(settings, homeserver, self._rooms)
        self._sync = SyncListener(settings, homeserver, self._rooms, handler)
        self._service = AppService(settings, homeserver, handler, hs_token) if hs_token else None

    @property
    def bot_id(self) -> str:
        """The bot's user id."""
        return self._settings.user_id

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The endpoints for the homeserver, if the bot is an application service."""
        return () if self._service is None else self._service.routes

    def descriptor(self) -> Descriptor:
        """What it can do."""
        return DESCRIPTOR

    def bind(self, context: PlatformContext) -> None:
        """Set the connector, for transactions and rate limits."""
        self._homeserver.pauses.context = context
        if self._service is not None:
            self._service.context = context

    async def run(self, context: PlatformContext) -> None:
        """Listen until cancelled."""
        if self._service is not None:
            await self._service.run(context)
        else:
            await self._sync.run(context)

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Perform an action that the gate allowed; repeating it changes nothing."""
        try:
            match action:
                case Send(chat_id, content, reply_to):
                    place = MatrixChat.of(chat_id)
                    said = rules.message_content(
                        content, place, reply_to, is_notice=self._settings.notices
                    )
                    return await self._put(place, idempotency_key, said)
                case Edit(chat_id, message_id, content):
                    if not is_event(message_id):
                        return Result(False, error="there is no such message")
                    said = rules.edit_content(content, message_id, is_notice=self._settings.notices)
                    result = await self._put(MatrixChat.of(chat_id), idempotency_key, said)
                    # An edit is an event of its own; the message keeps its id.
                    return Result(True, message_id) if result.success else result
                case Typing(chat_id):
                    path = room_path(MatrixChat.of(chat_id).room, "typing", self.bot_id)
                    millis = int(self._settings.typing_seconds * 1000)
                    told = {"typing": True, "timeout": millis}
                    await self._homeserver.ask("PUT", path, told)
                    return Result(True)
                case GetChatInfo(chat_id):
                    return Result(True, chat_info=await self._describe(MatrixChat.of(chat_id)))
                case FollowUp():
                    return Result(False, error="Matrix gives no capabilities")
        except RelayError as error:
            return failed_result(error)

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user is in a room now."""
        try:
            return await self._rooms.is_member(MatrixChat.of(channel_id).room, user_id)
        except RelayError:
            return None

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user is in a room of this scope and may change its state."""
        room_id = MatrixChat.of(channel_id).room
        try:
            room = await self._rooms.current(room_id)
            is_member = await self._rooms.is_member(room_id, user_id)
        except RelayError:
            return None
        return is_member and room.scope == scope_id and room.may_manage(user_id)

    def pause(self, what: str, seconds: float) -> None:
        """Send nothing for some time, as another connector of this bot was told."""
        self._homeserver.pauses.hold(what, seconds)

    async def _put(self, place: MatrixChat, key: str, content: dict[str, Any]) -> Result:
        path = room_path(place.room, "send", MESSAGE, key)
        await self._rooms.require_unencrypted(place.room)
        answer = await self._homeserver.deliver(path, content)
        event_id = answer.get("event_id") if isinstance(answer, dict) else None
        if not isinstance(event_id, str):
            error = "the Matrix homeserver answered without an id"
            return Result(False, error=error, outcome=Outcome.UNKNOWN)
        self._rooms.remember_author(place.room, event_id, self.bot_id)
        return Result(True, event_id)

    async def _describe(self, place: MatrixChat) -> dict[str, str]:
        room = await self._rooms.current(place.room)
        is_direct = room.is_direct(self.bot_id)
        other = next((each for each in room.members if each != self.bot_id), None)
        name = (room.members[other] or other) if is_direct and other else room.name
        kind = "dm" if is_direct else "thread" if place.thread else "channel"
        info = {"name": name or room.id, "type": kind}
        if not is_direct and room.scope:
            info["scope_id"] = room.scope
        return info | ({"parent_chat_id": room.id} if place.thread else {})


@asynccontextmanager
async def open_matrix(
    settings: MatrixSettings,
    clock: Clock,
    public_url: str = "",
    *,
    limits: PlatformLimits = DEFAULT_LIMITS,
) -> AsyncIterator[MatrixPlatform]:
    """Open one bot; nothing is sent before it runs. `public_url` is unused.

    Raises:
        RelayError: A secret is missing, or its file cannot be read.
    """
    token = resolve_secret(settings.access_token, settings.access_token_file, "access_token")
    hs_token = None
    if settings.mode == "appservice":
        hs_token = resolve_secret(settings.hs_token, settings.hs_token_file, "hs_token")
    async with open_homeserver(settings, token, clock, limits) as homeserver:
        yield MatrixPlatform(settings, homeserver, clock, hs_token)
