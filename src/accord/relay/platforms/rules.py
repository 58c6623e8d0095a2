"""Markdown as plain text, for services that do not render it. Pure."""

import re
from typing import Final

_FENCE: Final = ("```", "~~~")
_HEADING: Final = re.compile(r" {0,3}#{1,6} ++")
# Code first, so that marks inside it are left alone.
_MARKED: Final = re.compile(
    r"`(?P<code>[^`\n]++)`"
    r"|\*\*(?P<strong>[^*\n]++)\*\*"
    r"|\[(?P<label>[^\[\]\n]++)\]\((?P<link>https?://[^\s()]++)\)"
)


def plain_text(text: str) -> str:
    """The text without its markup; never longer, and unchanged if nothing else would be left."""
    lines: list[str] = []
    in_code = False
    for line in text.split("\n"):
        if line.lstrip(" ").startswith(_FENCE):
            in_code = not in_code
        elif in_code:
            lines.append(line)
        else:
            lines.append(_MARKED.sub(_without_marks, _HEADING.sub("", line, count=1)))
    bare = "\n".join(lines)
    return bare if bare.strip() else text


def _without_marks(found: re.Match[str]) -> str:
    if found["link"] is None:
        return found["code"] or found["strong"]
    is_bare = found["label"] == found["link"]
    return found["link"] if is_bare else f"{found['label']} ({found['link']})"
