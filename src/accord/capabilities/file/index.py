"""Which blobs have a chunk: for those who ask for a chunk by its own name.

One file for each first byte of a digest, in which a record follows the other: the chunk's digest,
the blob's, and the place. It only says where to look, and whoever looks hashes what is there; it is
built anew from the manifests whenever garbage is collected, so it need not be synced.
"""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from accord.capabilities.file.manifests import PREFIX, Manifest

_RECORD: Final = struct.Struct(">32s32sI")


class ChunkIndex:
    """The index of a blob store; the folder's lock is its owner's concern."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, manifest: Manifest) -> None:
        """Take up the chunks of a blob."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._append(manifest)

    def find(self, cids: Iterable[str]) -> Iterator[tuple[str, str, int]]:
        """Where chunks may be: each with a blob and a place in it."""
        wanted: dict[int, set[bytes]] = {}
        for digest in map(_digest, cids):
            wanted.setdefault(digest[0], set()).add(digest)
        for first, digests in wanted.items():
            try:
                records = self._file(first).read_bytes()
            except FileNotFoundError:
                continue
            whole = len(records) - len(records) % _RECORD.size
            for digest, blob, number in _RECORD.iter_unpack(memoryview(records)[:whole]):
                if digest in digests:
                    yield PREFIX + digest.hex(), PREFIX + blob.hex(), number

    def rebuild(self, manifests: Iterable[Manifest]) -> None:
        """Begin anew with these blobs."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for file in self._folder.iterdir():
            file.unlink()
        for manifest in manifests:
            self._append(manifest)

    def _append(self, manifest: Manifest) -> None:
        blob = _digest(manifest.cid)
        records: dict[int, bytearray] = {}
        places = {cid: number for number, cid in enumerate(manifest.chunks)}
        for cid, number in places.items():
            digest = _digest(cid)
            records.setdefault(digest[0], bytearray()).extend(_RECORD.pack(digest, blob, number))
        for first, some in records.items():
            with self._file(first).open("ab") as file:
                # A record that a power cut left short must not shift all that follow.
                file.write(bytes(-file.tell() % _RECORD.size) + some)

    def _file(self, first: int) -> Path:
        return self._folder / f"{first:02x}"


def _digest(cid: str) -> bytes:
    return bytes.fromhex(cid.removeprefix(PREFIX))
