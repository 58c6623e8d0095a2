"""What a person says to the bot to link an account: section 3 of the notes on the specification.

Owns the form of codes and the recognition of `/link CODE`, `/unlink` and a confirmation. Whether a
code is right is the connector's to find out, in constant time; here nothing is compared with it.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

CODE_BITS: Final = 50
"""How much chance a code holds: more than the 40 bits that the specification demands."""

_ALPHABET: Final = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_READABLE: Final = str.maketrans("OIL", "011", "-")
_CODE: Final = r"[0-9A-Za-z]{5}-?[0-9A-Za-z]{5}"
_WHOLE_CODE: Final = re.compile(_CODE, re.ASCII)
_ANY_CODE: Final = re.compile(rf"(?<![0-9A-Za-z-]){_CODE}(?![0-9A-Za-z-])", re.ASCII)
_COMMAND: Final = re.compile(r"\s*/(link|unlink)(?:@\w{1,64})?(?!\S)", re.ASCII | re.IGNORECASE)
_YES: Final = frozenset({"yes", "y", "/yes", "confirm", "/confirm"})
_NO: Final = frozenset({"no", "n", "/no", "cancel", "/cancel"})
_MAX_CODES: Final = 8
_LONGEST_ANSWER: Final = 40


class LinkCommand(Enum):
    """What a message about linking asks for."""

    LINK = "link"
    UNLINK = "unlink"
    CONFIRM = "confirm"
    DECLINE = "decline"
    BURN = "burn"
    """A code was shown in a group: nobody may use it any more."""


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """A message about linking.

    Attributes:
        code: The code in its one spelling; None where the command has none, or not a code.
    """

    command: LinkCommand
    code: str | None = None

    def __repr__(self) -> str:
        return f"LinkRequest({self.command.value})"  # a code is a secret


def recognise(text: str, *, is_dm: bool, awaiting: bool) -> LinkRequest | None:
    """What a message says about linking; None for every other message.

    Args:
        text: The message.
        is_dm: Whether it was written to the bot directly.
        awaiting: Whether the author has been asked to confirm a link.
    """
    if is_dm and awaiting and len(text) <= _LONGEST_ANSWER:
        answer = text.strip().lower()
        if answer in _YES:
            return LinkRequest(LinkCommand.CONFIRM)
        if answer in _NO:
            return LinkRequest(LinkCommand.DECLINE)
    command = _COMMAND.match(text)
    if command is None:
        return None
    code = _spelled(text[command.end() : command.end() + _LONGEST_ANSWER])
    if not is_dm:
        return LinkRequest(LinkCommand.BURN, code) if code else None
    if command[1].lower() == "link":
        return LinkRequest(LinkCommand.LINK, code)
    return LinkRequest(LinkCommand.UNLINK)


def codes_in(text: str) -> tuple[str, ...]:
    """What could be codes in a group's message, a few at most: an outstanding one is burned."""
    found: list[str] = []
    for match in _ANY_CODE.finditer(text):
        found.append(match[0].upper().translate(_READABLE))
        if len(found) == _MAX_CODES:
            break
    return tuple(found)


def write_code(chance: int) -> str:
    """A code for people to type, from `CODE_BITS` random bits."""
    digits = "".join(_ALPHABET[chance >> shift & 31] for shift in range(CODE_BITS - 5, -1, -5))
    return f"{digits[:5]}-{digits[5:]}"


def _spelled(rest: str) -> str | None:
    words = rest.split(None, 1)
    if not words or not _WHOLE_CODE.fullmatch(words[0]):
        return None
    return words[0].upper().translate(_READABLE)
