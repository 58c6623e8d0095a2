"""Markdown as plain text, for services that show it as it is written.

Pure. What it leaves out only marks text up, so that a text never becomes longer; code keeps its
characters.
"""

import re
from typing import Final

_FENCE: Final = ("```", "~~~")
_HEADING: Final = re.compile(r" {0,3}#{1,6} ++")
# Code first, so that nothing inside it is taken for something else.
_MARKED: Final = re.compile(
    r"`(?P<code>[^`\n]++)`"
    r"|\*\*(?P<strong>[^*\n]++)\*\*"
    r"|\[(?P<label>[^\[\]\n]++)\]\((?P<link>https?://[^\s()]++)\)"
)


def plain(text: str) -> str:
    """The text without its marks; one that is nothing but marks stays as it is."""
    lines: list[str] = []
    in_code = False
    for line in text.split("\n"):
        if line.lstrip(" ").startswith(_FENCE):
            in_code = not in_code
        elif in_code:
            lines.append(line)
        else:
            lines.append(_MARKED.sub(_unmarked, _HEADING.sub("", line, count=1)))
    bare = "\n".join(lines)
    return bare if bare.strip() else text


def _unmarked(found: re.Match[str]) -> str:
    if found["link"] is None:
        return found["code"] or found["strong"]
    is_bare = found["label"] == found["link"]
    return found["link"] if is_bare else f"{found['label']} ({found['link']})"
