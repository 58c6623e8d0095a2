"""What the marked parts of a message say: mentions and commands.

Owns the reading of entities, whose places Telegram counts in UTF-16 code units. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from accord.relay.wire.members import Payload

_MOST: Final = 200


@dataclass(frozen=True, slots=True)
class Me:
    """Who the bot is on Telegram."""

    id: int
    username: str = ""


@dataclass(frozen=True, slots=True)
class Words:
    """The text of a message as an agent gets it.

    Attributes:
        text: The text; a command that names this bot without the name.
        command: The command that it begins with, such as `/start`; empty where there is none, or
            where it is for another bot.
        is_addressed: Whether it mentions the bot or begins with a command for it.
    """

    text: str
    command: str = ""
    is_addressed: bool = False


def read_words(text: str, entities: Any, me: Me) -> Words:
    """Read a text with its entities; an entity that makes no sense is passed over."""
    units = text.encode("utf-16-le", "surrogatepass")
    own = f"@{me.username}".lower() if me.username else ""
    command, is_addressed, cut = "", False, 0
    for entity in _entities(entities):
        marked = _part(units, entity)
        match entity.get("type"):
            case "mention":
                is_addressed |= marked.lower() == own
            case "text_mention":
                user = entity.get("user")
                is_addressed |= isinstance(user, dict) and user.get("id") == me.id
            case "bot_command" if entity.get("offset") == 0 and marked.startswith("/"):
                name, at, bot = marked.partition("@")
                if not at or at + bot.lower() == own:
                    command, is_addressed, cut = name, True, len(marked)
    return Words(command + text[cut:], command, is_addressed)


def _entities(value: Any) -> Sequence[Payload]:
    found = value[:_MOST] if isinstance(value, list) else []
    return [each for each in found if isinstance(each, dict)]


def _part(units: bytes, entity: Payload) -> str:
    offset, length = entity.get("offset"), entity.get("length")
    if type(offset) is not int or type(length) is not int or offset < 0 or length <= 0:
        return ""
    return units[2 * offset : 2 * (offset + length)].decode("utf-16-le", "replace")
