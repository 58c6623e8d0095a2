"""The registry of everything that exists, and the one place from which news goes out.

Owns ids and the order of events. It knows no socket: the gateway listens.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from accord.kernel.clock import Clock

if TYPE_CHECKING:
    from accord.testing.discord.channels import Channel
    from accord.testing.discord.guilds import Guild
    from accord.testing.discord.people import User

_EPOCH_MILLIS = 1_420_070_400_000  # the first second of 2015, from which snowflakes count

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class News:
    """Something that happened, as a gateway event before any session's intents are asked.

    Attributes:
        channel: Where; only a bot that sees it is told.
        about: The user whom it concerns, where the rules depend on that.
    """

    name: str
    data: Json
    guild: "Guild | None" = None
    channel: "Channel | None" = None
    about: str | None = None


class World:
    """Guilds, channels and people.

    Args:
        clock: Where snowflakes and timestamps come from.
        seed: Where session ids, tokens and keys come from.
    """

    def __init__(self, clock: Clock, seed: int) -> None:
        self.clock = clock
        self.chance = random.Random(seed)  # noqa: S311 - a test wants the same tokens again
        self.users: dict[str, User] = {}
        self.guilds: dict[str, Guild] = {}
        self.channels: dict[str, Channel] = {}
        self.listeners: list[Callable[[News], None]] = []
        self.bot_id = ""
        self._last_id = 0

    @property
    def bot(self) -> "User":
        """The bot under test."""
        return self.users[self.bot_id]

    def new_id(self) -> str:
        """The next snowflake: later ones are greater, even while the clock stands still."""
        millis = int(self.clock.now() * 1000) - _EPOCH_MILLIS
        self._last_id = max(self._last_id + 1, millis << 22)
        return str(self._last_id)

    def timestamp(self, after: float = 0.0) -> str:
        """The time now, or some seconds later, as the service writes it."""
        return datetime.fromtimestamp(self.clock.now() + after, UTC).isoformat(
            timespec="microseconds"
        )

    def secret(self, size: int = 16) -> str:
        """A new opaque text."""
        return self.chance.randbytes(size).hex()

    def tell(self, news: News) -> None:
        """Let whoever listens know."""
        for listener in self.listeners:
            listener(news)
