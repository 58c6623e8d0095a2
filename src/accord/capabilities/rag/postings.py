"""Which chunk has which term how often: made for one document, kept as bytes, put together.

Pure. Terms are the numbers of `words.term`, so that any postings can be put together.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

_HEAD: Final = struct.Struct("<II")
_MOST: Final = 0xFFFF
# What the bytes of a document's postings consist of, in this order, little-endian.
_LENGTH, _TERM, _ROW, _COUNT = (np.dtype(code) for code in ("<u4", "<u8", "<u4", "<u2"))


@dataclass(frozen=True, slots=True, eq=False)
class Postings:
    """The terms of some chunks, by term and then by chunk.

    Attributes:
        lengths: How many words each chunk has.
        terms: The term of each posting, rising.
        rows: Its chunk.
        counts: How often the chunk has the term.
    """

    lengths: NDArray[np.uint32]
    terms: NDArray[np.uint64]
    rows: NDArray[np.uint32]
    counts: NDArray[np.uint16]

    def pack(self) -> bytes:
        """The postings as bytes."""
        head = _HEAD.pack(len(self.lengths), len(self.terms))
        arrays = (
            self.lengths.astype(_LENGTH),
            self.terms.astype(_TERM),
            self.rows.astype(_ROW),
            self.counts.astype(_COUNT),
        )
        return head + b"".join(array.tobytes() for array in arrays)


def of_counts(counts: Sequence[Counter[int]]) -> Postings:
    """The postings of one document's chunks."""
    found = [
        (term, row, min(times, _MOST))
        for row, counted in enumerate(counts)
        for term, times in counted.items()
    ]
    found.sort()
    terms, rows, times = zip(*found, strict=True) if found else ((), (), ())
    return Postings(
        np.array([counted.total() for counted in counts], np.uint32),
        np.array(terms, np.uint64),
        np.array(rows, np.uint32),
        np.array(times, np.uint16),
    )


def unpack(data: bytes) -> Postings:
    """What `pack` has packed.

    Raises:
        ValueError: The bytes are something else.
    """
    if len(data) < _HEAD.size:
        raise ValueError("these are no postings")
    chunks, postings = _HEAD.unpack_from(data)
    offset = _HEAD.size
    arrays = []
    for kind, count in ((_LENGTH, chunks), (_TERM, postings), (_ROW, postings), (_COUNT, postings)):
        arrays.append(np.frombuffer(data, kind, count, offset))
        offset += kind.itemsize * count
    if offset != len(data):
        raise ValueError("these are no postings")
    return Postings(*arrays)


def together(parts: Sequence[Postings]) -> Postings:
    """The postings of all, whose rows follow each other."""
    starts = np.cumsum([0, *(len(part.lengths) for part in parts)])
    terms = np.concatenate([part.terms for part in parts])
    # Stable, so that the rows of a term go on rising.
    order = np.argsort(terms, kind="stable")
    rows = np.concatenate(
        [part.rows + np.uint32(start) for part, start in zip(parts, starts, strict=False)]
    )
    return Postings(
        np.concatenate([part.lengths for part in parts]),
        terms[order],
        rows[order],
        np.concatenate([part.counts for part in parts])[order],
    )
