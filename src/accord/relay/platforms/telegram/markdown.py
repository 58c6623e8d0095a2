"""Common Markdown as Telegram's MarkdownV2.

Bold, italic, struck-out text, code, fenced code and links keep their meaning; every other character
is shown as it is. What comes out is always well formed: marks that match no other are text. Pure,
and linear in the length of the text.
"""

import re
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from typing import Final

from accord.relay.wire.fences import blocks

_RESERVED: Final = re.compile(r"([\\_*\[\]()~`>#+\-=|{}.!])")
_IN_CODE: Final = re.compile(r"([\\`])")
_IN_URL: Final = re.compile(r"([\\)])")
_LANGUAGE: Final = re.compile(r"[A-Za-z0-9_+#.-]{1,32}")
_TICKS: Final = re.compile(r"`+")
_PUNCTUATION: Final = frozenset(r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~""")
_TOKEN: Final = re.compile(
    r"\\(?P<escaped>[!-/:-@\[-`{-~])"
    r"|(?P<ticks>`+)"
    r"|!?\[(?P<label>[^\[\]]{1,2000})\]\((?P<url>(?:[^\s()\[\]<>]|\([^\s()\[\]<>]*\))+)\)"
    r"|(?P<mark>\*+|_+|~+)"
    r"|(?P<paragraph>\n[ \t]*\n)"
)
_STYLES: Final = {"**": "*", "__": "*", "*": "_", "_": "_", "~~": "~"}
"""Which mark of MarkdownV2 stands for a mark of Markdown."""


def render(text: str) -> str:
    """Write a text in MarkdownV2."""
    out: list[str] = []
    at = 0
    for block in blocks(text):
        code = text[block.body : block.end].removesuffix("\n")
        if not code.strip():
            continue  # nothing to show: it stays text
        out += [_inline(text[at : block.begin]), _fenced(block.opening, block.fence, code)]
        at = block.after
    return "".join([*out, _inline(text[at:])])


def escape(text: str) -> str:
    """Write a text so that all of it is shown as it is."""
    return _RESERVED.sub(r"\\\1", text)


def _fenced(opening: str, fence: str, code: str) -> str:
    language = _LANGUAGE.match(opening.partition(fence)[2].strip())
    body = _IN_CODE.sub(r"\\\1", code)
    return f"```{language[0] if language else ''}\n{body}\n```"


def _inline(text: str) -> str:
    line = _Line()
    _scan(text, line, has_links=True)
    return line.written()


def _scan(text: str, line: "_Line", *, has_links: bool) -> None:
    ticks = _Ticks(text)
    at = 0
    while token := _TOKEN.search(text, at):
        line.text(text[at : token.start()])
        at = token.end()
        match token.lastgroup:
            case "escaped":
                line.text(token["escaped"])
            case "ticks":
                closing = ticks.closing(token.start(), len(token["ticks"]))
                code = text[at:closing].strip() if closing else ""
                if closing and code and "\n\n" not in code:
                    line.raw("`" + _IN_CODE.sub(r"\\\1", code) + "`")
                    at = closing + len(token["ticks"])
                else:
                    line.text(token["ticks"])
            case "url" if has_links and token["label"].strip():
                line.link(token["label"], token["url"])
            case "url":
                line.text(token[0])
            case "mark":
                before = text[token.start() - 1] if token.start() else " "
                after = text[at] if at < len(text) else " "
                line.mark(token["mark"], before, after)
            case "paragraph":
                line.settle()
                line.text(token[0])
    line.text(text[at:])


class _Ticks:
    """Where the runs of backticks of a text are, by their length."""

    def __init__(self, text: str) -> None:
        self._starts: dict[int, list[int]] = {}
        for run in _TICKS.finditer(text):
            self._starts.setdefault(len(run[0]), []).append(run.start())

    def closing(self, start: int, length: int) -> int | None:
        """Where the next run of this length after `start` begins."""
        starts = self._starts.get(length, [])
        place = bisect_left(starts, start + 1)
        return starts[place] if place < len(starts) else None


@dataclass(slots=True, eq=False)
class _Mark:
    """A mark in a text; it is text itself unless it finds its partner."""

    text: str
    is_open: bool = False
    is_close: bool = False


class _Line:
    """A text as it is read: parts that are written already, and marks between them."""

    def __init__(self) -> None:
        self._parts: list[str | _Mark] = []
        self._waiting: list[_Mark] = []
        self._counts: Counter[str] = Counter()

    def text(self, text: str) -> None:
        """Go on with plain text."""
        if text:
            self.raw(escape(text))

    def raw(self, written: str) -> None:
        """Go on with what is written in MarkdownV2 already."""
        self._parts.append(written)

    def mark(self, run: str, before: str, after: str) -> None:
        """Take a run of marks: open, close, or be text."""
        opens, closes = _flanks(run[0], before, after)
        for text in self._split(run):
            mark = _Mark(text)
            self._parts.append(mark)
            if text not in _STYLES:
                continue
            if closes and self._counts[text]:
                self._close(mark)
            elif opens:
                self._waiting.append(mark)
                self._counts[text] += 1

    def link(self, label: str, url: str) -> None:
        """Take a link; no mark in its label matches one outside of it."""
        around = self._waiting, self._counts
        self.raw("[")
        self.settle()
        _scan(label, self, has_links=False)
        self._waiting, self._counts = around
        self.raw("](" + _IN_URL.sub(r"\\\1", url) + ")")

    def settle(self) -> None:
        """Let what still waits be text."""
        self._waiting, self._counts = [], Counter()

    def written(self) -> str:
        """All of it in MarkdownV2, where no style stands within itself."""
        out: list[str] = []
        depths: Counter[str] = Counter()
        for part in self._parts:
            if isinstance(part, str):
                out.append(part)
            elif not (part.is_open or part.is_close):
                out.append(escape(part.text))
            else:
                style = _STYLES[part.text]
                depths[style] += 1 if part.is_open else -1
                if depths[style] != part.is_open:
                    continue
                # What ends where it begins anew goes on: two underscores would mean another style.
                if part.is_open and out and out[-1] == style:
                    out.pop()
                else:
                    out.append(style)
        return "".join(out)

    def _split(self, run: str) -> tuple[str, ...]:
        if len(run) != 3 or run[0] == "~":
            return (run,)
        is_inner = bool(self._waiting) and self._waiting[-1].text == run[0]
        return (run[0], run[:2]) if is_inner else (run[:2], run[0])

    def _close(self, mark: _Mark) -> None:
        while True:
            opened = self._waiting.pop()
            self._counts[opened.text] -= 1
            if opened.text == mark.text:
                opened.is_open = mark.is_close = True
                return


def _flanks(mark: str, before: str, after: str) -> tuple[bool, bool]:
    """Whether a run of marks may open and close, by its neighbours."""
    opens = not after.isspace() and (after not in _PUNCTUATION or not _is_word(before))
    closes = not before.isspace() and (before not in _PUNCTUATION or not _is_word(after))
    if mark == "_":  # as in snake_case
        return opens and not _is_word(before), closes and not _is_word(after)
    return opens, closes


def _is_word(character: str) -> bool:
    return not character.isspace() and character not in _PUNCTUATION
