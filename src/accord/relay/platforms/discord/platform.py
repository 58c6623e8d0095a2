"""Discord as the connector sees it: one bot.

Owns the descriptor and puts the parts together. Opening it asks Discord for nothing.
"""

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
from accord.relay.platforms.discord.actions import Actions
from accord.relay.platforms.discord.commands import Publisher
from accord.relay.platforms.discord.door import Door
from accord.relay.platforms.discord.intake import Intake
from accord.relay.platforms.discord.listening import Listening
from accord.relay.platforms.discord.memory import Memory
from accord.relay.platforms.discord.normalise import PLATFORM
from accord.relay.platforms.discord.permissions import Permission
from accord.relay.platforms.discord.rest import Rest, open_rest
from accord.relay.platforms.discord.sight import Sight
from accord.relay.platforms.secrets import secret
from accord.relay.platforms.settings.discord import DiscordSettings
from accord.relay.wire.actions import Action, Result
from accord.relay.wire.descriptor import Descriptor

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
)

_TOKEN: Final = re.compile(r"[!-~]{1,512}")


class DiscordPlatform:
    """One bot on Discord; see `open_discord`."""

    name = PLATFORM
    idempotent = True

    def __init__(
        self,
        settings: DiscordSettings,
        token: SecretStr,
        rest: Rest,
        clock: Clock,
        chance: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._token = token
        self._rest = rest
        self._clock = clock
        self._chance = chance
        self._sight = Sight(rest, clock)
        self._actions = Actions(settings.application_id, rest, settings.mentions)
        self._publisher = Publisher(settings.application_id, rest)
        key = settings.public_key
        self._door = Door(settings.application_id, key, clock) if key else None

    @property
    def bot_id(self) -> str:
        """The bot's own id."""
        return self._settings.application_id

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """Where Discord posts interactions, for a bot that has a public key."""
        return [self._door.route] if self._door else []

    def descriptor(self) -> Descriptor:
        """What it can do."""
        return DESCRIPTOR

    def bind(self, context: PlatformContext) -> None:
        """Get to know the connector, for what interactions bring."""
        if self._door is not None:
            self._door.context = context

    async def run(self, context: PlatformContext) -> None:
        """Listen until cancelled."""
        memory = Memory.read(await context.recall())
        seconds = self._settings.backfill_hours * 3600
        intake = Intake(
            self.bot_id,
            self._rest,
            self._sight,
            self._clock,
            context,
            memory,
            seconds,
            self._chance,
        )
        await Listening(
            self._settings, self._token, self._rest, self._clock, context, intake, self._chance
        ).run()

    async def perform(
        self, action: Action, idempotency_key: str, capability: SecretStr | None = None
    ) -> Result:
        """Do what an agent asked for and the gate allowed."""
        return await self._actions.perform(action, idempotency_key, capability)

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel."""
        return await self._sight.allowed(user_id, scope_id, channel_id, Permission.VIEW_CHANNEL)

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel."""
        return await self._sight.allowed(user_id, scope_id, channel_id, Permission.MANAGE_CHANNELS)

    def offer_commands(self, instance: str, manifest: Any) -> None:
        """Show an instance's commands, soon."""
        self._publisher.offer(instance, manifest)

    async def close(self) -> None:
        """End what runs in the background."""
        await self._publisher.close()


@asynccontextmanager
async def open_discord(
    settings: DiscordSettings,
    clock: Clock,
    public_url: str = "",
    *,
    chance: Callable[[], float] = random.random,
) -> AsyncIterator[DiscordPlatform]:
    """Open one bot of a connector process; Discord is asked for nothing yet.

    Args:
        settings: The operator's choices.
        clock: Where the time comes from.
        public_url: Where the connector is reached from outside. It is not needed here: the operator
            writes the address of the interactions into Discord's portal.
        chance: From 0 to 1, for pauses that must not be everybody's.

    Raises:
        RelayError: The token is missing, given twice, in a file that cannot be read, or none.
    """
    token = secret(settings.token, settings.token_file, "token")
    if not _TOKEN.fullmatch(token.get_secret_value()):
        raise RelayError(
            Code.BAD_REQUEST, "this is no bot token", where="token", mend="copy it again"
        )
    async with open_rest(settings.api_url, token, clock) as rest:
        platform = DiscordPlatform(settings, token, rest, clock, chance)
        try:
            yield platform
        finally:
            await platform.close()
