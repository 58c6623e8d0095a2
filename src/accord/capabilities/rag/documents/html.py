"""HTML: what a reader of the page would read, section by section.

Pure. The page is never built as a tree, so that it may nest as deep as it likes.
"""

from html.parser import HTMLParser
from typing import Final

from accord.capabilities.rag.documents.document import Document, Passage, compose

_UNSEEN: Final = frozenset(
    {"script", "style", "noscript", "template", "svg", "math", "iframe", "object", "select"}
)
_HEADINGS: Final = frozenset({"h1", "h2", "h3", "h4", "h5", "h6"})
_BLOCK_NAMES: Final = (
    "address article aside blockquote body br dd details div dl dt fieldset figcaption figure "
    "footer form header hr li main nav ol p pre section summary table tbody thead tfoot tr ul "
    "caption"
)
_BLOCKS: Final = _HEADINGS.union(_BLOCK_NAMES.split())
_CELLS: Final = frozenset({"td", "th"})


def read(text: str) -> Document:
    """Read a page.

    Raises:
        CommunityError: There is no text in it, or too much: `bad_request`.
    """
    reader = _Reader()
    reader.feed(text)
    reader.close()
    passages = reader.end()
    return compose(passages, reader.title or next((p.heading for p in passages if p.heading), None))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self._passages: list[Passage] = []
        self._section: list[str] = []
        self._heading: str | None = None
        self._unseen: str | None = None
        self._depth = 0
        # Where the heading that is being read begins in the section.
        self._heading_from: int | None = None
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._unseen is not None:
            self._depth += tag == self._unseen
        elif tag in _UNSEEN:
            self._unseen, self._depth = tag, 1
        elif tag == "title":
            self._in_title = not self.title
        elif tag in _HEADINGS:
            self._close_section()
            self._heading_from = 0
        elif tag in _BLOCKS:
            self._section.append("\n")
        elif tag in _CELLS:
            self._section.append("\t")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._unseen is None and tag in _BLOCKS:
            self._section.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._unseen is not None:
            self._depth -= tag == self._unseen
            if not self._depth:
                self._unseen = None
        elif tag == "title":
            self._in_title = False
        elif tag in _HEADINGS and self._heading_from is not None:
            self._heading = "".join(self._section[self._heading_from :]) or None
            self._heading_from = None
            self._section.append("\n")
        elif tag in _BLOCKS:
            self._section.append("\n")

    def handle_data(self, data: str) -> None:
        if self._unseen is not None:
            return
        if self._in_title:
            self.title += data
        else:
            self._section.append(data)

    def end(self) -> list[Passage]:
        """All passages."""
        self._close_section()
        return self._passages

    def _close_section(self) -> None:
        self._passages.append(Passage("".join(self._section), heading=self._heading))
        self._section, self._heading = [], None
        self._heading_from = None
