"""What else than text a message consists of.

Owns the references to files, which name a file to this bot and hold no secret: the address of a
file on Telegram's servers would have the token in it. Pure.
"""

from dataclasses import dataclass
from typing import Any, Final

from accord.relay.wire.event import MessageType
from accord.relay.wire.members import MAX_ID, Payload

REFERENCE: Final = "telegram:file/"
# An animation is a document too, and a venue has a location: the first that is there counts.
_FILES: Final = (
    ("animation", MessageType.VIDEO),
    ("video", MessageType.VIDEO),
    ("video_note", MessageType.VIDEO),
    ("voice", MessageType.VOICE),
    ("audio", MessageType.AUDIO),
    ("sticker", MessageType.STICKER),
    ("document", MessageType.DOCUMENT),
)


@dataclass(frozen=True, slots=True)
class Media:
    """What a message shows.

    Attributes:
        text: What it says where the message has no text of its own.
    """

    kind: MessageType
    urls: tuple[str, ...] = ()
    text: str = ""


def read_media(message: Payload) -> Media | None:
    """The file or place in a message; None where there is none that we know."""
    photo = message.get("photo")
    if isinstance(photo, list) and photo and (url := _reference(photo[-1])):
        return Media(MessageType.PHOTO, (url,))  # the sizes of one photo, the largest last
    for name, kind in _FILES:
        file: Any = message.get(name)
        if url := _reference(file):
            emoji = file.get("emoji") if name == "sticker" else None
            return Media(kind, (url,), emoji if isinstance(emoji, str) else "")
    return _place(message)


def _reference(file: Any) -> str:
    name = file.get("file_id") if isinstance(file, dict) else None
    if not isinstance(name, str) or not 0 < len(name) <= MAX_ID or not name.isascii():
        return ""
    return REFERENCE + name if name.isprintable() and " " not in name else ""


def _place(message: Payload) -> Media | None:
    venue = message.get("venue")
    named = venue if isinstance(venue, dict) else {}
    location = named.get("location") or message.get("location")
    if not isinstance(location, dict):
        return None
    at: list[Any] = [location.get(name) for name in ("latitude", "longitude")]
    if not all(type(each) in (int, float) and -180 <= each <= 180 for each in at):
        return None
    words = [named.get(name) for name in ("title", "address")]
    told = [each for each in words if isinstance(each, str) and each]
    return Media(MessageType.LOCATION, text="\n".join([*told, f"{at[0]:.6f}, {at[1]:.6f}"]))
