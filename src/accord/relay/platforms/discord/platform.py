"""The platform of one Discord bot: its descriptor, and how its parts are put together."""

import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from pydantic import SecretStr
from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.commands import CommandMenu, CommandPublisher
from accord.relay.platforms.discord.api import DiscordApi, PermissionLookup, open_api
from accord.relay.platforms.discord.edge import (
    DispatchHandler,
    GatewayListener,
    InteractionEndpoint,
)
from accord.relay.platforms.discord.events import PLATFORM
from accord.relay.platforms.discord.rules.permissions import Permission
from accord.relay.platforms.discord.rules.protocol import Checkpoint
from accord.relay.platforms.discord.sender import DiscordMenu, DiscordSender
from accord.relay.platforms.settings import (
    DEFAULT_LIMITS,
    MOST_SHARDS,
    DiscordSettings,
    PlatformLimits,
    resolve_secret,
)
from accord.relay.rules.frames import Action, Descriptor, Result
from accord.relay.rules.shards import Shard

DESCRIPTOR: Final = Descriptor(
    platform=PLATFORM,
    label="Discord",
    max_message_length=2000,
    supports_draft_streaming=False,
    supports_edit=True,
    supports_threads=True,
    markdown_dialect="discord",
    len_unit="utf16",  # never more than Discord takes, whichever way it counts
    emoji="🎮",
    platform_hint=(
        "Discord. Markdown: **bold**, *italic*, ~~struck~~, ||spoiler||, `code`, fenced code, "
        "> quotes, lists, # headings up to ###, links; no tables. People are mentioned as <@id>."
    ),
    supported_ops=("send", "edit", "typing", "follow_up", "get_chat_info"),
)

_TOKEN: Final = re.compile(r"[!-~]{1,512}")


class DiscordPlatform:
    """One bot on Discord; see `open_discord`."""

    name = PLATFORM
    idempotent = True
    # Discord compares nonces for some minutes; it does not say how many.
    idempotent_seconds = 120.0

    def __init__(
        self,
        settings: DiscordSettings,
        token: SecretStr,
        rest: DiscordApi,
        clock: Clock,
        chance: Callable[[], float],
        menu: CommandMenu,
    ) -> None:
        self._settings = settings
        self._token = token
        self._rest = rest
        self._clock = clock
        self._chance = chance
        self._lookup = PermissionLookup(rest, settings, clock)
        self._sender = DiscordSender(settings.application_id, rest, settings.mentions)
        shown = DiscordMenu(settings.application_id, rest)
        self._publisher = CommandPublisher(menu, settings, shown)
        is_called = bool(settings.public_key)
        self._endpoint = InteractionEndpoint(settings, clock, rest.limits) if is_called else None

    @property
    def bot_id(self) -> str:
        """The bot's own id."""
        return self._settings.application_id

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The endpoint for interactions, if the bot has a public key."""
        return [self._endpoint.route] if self._endpoint else []

    def descriptor(self) -> Descriptor:
        """What it can do."""
        return DESCRIPTOR

    def bind(self, context: PlatformContext) -> None:
        """Set the connector, for interactions and rate limits."""
        self._rest.context = context
        if self._endpoint is not None:
            self._endpoint.context = context

    @property
    def only_shard(self) -> Shard | None:
        """The shard of the setting `shard`, if it names one of several."""
        shard = Shard(*self._settings.shard)
        return shard if shard.count > 1 else None

    async def shard_count(self) -> int:
        """The number of shards that is set, or that Discord recommends."""
        if self._settings.shards:
            return self._settings.shards
        answer = await self._rest.get("/gateway/bot")
        match answer.body:
            case {"shards": int(count)} if answer.ok and 1 <= count <= MOST_SHARDS:
                return count
        raise RelayError(Code.UNAVAILABLE, "Discord does not say how many shards it wants")

    async def run(self, context: PlatformContext) -> None:
        """Listen until cancelled, to all or to the shard that is set."""
        await self.run_shard(context, Shard(*self._settings.shard))

    async def run_shard(self, context: PlatformContext, shard: Shard) -> None:
        """Listen to one shard until cancelled."""
        state = await context.recall()
        checkpoint = Checkpoint.read(state)
        if not state and shard.count > 1:
            checkpoint = Checkpoint.inherit(await context.recall_others())
        handler = DispatchHandler(
            self.bot_id,
            self._rest,
            self._lookup,
            self._clock,
            context,
            checkpoint,
            self._settings,
            self._chance,
            shard,
        )
        await GatewayListener(self._settings, self._token, handler).run()

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Perform an action that the gate allowed."""
        return await self._sender.perform(action, idempotency_key, capability)

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel."""
        return await self._lookup.allowed(user_id, scope_id, channel_id, Permission.VIEW_CHANNEL)

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel."""
        return await self._lookup.allowed(user_id, scope_id, channel_id, Permission.MANAGE_CHANNELS)

    def offer_commands(self, instance: str, manifest: Any) -> None:
        """Publish an instance's commands in the background, if the operator allows it."""
        self._publisher.offer(instance, manifest)

    def begin_commands(self) -> None:
        """Publish the menu anew: this process holds the bot's lease now."""
        self._publisher.begin()

    def pause(self, what: str, seconds: float) -> None:
        """Wait, as another connector of this bot was told."""
        self._rest.pause(what, seconds)

    async def close(self) -> None:
        """Stop the background work."""
        await self._publisher.close()


@asynccontextmanager
async def open_discord(
    settings: DiscordSettings,
    clock: Clock,
    public_url: str = "",
    *,
    limits: PlatformLimits = DEFAULT_LIMITS,
    chance: Callable[[], float] = random.random,
) -> AsyncIterator[DiscordPlatform]:
    """Open one bot of a connector process; nothing is sent to Discord yet.

    `public_url` is unused: the operator enters it in Discord's portal. `chance` spreads pauses.

    Raises:
        RelayError: The token is missing, given twice, unreadable or malformed, or the file of
            commands is.
    """
    token = resolve_secret(settings.token, settings.token_file, "token")
    if not _TOKEN.fullmatch(token.get_secret_value()):
        raise RelayError(
            Code.BAD_REQUEST, "this is no bot token", where="token", mend="copy it again"
        )
    menu = CommandMenu.load(settings)
    async with open_api(settings, token, clock, limits.of(settings)) as rest:
        platform = DiscordPlatform(settings, token, rest, clock, chance, menu)
        try:
            yield platform
        finally:
            await platform.close()
