"""Identifiers for generated code, without collisions.

They are ASCII, because Python normalises other letters, and limited in length.
"""

import re
import unicodedata
from collections.abc import Iterable
from keyword import iskeyword
from typing import Final

MAX_LENGTH: Final = 36

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", re.ASCII)


def _words(text: str) -> list[str]:
    # An accent is dropped; a character without a Latin letter becomes its number.
    plain = "".join(
        letter if letter.isascii() else f" u{ord(letter):x} "
        for letter in unicodedata.normalize("NFKD", text)
        if not unicodedata.combining(letter)
    )
    return _WORD.findall(plain)


def class_name(*texts: str) -> str:
    """A class name such as `UserFind`."""
    words = (word for text in texts for word in _words(text))
    name = "".join(word[0].upper() + word[1:] for word in words)[:MAX_LENGTH]
    return name if name[:1].isalpha() else f"T{name}"


def snake_name(text: str) -> str:
    """A method name's suffix such as `user_find`."""
    return "_".join(_words(text)).lower()[:MAX_LENGTH].rstrip("_") or "unnamed"


class UniqueNames:
    """Names of one scope, each used once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def new(self, wanted: str) -> str:
        """The wanted name, or the first free one with a number."""
        name, number = wanted, self._next.get(wanted, 2)
        while name in self._taken or iskeyword(name):
            name = f"{wanted}_{number}"
            number += 1
        self._next[wanted] = number
        self._taken.add(name)
        return name

    def all(self, wanted: Iterable[tuple[str, str]]) -> dict[str, str]:
        """A name for each key, independent of the order in which they come."""
        return {key: self.new(name) for key, name in sorted(wanted)}
