"""Confusable texts: the skeleton of UTS #39. Pure.

The table is Unicode's own, limited to letters, marks and digits; existing packages do not compute
skeletons.
"""

import unicodedata
from functools import cache
from importlib.resources import files
from typing import Final

# Invisible characters: soft hyphen, joiners, variation selectors and the like.
_INVISIBLE: Final = (
    *(0xAD, 0x34F, 0x61C, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFEFF, 0xFFA0),
    *range(0x180B, 0x1810),
    *range(0x200B, 0x2010),
    *range(0x202A, 0x202F),
    *range(0x2060, 0x2070),
    *range(0xFE00, 0xFE10),
    *range(0xE0000, 0xE1000),
)


def skeleton(text: str) -> str:
    """The case-folded skeleton: texts with the same one look alike. For comparison, not display."""
    shown = unicodedata.normalize("NFKC", text)
    # Capitals of other scripts look like Latin ones whose small letters they do not look like, so
    # it is looked at as written, and again in small letters.
    return _alike(_alike(shown).casefold()).replace("i", "l")  # a capital I looks like an l


def _alike(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    return unicodedata.normalize("NFD", decomposed.translate(_table()))


@cache
def _table() -> dict[int, str | None]:
    table: dict[int, str | None] = dict.fromkeys(_INVISIBLE)
    text = (files(__package__) / "data" / "confusables.txt").read_text("ascii")
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        prototype, _, members = line.partition(": ")
        shown = "".join(chr(int(each, 16)) for each in prototype.split())
        for member in members.split():
            table[int(member, 16)] = shown
    return table
