"""Where one character that people see ends and the next begins.

Enough of the Unicode rules (UAX 29) to not tear apart what chats contain: combining marks, joined
and coloured emoji, flags, Hangul syllables, line ends. It decides single places and keeps no state.
"""

import unicodedata
from typing import Final

_JOINER: Final = "\u200d"
_EXTENDING: Final = frozenset({"Mn", "Me", "Mc"})


def is_border(text: str, index: int, start: int = 0) -> bool:
    """Whether the text may be cut before `index`, looking back no further than `start`."""
    if index <= start or index >= len(text):
        return True
    before, after = text[index - 1], text[index]
    if before < "\u0300" and after < "\u0300":
        return not (before == "\r" and after == "\n")
    if before == _JOINER or _extends(after) or _continues_syllable(before, after):
        return False
    if _is_flag_half(before) and _is_flag_half(after):
        first = index
        while first > start and _is_flag_half(text[first - 1]):
            first -= 1
        return (index - first) % 2 == 0
    return True


def _extends(character: str) -> bool:
    return (
        character in "\u200c\u200d"
        or "\U0001f3fb" <= character <= "\U0001f3ff"  # skin colours
        or "\U000e0020" <= character <= "\U000e007f"  # tags, as in the flag of Scotland
        or unicodedata.category(character) in _EXTENDING
    )


def _continues_syllable(before: str, after: str) -> bool:
    if "\u1160" <= after <= "\u11ff":  # vowels and finals follow what they belong to
        return "\u1100" <= before <= "\u11ff" or "\uac00" <= before <= "\ud7a3"
    is_lead = "\u1100" <= before <= "\u115f"
    return is_lead and ("\u1100" <= after <= "\u115f" or "\uac00" <= after <= "\ud7a3")


def _is_flag_half(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"
