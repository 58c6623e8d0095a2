"""Markdown as the HTML that Matrix clients show: the part of it that agents write.

Fenced code, headings, lists, quotations, paragraphs; bold, italic, struck through, code and links.
Everything else is text. Whatever comes in, tags are balanced and nothing of it is taken for HTML.
Pure, and linear in the length of the text.
"""

import re
from collections.abc import Callable
from html import escape
from typing import Final

_FENCE: Final = re.compile(r"\s{0,3}(```+|~~~+)\s*([\w+#.-]{0,30})[^`]*", re.ASCII)
_HEADING: Final = re.compile(r"(#{1,6}) +(\S.*)")
_BULLET: Final = re.compile(r"\s{0,3}[-*+] +(\S.*)")
_NUMBER: Final = re.compile(r"\s{0,3}(\d{1,9})[.)] +(\S.*)", re.ASCII)
_QUOTE: Final = re.compile(r"> ?(.*)")
_SPAN: Final = re.compile(
    r"\\(?P<escaped>[\\`*_~\[\]])"
    r"|`(?P<code>[^`\n]+)`"
    r"|\[(?P<label>[^\[\]\n]{1,500})\]\((?P<link>(?:https?://|mailto:)[^\s()<>\"]{1,2000})\)"
    r"|(?P<address>https?://[^\s<>\"]+)"
    r"|(?P<mark>\*\*|__|~~|\*|_)"
)
_TAGS: Final = {"**": "strong", "__": "strong", "*": "em", "_": "em", "~~": "del"}


def render(text: str) -> str | None:
    """The HTML of a text; None where the text alone says it all."""
    written = _blocks(text.split("\n"))
    return None if written == _plain(text) else written


def _plain(text: str) -> str:
    return "<br>".join(escape(line) for line in text.split("\n"))


def _blocks(lines: list[str]) -> str:
    out: list[str] = []
    paragraphs = 0
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip():
            at += 1
        elif fence := _FENCE.fullmatch(line):
            html, at = _code(lines, at, fence[1], fence[2])
            out.append(html)
        elif heading := _HEADING.fullmatch(line):
            level = len(heading[1])
            out.append(f"<h{level}>{_spans(heading[2])}</h{level}>")
            at += 1
        elif _BULLET.fullmatch(line):
            items, at = _run(lines, at, _BULLET)
            out.append(f"<ul>{_items(items, 1)}</ul>")
        elif number := _NUMBER.fullmatch(line):
            items, at = _run(lines, at, _NUMBER)
            start = "" if int(number[1]) == 1 else f' start="{int(number[1])}"'
            out.append(f"<ol{start}>{_items(items, 2)}</ol>")
        elif _QUOTE.fullmatch(line):
            items, at = _run(lines, at, _QUOTE)
            quoted = "<br>".join(_spans(item[1]) for item in items)
            out.append(f"<blockquote>{quoted}</blockquote>")
        else:
            end = at + 1
            while end < len(lines) and not _begins_block(lines[end]):
                end += 1
            paragraphs += 1
            out.append("<br>".join(_spans(each) for each in lines[at:end]))
            if paragraphs > 1 or len(out) > 1 or any(each.strip() for each in lines[end:]):
                out[-1] = f"<p>{out[-1]}</p>"
            at = end
    return "".join(out)


def _begins_block(line: str) -> bool:
    forms = (_FENCE, _HEADING, _BULLET, _NUMBER, _QUOTE)
    return not line.strip() or any(form.fullmatch(line) for form in forms)


def _run(lines: list[str], at: int, form: re.Pattern[str]) -> tuple[list[re.Match[str]], int]:
    """The lines from here on that have a form, and where they end."""
    found: list[re.Match[str]] = []
    while at < len(lines) and (match := form.fullmatch(lines[at])):
        found.append(match)
        at += 1
    return found, at


def _items(items: list[re.Match[str]], group: int) -> str:
    return "".join(f"<li>{_spans(item[group])}</li>" for item in items)


def _code(lines: list[str], at: int, fence: str, language: str) -> tuple[str, int]:
    end = at + 1
    while end < len(lines) and not _closes(lines[end], fence):
        end += 1
    named = f' class="language-{escape(language)}"' if language else ""
    body = "".join(f"{escape(line)}\n" for line in lines[at + 1 : end])
    return f"<pre><code{named}>{body}</code></pre>", end + 1


def _closes(line: str, fence: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(fence) and stripped == fence[0] * len(stripped)


def _spans(text: str) -> str:
    """What stands in a line; a mark without its counterpart is text."""
    out: list[str] = []
    opened: dict[str, int] = {}
    at = 0
    for match in _SPAN.finditer(text):
        out.append(escape(text[at : match.start()]))
        at = match.end()
        mark = match["mark"]
        if mark is None:
            kind = str(match.lastgroup)
            out.append(_SHOWN[kind](match))
        elif mark in opened and _may_close(text, match):
            begun = opened[mark]
            # What was opened within and not closed is text.
            for inner in [each for each, place in opened.items() if place >= begun]:
                del opened[inner]
            tag = _TAGS[mark]
            out[begun] = f"<{tag}>"
            out.append(f"</{tag}>")
        else:
            if mark not in opened and _may_open(text, match):
                opened[mark] = len(out)
            out.append(mark)
    out.append(escape(text[at:]))
    return "".join(out)


def _may_open(text: str, match: re.Match[str]) -> bool:
    before, after = _around(text, match)
    return bool(after.strip()) and not (match[0][0] == "_" and before.isalnum())


def _may_close(text: str, match: re.Match[str]) -> bool:
    before, after = _around(text, match)
    return bool(before.strip()) and not (match[0][0] == "_" and after.isalnum())


def _around(text: str, match: re.Match[str]) -> tuple[str, str]:
    """The characters before and behind a mark, as far as there are any."""
    start, end = match.span()
    return text[max(start - 1, 0) : start], text[end : end + 1]


_SHOWN: Final[dict[str, Callable[[re.Match[str]], str]]] = {
    "escaped": lambda match: escape(match["escaped"]),
    "code": lambda match: f"<code>{escape(match['code'])}</code>",
    "link": lambda match: f'<a href="{escape(match["link"])}">{escape(match["label"])}</a>',
    "address": lambda match: escape(match["address"]),
}
