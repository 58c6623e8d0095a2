"""The bot's application as the developer portal shows it: token, key, intents, commands."""

import hmac
from dataclasses import dataclass, field

from tests.fakes.discord.intents import Intent
from tests.fakes.discord.world import Json

from accord.kernel.signing import SigningKey


@dataclass(eq=False, slots=True)
class Application:
    """The application; its id is the bot's.

    Attributes:
        token: The bot's token; None when it was revoked.
        key: By which interactions are signed.
        enabled: The privileged intents that are switched on.
        commands: The registered commands: of a guild by its id, and global ones under "".
    """

    id: str
    token: str | None = field(repr=False)
    key: SigningKey
    enabled: Intent
    commands: dict[str, list[Json]] = field(default_factory=dict)

    @property
    def public_key(self) -> str:
        """What verifies its interactions, in hexadecimal as the portal shows it."""
        return self.key.public.hex()

    def knows(self, token: str) -> bool:
        """Whether this is the bot's token."""
        return self.token is not None and hmac.compare_digest(self.token.encode(), token.encode())

    def command(self, name: str, guild_id: str | None) -> Json | None:
        """A registered command as it is seen in a guild, or nowhere in particular."""
        for scope in (guild_id or "", ""):
            for each in self.commands.get(scope, []):
                if each["name"] == name:
                    return each
        return None
