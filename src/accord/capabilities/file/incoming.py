"""A blob that is being received, chunk by chunk, in any order, with any interruptions.

What has come is in a draft that bears the blob's name, so nothing is remembered elsewhere: whoever
begins again finds out from the draft what is still missing. Every chunk is checked before any of a
batch is written.
"""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Self

from accord.capabilities.file.manifests import CHUNK, Manifest, cid_of
from accord.capabilities.file.shelf import Shelf, told
from accord.community.errors import Code, CommunityError


class Incoming:
    """A blob on its way; see `Blobs.receive`.

    Attributes:
        manifest: The blob.
        missing: Which of its chunks have not come.
    """

    def __init__(self, shelf: Shelf, manifest: Manifest, missing: set[int]) -> None:
        self.manifest = manifest
        self.missing = missing
        self._shelf = shelf

    @classmethod
    async def begin(cls, shelf: Shelf, manifest: Manifest) -> Self:
        """Find out what is missing, and that there is room for it.

        Raises:
            CommunityError: There is none: `capacity_exceeded`.
        """
        if await asyncio.to_thread(shelf.renew, manifest.cid):
            return cls(shelf, manifest, set())
        incoming = cls(shelf, manifest, set(range(len(manifest.chunks))))
        shelf.check_room(manifest.size_bytes)
        await asyncio.to_thread(incoming._look)
        return incoming

    @property
    def missing_bytes(self) -> int:
        """How much is still to come."""
        return sum(map(self.manifest.length, self.missing))

    async def take(self, chunks: Mapping[int, bytes]) -> None:
        """Take chunks by their place; they are durable when `finish` returns.

        Raises:
            CommunityError: One is not what it should be (`bad_request`), or there is no room
                (`capacity_exceeded`).
        """
        self._shelf.check_room(sum(map(len, chunks.values())))
        await asyncio.to_thread(self._take, chunks)
        self.missing.difference_update(chunks)

    async def finish(self) -> None:
        """Make a blob of the chunks; it is durable when this returns.

        Raises:
            CommunityError: A chunk is missing (`bad_request`), or there is no room.
        """
        if not self.missing:
            await asyncio.to_thread(self._finish)
        if self.missing:
            raise CommunityError(Code.BAD_REQUEST, f"{len(self.missing)} chunks have not come")

    def _take(self, chunks: Mapping[int, bytes]) -> None:
        for i, data in chunks.items():
            if not 0 <= i < len(self.manifest.chunks):
                raise CommunityError(Code.BAD_REQUEST, f"the blob has no chunk {i}")
            self.manifest.check_chunk(i, data)
        with told(), self._draft().open("r+b") as file:
            for i, data in chunks.items():
                os.pwrite(file.fileno(), data, i * CHUNK)

    def _look(self) -> None:
        """Take up what came before an interruption, and what other blobs have."""
        with told(), self._draft().open("r+b") as file:
            self.missing = self._missing(file)
            places: dict[str, list[int]] = {}
            for i in self.missing:
                places.setdefault(self.manifest.chunks[i], []).append(i)
            for cid, data in self._shelf.find(places):
                for i in places[cid]:
                    if len(data) == self.manifest.length(i):
                        os.pwrite(file.fileno(), data, i * CHUNK)
                        self.missing.discard(i)

    def _finish(self) -> None:
        draft = self._draft()
        if self._shelf.renew(self.manifest.cid):
            draft.unlink(missing_ok=True)
            return
        # Another who received the same blob may have taken the draft, and it be collected since.
        with told(), draft.open("r+b") as file:
            self.missing = self._missing(file)
        if not self.missing:
            self._shelf.publish(draft, self.manifest)

    def _missing(self, file: BinaryIO) -> set[int]:
        descriptor = file.fileno()
        if os.fstat(descriptor).st_size > self.manifest.size_bytes:
            os.ftruncate(descriptor, self.manifest.size_bytes)

        def is_here(i: int, cid: str) -> bool:
            length = self.manifest.length(i)
            data = os.pread(descriptor, length, i * CHUNK)
            return len(data) == length and cid_of(data) == cid

        return {i for i, cid in enumerate(self.manifest.chunks) if not is_here(i, cid)}

    def _draft(self) -> Path:
        return self._shelf.draft(self.manifest.cid.partition(":")[2])
