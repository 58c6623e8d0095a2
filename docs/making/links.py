"""The links and anchors of a Markdown text, outside of code. Pure.

Anchors are made as GitHub makes them; mkdocs.yml asks the site for the same, so that one link works
in both.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

_FENCE: Final = re.compile(r"^ *(`{3,}|~{3,})")
_SPAN: Final = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_LINK: Final = re.compile(r"(?<=\]\()[^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?=(?:\s+\"[^\"]*\")?\))")
_HEADING: Final = re.compile(r"^#{1,6} +(.+?) *#*$")
_NAMED: Final = re.compile(r"""<[a-z]+ [^>]*\b(?:id|name)=["']([^"']+)["']""")
_MARKUP: Final = re.compile(r"!?\[([^\]]*)\]\([^)]*\)|[`*]|<[^>]+>")
_DROPPED: Final = re.compile(r"[^\w\- ]")
_SCHEME: Final = re.compile(r"^[a-z][a-z0-9+.-]*:")


class Link(NamedTuple):
    """One link, or an image.

    Attributes:
        line: Where it stands, from 1.
        path: What it leads to, without the anchor; empty for the page itself.
        anchor: The place there; empty for its beginning.
    """

    line: int
    path: str
    anchor: str

    @property
    def is_external(self) -> bool:
        """Whether it leads out of the project."""
        return bool(_SCHEME.match(self.path)) or self.path.startswith("//")


def links(text: str) -> Iterator[Link]:
    """Every link of a text."""
    for number, line in _prose(text):
        for target in _LINK.findall(line):
            path, _, anchor = target.partition("#")
            yield Link(number, path, anchor)


def anchors(text: str) -> frozenset[str]:
    """Every place of a text that a link may name."""
    found: list[str] = []
    for _, line in _lines(text):
        if heading := _HEADING.match(line):
            name = slug(heading[1])
            again = sum(each == name for each in found)
            found.append(name)
            if again:
                found.append(f"{name}-{again}")
        found += _NAMED.findall(line)
    return frozenset(found)


def slug(heading: str) -> str:
    """The anchor of a heading."""
    words = _MARKUP.sub(lambda found: found[1] or "", heading).strip().lower()
    return _DROPPED.sub("", words).replace(" ", "-")


def relinked(text: str, target: Callable[[str], str]) -> str:
    """A text in which each link leads where a function says."""
    lines = text.split("\n")
    for number, line in _prose(text):
        made, end = [], 0
        for found in _LINK.finditer(line):
            made += [lines[number - 1][end : found.start()], target(found[0])]
            end = found.end()
        lines[number - 1] = "".join([*made, lines[number - 1][end:]])
    return "\n".join(lines)


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """Lines outside of code, with spans of code blanked out at their full length."""
    for number, line in _lines(text):
        yield number, _SPAN.sub(lambda found: " " * len(found[0]), line)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    fence = ""
    for number, line in enumerate(text.split("\n"), 1):
        mark = _FENCE.match(line)
        if fence:
            if mark and mark[1].startswith(fence) and not line.strip(" `~"):
                fence = ""
        elif mark:
            fence = mark[1]
        else:
            yield number, line
