"""The blob store: bytes in, a name out, and only the bytes of that name back.

A blob is cut into chunks of 262144 bytes; its CID is the BLAKE3 of its manifest, the ordered list
of the chunks' own digests. What was put is on the disk before its name is told. Owns how bytes
stream in and out, and pins. What others may read, and what may be collected, is decided elsewhere.
"""

import asyncio
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
)
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from accord.capabilities.file.incoming import Incoming
from accord.capabilities.file.manifests import (
    CHUNK,
    PREFIX,
    Manifest,
    check_cid,
    check_size,
)
from accord.capabilities.file.shelf import Shelf, told
from accord.capabilities.file.sources import Source, copied
from accord.community.errors import Code, CommunityError
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.files import sync_folder

MIN_FREE_BYTES: Final = 1024**3
"""How much of the disk is left to others, unless it is said otherwise."""

Progress: TypeAlias = Callable[[int], None]

# A mebibyte: what fits into a processor's cache is hashed and handed on fastest.
_AHEAD: Final = 4
_OWNER: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Collected:
    """How many blobs were removed, and how many bytes, drafts included."""

    blobs: int
    size_bytes: int


class Blobs:
    """The blobs of a node.

    Any number of these, in any number of processes, may use one folder.

    Args:
        folder: Where they are: `blobs` in the node's home.
        clock: Dates them.
        min_free_bytes: How much of the disk is left to others.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock | None = None,
        *,
        min_free_bytes: int = MIN_FREE_BYTES,
    ) -> None:
        self.shelf = Shelf(folder, clock or SystemClock(), min_free_bytes=min_free_bytes)
        self._pins = folder / "pins"

    async def put(self, source: Source, *, progress: Progress | None = None) -> str:
        """Store a file, some bytes or a stream of bytes, and return its CID once it is durable.

        Args:
            source: What to store.
            progress: Told how many bytes were stored since it was last told.

        Raises:
            CommunityError: There is no room (`capacity_exceeded`), it is too long or cannot be
                read (`bad_request`); nothing of it stays.
        """
        draft = await asyncio.to_thread(self.shelf.draft)
        chunks: list[str] = []
        size = 0
        try:
            # A buffered file: closing it waits for a thread that is still writing.
            with told(), draft.open("wb") as file:
                async with aclosing(copied(source, file)) as copying:
                    async for written in copying:
                        chunks += [cid for cid, _ in written]
                        length = sum(length for _, length in written)
                        size += length
                        check_size(size)
                        self.shelf.check_room(0)
                        if progress is not None:
                            progress(length)
            manifest = Manifest.of(size, chunks)
            await asyncio.to_thread(self.shelf.publish, draft, manifest)
        finally:
            draft.unlink(missing_ok=True)
        return manifest.cid

    def has(self, cid: str) -> bool:
        """Whether a whole blob is here.

        Raises:
            CommunityError: The CID is none: `bad_request`.
        """
        return self.shelf.has(cid)

    def manifest(self, cid: str) -> Manifest:
        """What a blob consists of.

        Raises:
            CommunityError: It is not here: `not_found`.
        """
        return self.shelf.manifest(cid)

    def chunk(self, cid: str) -> bytes:
        """A chunk of whichever blob has it, verified.

        Raises:
            CommunityError: No blob here has it, intact: `not_found`.
        """
        for _, data in self.shelf.find([cid]):
            return data
        raise CommunityError(Code.NOT_FOUND, "this is not here", where=cid)

    def with_chunk(self, cid: str) -> list[str]:
        """The blobs here that seem to have a chunk."""
        with told():
            return self.shelf.with_chunk(cid)

    async def read(self, cid: str, offset: int = 0) -> AsyncIterator[bytes]:
        """The bytes of a blob from an offset on, part by part, each verified.

        Raises:
            CommunityError: It is not here, or damaged: `not_found`.
        """
        manifest = await asyncio.to_thread(self.manifest, cid)
        first, skip = divmod(max(offset, 0), CHUNK)
        async with aclosing(self.chunks(manifest, first)) as chunks:
            async for data in chunks:
                if skip < len(data):
                    yield data[skip:] if skip else data
                skip = 0

    async def chunks(self, manifest: Manifest, first: int = 0) -> AsyncGenerator[bytes, None]:
        """The chunks of a blob from one on, in order, each verified.

        Raises:
            CommunityError: It is not here, or damaged: `not_found`.
        """

        def reading(start: int) -> asyncio.Future[list[bytes]]:
            read = asyncio.to_thread(self.shelf.read, manifest, start, _AHEAD)
            return asyncio.ensure_future(read)

        starts = range(first, len(manifest.chunks), _AHEAD)
        following = reading(first) if starts else None
        try:
            for start in starts:
                assert following is not None
                batch = await following
                # The next ones are read while the reader is busy with these.
                more = start + _AHEAD < len(manifest.chunks)
                following = reading(start + _AHEAD) if more else None
                for data in batch:
                    yield data
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    def cids(self, prefix: str = PREFIX) -> list[str]:
        """The CIDs of all whole blobs that begin with a prefix, in order."""
        with told():
            return list(self.shelf.cids(prefix))

    async def receive(self, manifest: Manifest) -> Incoming:
        """Begin, or go on, to receive a blob chunk by chunk.

        Raises:
            CommunityError: There is no room: `capacity_exceeded`.
        """
        return await Incoming.begin(self.shelf, manifest)

    def pin(self, cid: str, owner: str = "owner") -> None:
        """Keep a blob whatever the communities say, until its owner unpins it.

        Args:
            cid: The blob, which need not be here yet.
            owner: Who wants it, such as `rag-personal`; each has pins of its own.

        Raises:
            CommunityError: The CID is none: `bad_request`.
        """
        pin = self._pin(cid, owner)
        with told():
            if not pin.parent.is_dir():
                pin.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_folder(self._pins)
                sync_folder(self._pins.parent)
            pin.touch(mode=0o600)
            sync_folder(pin.parent)

    def unpin(self, cid: str, owner: str = "owner") -> bool:
        """Let go of a blob; whether it was pinned by that owner."""
        pin = self._pin(cid, owner)
        with told():
            if not pin.is_file():
                return False
            pin.unlink()
            sync_folder(pin.parent)
        return True

    def pinned(self, owner: str | None = None) -> set[str]:
        """What is pinned, by one owner or by anybody."""
        with told():
            return {PREFIX + pin.name for pin in self._pins.glob(f"{owner or '*'}/*")}

    def collect(
        self, named: Iterable[str], *, incoming: Iterable[str] = (), before: float
    ) -> Collected:
        """Remove what nobody names or pins; blocking.

        Args:
            named: The blobs that somebody names.
            incoming: Blobs that are being received.
            before: Only what is older than this moment is removed; what is young may be about to
                get a name.
        """
        kept = {*named, *self.pinned()}
        drafts = [cid.removeprefix(PREFIX) for cid in incoming]
        blobs: list[int] = []
        with told():
            for bucket in range(256):
                # A bucket at a time, so that nobody who writes waits for long.
                here = self.shelf.cids(f"{PREFIX}{bucket:02x}")
                blobs += self.shelf.sweep([cid for cid in here if cid not in kept], before=before)
            left = self.shelf.tidy(drafts, before=before)
        return Collected(len(blobs), sum(blobs) + sum(left))

    def _pin(self, cid: str, owner: str) -> Path:
        if not _OWNER.fullmatch(owner):
            raise CommunityError(Code.BAD_REQUEST, f"{owner[:80]!r} cannot own a pin")
        return self._pins / owner / check_cid(cid).removeprefix(PREFIX)
