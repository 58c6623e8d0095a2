"""How many segments a text message takes, which is what its sending costs.

Pure. GSM 03.38 has one septet for each character of its alphabet and two for those of its
extension; a text with any other character is sent as UCS-2. A message of several segments spends
some of each on their order, and no character is torn between two.
"""

from dataclasses import dataclass
from typing import Final

_BASIC: Final = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?"
    "¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_EXTENSION: Final = frozenset("\f^{}\\[~]|€")
_GSM: Final = (160, 153)
_UCS: Final = (70, 67)


@dataclass(frozen=True, slots=True)
class Segments:
    """The encoding of a text message, `GSM-7` or `UCS-2`, and how many segments it takes."""

    encoding: str
    count: int


def segments(text: str) -> Segments:
    """What a text takes; an empty one takes one segment."""
    if all(each in _BASIC or each in _EXTENSION for each in text):
        return Segments("GSM-7", _count([2 if each in _EXTENSION else 1 for each in text], *_GSM))
    return Segments("UCS-2", _count([2 if each > "\uffff" else 1 for each in text], *_UCS))


def _count(widths: list[int], alone: int, among: int) -> int:
    if sum(widths) <= alone:
        return 1
    count, room = 1, among
    for width in widths:
        if width > room:
            count, room = count + 1, among
        room -= width
    return count
