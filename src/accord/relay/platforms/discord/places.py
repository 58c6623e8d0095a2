"""What kind of place a channel is, and what it is called. Pure.

Owns what is known of channels: from the gateway's events, and else from whoever looks one up. A
message says only the id of its channel; whether that is a thread, and in which channel, is here.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from accord.relay.platforms.discord.permissions import THREADS
from accord.relay.platforms.discord.snowflakes import is_snowflake

DIRECT: Final = frozenset({1, 3})
_MOST: Final = 20_000


@dataclass(frozen=True, slots=True)
class Place:
    """A channel, thread or direct chat.

    Attributes:
        kind: Discord's number for it.
        parent_id: Of a thread, the channel that it is in.
        latest: The id of its last message, at the time it was described.
    """

    id: str
    kind: int
    guild_id: str | None = None
    parent_id: str | None = None
    name: str | None = None
    topic: str | None = None
    latest: int = 0

    @property
    def chat_type(self) -> str:
        """What it is to the relay."""
        if self.guild_id is None:
            return "dm"
        return "thread" if self.kind in THREADS else "group"


def read_place(value: Any, guild_id: str | None = None) -> Place | None:
    """A channel as the API describes it; None where it does not describe one.

    Args:
        value: The channel.
        guild_id: Where it is, for a channel that stands in its guild's description.
    """
    match value:
        case {"id": place_id, "type": int(kind)} if is_snowflake(place_id):
            pass
        case _:
            return None
    around = value.get("guild_id") or guild_id
    if not (is_snowflake(around) or (around is None and kind in DIRECT)):
        return None
    parent, latest = value.get("parent_id"), value.get("last_message_id")
    is_thread = kind in THREADS
    if is_thread and not is_snowflake(parent):
        return None
    return Place(
        place_id,
        kind,
        around,
        parent if is_thread else None,
        _text(value.get("name")),
        _text(value.get("topic")),
        int(latest) if is_snowflake(latest) else 0,
    )


class Places:
    """The places that are known; of very many, those that were used last."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Place] = OrderedDict()

    def get(self, place_id: str) -> Place | None:
        """A place, if it is known."""
        place = self._known.get(place_id)
        if place is not None:
            self._known.move_to_end(place_id)
        return place

    def put(self, place: Place) -> None:
        """Get to know a place, or how it has changed."""
        self._known[place.id] = place
        self._known.move_to_end(place.id)
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    def drop(self, place_id: Any) -> None:
        """Forget a place that is no more."""
        if isinstance(place_id, str):
            self._known.pop(place_id, None)

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
