"""Where a growing text may be cut, for platforms on which a message cannot be changed. Pure.

A segment ends with a paragraph, or, where a paragraph goes on for long, with a sentence. Fenced
code is never cut here: what is longer than a message is cut later, by the platform's own limit.
"""

import re
from typing import Final

from accord.relay.wire.fences import blocks

_PARAGRAPH: Final = re.compile(r"\n[ \t]*\n\s*")
# Chinese and Japanese sentences end without white space.
_SENTENCE: Final = re.compile("[.!?\u2026][\"'\u201d\u2019)\\]]*\\s+|[\u3002\uff01\uff1f]|\n")
SHORT: Final = 160
"""Paragraphs are gathered until they are this long together."""
LONG: Final = 1200
"""A paragraph that is longer is cut after a sentence."""


def ready(text: str) -> int:
    """How much of a text, from its start, can be sent while more of it is to come."""
    # A block without its closing line goes on beyond what there is.
    fenced = [
        (block.begin, block.after if block.end < block.after else len(text) + 1)
        for block in blocks(text)
    ]
    end = _last_outside([match.end() for match in _PARAGRAPH.finditer(text)], fenced)
    if end >= SHORT:
        return end
    if len(text) < LONG:
        return 0
    end = _last_outside([match.end() for match in _SENTENCE.finditer(text)], fenced)
    return end if end >= SHORT else 0


def _last_outside(ends: list[int], fenced: list[tuple[int, int]]) -> int:
    """The last of some places that is in none of the blocks, or 0; both are in order."""
    block = len(fenced) - 1
    for end in reversed(ends):
        while block >= 0 and fenced[block][0] >= end:
            block -= 1
        if block < 0 or end >= fenced[block][1]:
            return end
    return 0
