"""The names of users, rooms and threads, as Matrix and the relay write them.

A thread has no id of its own in Matrix: it is a message of a room. To the relay it is a chat, whose
id is the room's, a slash, and the id of the message that began it. So an answer finds its thread by
the chat id alone. Pure.
"""

import re
from typing import Final, NamedTuple

_SEPARATOR: Final = "/$"
_USER: Final = re.compile(r"@[a-zA-Z0-9._=/+-]{1,128}:[a-zA-Z0-9.:\[\]-]{1,230}", re.ASCII)
_MEDIA: Final = re.compile(r"mxc://[A-Za-z0-9.:\[\]-]{1,230}/[A-Za-z0-9_-]{1,255}", re.ASCII)


class Place(NamedTuple):
    """A room, or a thread in it."""

    room: str
    thread: str | None = None

    @property
    def chat_id(self) -> str:
        """The relay's id of it."""
        return self.room if self.thread is None else f"{self.room}/{self.thread}"

    @classmethod
    def of(cls, chat_id: str) -> "Place":
        """The place that a chat id names."""
        # No event id has a second `$`, so the last one begins the thread's.
        room, separator, thread = chat_id.rpartition(_SEPARATOR)
        return cls(room, f"${thread}") if separator else cls(chat_id)


def is_user(name: str) -> bool:
    """Whether this is the id of a user, such as `@ann:example.org`."""
    return _USER.fullmatch(name) is not None


def is_room(name: object) -> bool:
    """Whether this is the id of a room."""
    return isinstance(name, str) and name.startswith("!") and 1 < len(name) <= 255


def is_event(name: object) -> bool:
    """Whether this is the id of an event."""
    return isinstance(name, str) and name.startswith("$") and 1 < len(name) <= 255


def is_media(address: object) -> bool:
    """Whether this refers to a file on a homeserver."""
    return isinstance(address, str) and _MEDIA.fullmatch(address) is not None


def server_of(user_id: str) -> str:
    """The server that a user belongs to."""
    return user_id.partition(":")[2]


def localpart_of(user_id: str) -> str:
    """A user's name on the server."""
    return user_id.partition(":")[0].removeprefix("@")
