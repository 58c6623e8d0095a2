"""What may be a name or a message, and what a message says to whom.

Pure. Owns the limits of texts, the one spelling by which names are compared, and mentions.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import Final, TypeGuard

from accord.relay.wire.members import bad

MAX_TEXT: Final = 4000
"""The longest message, in characters."""

MAX_NAME: Final = 32
MAX_KEY: Final = 128

_NAME: Final = re.compile(rf"\w[\w.-]{{0,{MAX_NAME - 1}}}")
_CHANNEL: Final = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{MAX_NAME - 1}}}", re.ASCII)
_MENTION: Final = re.compile(rf"(?<![\w@.-])@(\w[\w.-]{{0,{MAX_NAME - 1}}})")
# Control characters but for tabs and line ends, and what is no character at all.
_UNSPEAKABLE: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
# Words that address a whole room are nobody's name.
_RESERVED: Final = frozenset({"all", "channel", "everyone", "here", "room"})


def account_name(value: object) -> str:
    """The name of a user or a bot, in its normal form.

    Raises:
        RelayError: It cannot be one.
    """
    name = unicodedata.normalize("NFKC", value.strip()) if _is_short(value) else ""
    if not _NAME.fullmatch(name) or name_key(name) in _RESERVED:
        raise bad(
            f"a name has 1 to {MAX_NAME} letters, digits, dots, hyphens or underscores",
            where="/name",
            mend="choose another name",
        )
    return name


def name_key(name: str) -> str:
    """By which two names are the same."""
    return unicodedata.normalize("NFKC", name.casefold())


def channel_name(value: object) -> str:
    """The name of a channel.

    Raises:
        RelayError: It cannot be one.
    """
    if not isinstance(value, str) or not _CHANNEL.fullmatch(value):
        raise bad(
            f"a channel's name has 1 to {MAX_NAME} lower-case letters, digits, hyphens or "
            "underscores",
            where="/name",
        )
    return value


def message_text(value: object) -> str:
    """The text of a message, without blank ends.

    Raises:
        RelayError: It is missing, blank, too long, or holds what cannot be shown.
    """
    text = value.strip() if isinstance(value, str) else ""
    if not text:
        raise bad("a message has a text", where="/text")
    if len(text) > MAX_TEXT:
        raise bad(f"a message has at most {MAX_TEXT} characters", where="/text")
    if _UNSPEAKABLE.search(text):
        raise bad("a message has no control characters", where="/text")
    return text


def message_key(value: object) -> str:
    """An author's own name for a message.

    Raises:
        RelayError: It cannot be one.
    """
    if not isinstance(value, str) or not 0 < len(value) <= MAX_KEY or _UNSPEAKABLE.search(value):
        raise bad(f"expected 1 to {MAX_KEY} characters, new for each message", where="/key")
    return value


def mentions(text: str) -> Iterator[str]:
    """The keys of the names that a text mentions, with and without the dots at their end."""
    for match in _MENTION.finditer(text):
        name = name_key(match[1])
        yield name
        if (bare := name.rstrip(".-")) != name:
            yield bare


def speakable(text: str) -> str:
    """A text without what no message may hold; for what agents say."""
    return _UNSPEAKABLE.sub("", text).strip()


def _is_short(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= 4 * MAX_NAME
