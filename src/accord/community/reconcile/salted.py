"""An index as one session sees it: fingerprints and short ids under the session's salt.

A fingerprint is a keyed hash of all records of its range. It and the ids can be short because
nobody knows the salt before the session, so nobody can craft events that collide under it; what
chance hides from one session the next one finds.
"""

from collections.abc import Iterator
from typing import Final

from blake3 import blake3

from accord.community.reconcile.index import DIGEST, Index
from accord.community.reconcile.message import FINGERPRINT_BYTES, ID_BYTES

_FINGERPRINTS: Final = "accord community reconcile v1 fingerprints"
_IDS: Final = "accord community reconcile v1 short ids"


class Salted:
    """An index under a salt; it holds nothing of its own."""

    def __init__(self, index: Index, salt: bytes) -> None:
        self._index = index
        self._fingerprints = blake3(salt, derive_key_context=_FINGERPRINTS).digest()
        self._ids = blake3(salt, derive_key_context=_IDS).digest()

    def rank(self, bound: bytes) -> int:
        """How many items lie below a bound."""
        return self._index.rank(bound)

    def fingerprint(self, start: int, stop: int) -> bytes:
        """The fingerprint of the items between two ranks."""
        hasher = blake3(key=self._fingerprints)
        for piece in self._index.slices(start, stop):
            hasher.update(piece)
        return hasher.digest(FINGERPRINT_BYTES)

    def items(self, start: int, stop: int) -> Iterator[tuple[bytes, bytes]]:
        """Short id and record of the items between two ranks."""
        for record in self._index.records(start, stop):
            yield blake3(record[DIGEST:], key=self._ids).digest(ID_BYTES), record

    def separator(self, rank: int, slack: int = 0) -> bytes:
        """The shortest bound below the item of a rank, or of one at most `slack` before it."""
        return self._index.separator(rank, slack)
