"""Names, texts and mentions in the web chat: limits, normal forms, reserved names. Pure.

What is not valid raises RelayError.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final, TypeGuard

from accord.kernel.confusables import skeleton
from accord.relay.rules.members import bad

MAX_TEXT: Final = 4000
"""The longest message, in characters."""

MAX_NAME: Final = 32
MAX_KEY: Final = 128

_CHANNEL: Final = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_NAME - 1}}}", re.ASCII)
_MENTION: Final = re.compile(r"(?<![\w@.-])@(?=\w)")
# Between the letters and digits of a name.
_BETWEEN: Final = frozenset(" .-_'\u2019\u00b7")
_JOINERS: Final = frozenset("\u200c\u200d")
_ENDS: Final = ".-_'\u2019\u00b7 "
_VIRAMA: Final = 9
# Control characters but for tabs and line ends, and what is no character at all.
_UNSPEAKABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Words that address a whole room are nobody's name.
_RESERVED: Final = frozenset({"all", "channel", "everyone", "here", "room"})
# Names that look like the station itself.
_OFFICIAL: Final = frozenset(
    skeleton(name)
    for name in (
        "accord",
        "admin",
        "administrator",
        "agent",
        "bot",
        "concierge",
        "moderator",
        "operator",
        "owner",
        "relay",
        "root",
        "security",
        "station",
        "support",
        "system",
    )
)


def account_name(value: object) -> str:
    """The name of a user, a bot or a space, in its normal form.

    Letters of every script with their marks, digits, and between them spaces, dots, hyphens,
    underscores, apostrophes and middle dots.
    """
    name = unicodedata.normalize("NFKC", " ".join(value.split())) if _is_short(value) else ""
    is_name = 0 < len(name) <= MAX_NAME and _is_spelled(name)
    if not is_name or name_key(name) in _RESERVED:
        raise bad(
            f"a name has 1 to {MAX_NAME} letters or digits, and between them spaces, dots, "
            "hyphens, underscores or apostrophes",
            where="/name",
            mend="choose another name",
        )
    return name


def person_name(value: object) -> str:
    """The name of somebody who joins by an invite; it must not look like the station's."""
    name = account_name(value)
    # Without points and marks, which a reader overlooks: "concierge." is reserved, too.
    bare = "".join(each for each in skeleton(name) if each.isalnum() or each == " ")
    if bare in _OFFICIAL:
        raise bad(
            "this name is reserved, or looks like one that is",
            where="/name",
            mend="choose another name",
        )
    return name


def name_key(name: str) -> str:
    """The key by which two names are equal."""
    return unicodedata.normalize("NFKC", name.casefold())


def look_key(name: str) -> str:
    """The key by which two names look alike; points at the end are overlooked."""
    return skeleton(name).replace("\u2019", "'").rstrip(".'\u00b7")


def channel_name(value: object) -> str:
    """The name of a channel."""
    if not isinstance(value, str) or not _CHANNEL.fullmatch(value):
        raise bad(
            f"a channel's name has 1 to {MAX_NAME} lower-case letters, digits, hyphens or "
            "underscores",
            where="/name",
        )
    return value


def message_text(value: object) -> str:
    """The text of a message, stripped."""
    text = value.strip() if isinstance(value, str) else ""
    if not text:
        raise bad("a message has a text", where="/text")
    if len(text) > MAX_TEXT:
        raise bad(f"a message has at most {MAX_TEXT} characters", where="/text")
    if _UNSPEAKABLE.search(text):
        raise bad("a message has no control characters", where="/text")
    return text


def message_key(value: object) -> str:
    """An author's idempotency key for a message."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_KEY or _UNSPEAKABLE.search(value):
        raise bad(f"expected 1 to {MAX_KEY} characters, new for each message", where="/key")
    return value


def mentions(text: str) -> Iterator[str]:
    """The keys of the names that a text may mention; at one position the longest first.

    Names have spaces, so what follows an @ is tried as a whole, then with a word less each time.
    """
    for match in _MENTION.finditer(text):
        name = _spelled(text[match.end() : match.end() + MAX_NAME])
        while name:
            yield name_key(name)
            bare = name.rstrip(_ENDS)
            name = bare if bare != name else name.rpartition(" ")[0]


def speakable(text: str) -> str:
    """A text of an agent without characters that no message may hold."""
    return _UNSPEAKABLE.sub("", text).strip()


def _spelled(text: str) -> str:
    """The longest prefix of a text that could be a name."""
    end = next((at for at, each in enumerate(text) if not _is_part(each)), len(text))
    return text[:end].rstrip()


def _is_part(character: str) -> bool:
    is_letter = unicodedata.category(character)[0] in "LMN"
    return is_letter or character in _BETWEEN or character in _JOINERS


def _is_spelled(name: str) -> bool:
    """Whether the characters of a name are allowed where they are."""
    if not name[0].isalnum() or name.endswith(" "):
        return False
    before = ""
    for character in name:
        if character in _JOINERS:
            # They shape letters of Arabic and Indic scripts, and are invisible in all others.
            is_arabic = unicodedata.bidirectional(before) == "AL"
            if unicodedata.combining(before) != _VIRAMA and not is_arabic:
                return False
        elif not _is_part(character):
            return False
        before = character
    return before not in _JOINERS


def _is_short(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= 4 * MAX_NAME
