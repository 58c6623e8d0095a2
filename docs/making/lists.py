"""Lists as the site's Markdown wants them, from lists as everybody else reads them. Pure.

Python-Markdown asks for an empty line before a list and for four columns below an item. Pages are
written as CommonMark, where neither is needed, and are read with these made up for.
"""

import re
from typing import Final

_ITEM: Final = re.compile(r"(?:[-*] |\d{1,3}\. )")
_COLUMNS: Final = 4


def respaced(text: str) -> str:
    """The same text, with its lists where Python-Markdown sees them."""
    made: list[str] = []
    width = 0
    fenced = False
    for line in text.split("\n"):
        item = None if fenced else _ITEM.match(line)
        if item:
            if not width and made and made[-1].strip():
                made.append("")
            width = item.end()
        elif width and line.startswith(" " * width):
            line = " " * _COLUMNS + line[width:]
        elif line.strip() and not _goes_on(made, line):
            width = 0
        if line.lstrip().startswith("```"):
            fenced = not fenced
        made.append(line)
    return "\n".join(made)


def _goes_on(made: list[str], line: str) -> bool:
    """Whether a line without its indent still belongs to the item above it."""
    return bool(made and made[-1].strip()) and not line.startswith(("#", "|", "```", ">"))
