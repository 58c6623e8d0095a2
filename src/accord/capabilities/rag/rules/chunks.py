"""Chunks of a document: parts of a number of tokens, with reproducible ids.

Pure: the tokenizer is a parameter. The same document, tokenizer and settings give the same chunks
and ids on a node and on an executor.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from accord.capabilities.rag.rules.document_text import TextDocument
from accord.kernel import canonical

TokenSpans: TypeAlias = Callable[[str], Sequence[tuple[int, int]]]
"""Returns start and end of each token of a text."""

SIZE: Final = 1000
OVERLAP: Final = 200
WINDOW: Final = 240
"""The most tokens that are embedded together: the model reads 256, including the title."""

# Some tokenizers return an unknown word as one token of any length.
_LONGEST_TOKEN: Final = 32
_PIECE: Final = 8
# How much of a text is tokenized at once.
_BLOCK: Final = 50_000
_BLANK: Final = re.compile(r"\s")
_BETWEEN: Final = "\n\n"


@dataclass(frozen=True, slots=True)
class ChunkSettings:
    """How documents are cut.

    Attributes:
        tokenizer: The name of the tokenizer.
        size: The most tokens of a chunk.
        overlap: How many of them it shares with the one before.
    """

    tokenizer: str
    size: int = SIZE
    overlap: int = OVERLAP

    def __post_init__(self) -> None:
        if not 0 <= self.overlap * 2 <= self.size or self.size < 1:
            raise ValueError("a chunk shares at most half of its tokens")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a document that is found as a whole.

    Attributes:
        position: Its number in the document, from 0.
        page: The page on which it begins.
        heading: The heading under which it begins.
        windows: The same text in parts that a model can read at once.
    """

    chunk_id: str
    position: int
    text: str
    page: int | None
    heading: str | None
    windows: tuple[str, ...]


def chunk_id(doc_cid: str, position: int, cut: ChunkSettings) -> str:
    """Return the id of a chunk."""
    named = {
        "doc_cid": doc_cid,
        "overlap": cut.overlap,
        "position": position,
        "size": cut.size,
        "tokenizer": cut.tokenizer,
    }
    return f"ch_{canonical.blake3(canonical.encode(named)).value.hex()[:32]}"


@dataclass(frozen=True, slots=True)
class ChunkedDocument:
    """A document's chunks in order, and the number of its tokens."""

    chunks: tuple[Chunk, ...]
    tokens: int


def split(
    doc_cid: str, document: TextDocument, spans: TokenSpans, cut: ChunkSettings
) -> ChunkedDocument:
    """Cut a document.

    A chunk ends at a paragraph if one ends in its last quarter, else at a sentence, else at a word.
    """
    text = _BETWEEN.join(passage.text for passage in document.passages)
    begins = []
    place = 0
    for passage in document.passages:
        begins.append(place)
        place += len(passage.text) + len(_BETWEEN)
    tokens = list(_tokens(text, spans))
    chunks = []
    for position, (first, last) in enumerate(_ranges(text, tokens, cut)):
        begin, end = tokens[first][0], tokens[last - 1][1]
        passage = document.passages[bisect_right(begins, begin) - 1]
        chunks.append(
            Chunk(
                chunk_id(doc_cid, position, cut),
                position,
                text[begin:end],
                passage.page,
                passage.heading,
                tuple(_windows(text, tokens[first:last])),
            )
        )
    return ChunkedDocument(tuple(chunks), len(tokens))


def about(chunk: Chunk, title: str | None) -> str:
    """Return the document's title and the heading above a chunk."""
    return "\n".join(dict.fromkeys(part for part in (title, chunk.heading) if part))


def to_embed(chunk: Chunk, title: str | None) -> list[str]:
    """Return the texts whose vectors make a chunk's: its windows, each after title and heading."""
    told = about(chunk, title)
    return [
        window if not told or window.startswith(told) else f"{told}\n{window}"
        for window in chunk.windows
    ]


def _tokens(text: str, spans: TokenSpans) -> Iterator[tuple[int, int]]:
    for start, block in _blocks(text):
        for begin, end in spans(block):
            if end - begin <= _LONGEST_TOKEN:
                if end > begin:
                    yield start + begin, start + end
                continue
            for piece in range(begin, end, _PIECE):
                yield start + piece, start + min(piece + _PIECE, end)


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield a text in parts that end after white space, with their offsets."""
    start = 0
    while start < len(text):
        blank = _BLANK.search(text, start + _BLOCK, start + 2 * _BLOCK)
        end = blank.end() if blank else min(start + 2 * _BLOCK, len(text))
        yield start, text[start:end]
        start = end


def _ranges(
    text: str, tokens: Sequence[tuple[int, int]], cut: ChunkSettings
) -> Iterator[tuple[int, int]]:
    """Yield the first token of every chunk and the one after its last."""
    first = 0
    while first < len(tokens):
        last = first + cut.size
        if last >= len(tokens):
            yield first, len(tokens)
            return
        last = _end(text, tokens, last - cut.size // 4, last)
        yield first, last
        first = _begin(tokens, max(first + 1, last - cut.overlap), last)


def _end(text: str, tokens: Sequence[tuple[int, int]], low: int, high: int) -> int:
    """The best place to end a chunk: after a paragraph, a sentence, or a word."""
    best = {0: high}
    for place in range(high, low, -1):
        before, behind = tokens[place - 1][1], tokens[place][0]
        if behind == before:
            continue
        gap = text[before:behind]
        if _BETWEEN in gap:
            return place
        best.setdefault(2 if text[before - 1] in ".!?" else 1, place)
    return best[max(best)]


def _begin(tokens: Sequence[tuple[int, int]], first: int, last: int) -> int:
    """The next token that begins a word."""
    for place in range(first, last):
        if tokens[place][0] > tokens[place - 1][1]:
            return place
    return first


def _windows(text: str, tokens: Sequence[tuple[int, int]]) -> Iterator[str]:
    """A chunk in parts of about equal length."""
    count = -(-len(tokens) // WINDOW)
    for number in range(count):
        first = number * len(tokens) // count
        last = (number + 1) * len(tokens) // count
        yield text[tokens[first][0] : tokens[last - 1][1]]
