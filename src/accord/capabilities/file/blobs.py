"""The blob store: bytes in, a CID out, and only the bytes of that CID back.

A blob is cut into chunks of 262144 bytes; its CID is the BLAKE3 of its manifest, the ordered list
of the chunks' digests. A blob is durable before its CID is returned. `Incoming` receives a blob
chunk by chunk in any order and resumes from its draft after an interruption.
"""

import asyncio
import math
import os
import re
import secrets
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
)
from collections.abc import Set as AbstractSet
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import BinaryIO, Final, Self, TypeAlias

import orjson
from blake3 import blake3

from accord.capabilities.file.blob_folder import BlobFolder, disk_errors
from accord.capabilities.file.rules import CHUNK, PREFIX, Manifest, check_cid, check_size, cid_of
from accord.capabilities.file.shares import ShareCatalogue, Shares
from accord.community.errors import Code, CommunityError, bad_request
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.files import sync_folder, write_private
from accord.kernel.identifiers import UlidSource


class Incoming:
    """A blob that is being received; `missing` are the numbers of its missing chunks."""

    def __init__(
        self,
        folder: BlobFolder,
        manifest: Manifest,
        missing: set[int],
        usable: Callable[[str], bool] | None = None,
        sender: str = "",
    ) -> None:
        self.manifest = manifest
        self.missing = missing
        self._folder = folder
        self._usable = usable
        self._sender = sender

    @classmethod
    async def begin(
        cls,
        folder: BlobFolder,
        manifest: Manifest,
        usable: Callable[[str], bool] | None = None,
        sender: str = "",
    ) -> Self:
        """Find the missing chunks and check for room: `capacity_exceeded`. See `Blobs.receive`."""
        is_usable = usable is None or await asyncio.to_thread(usable, manifest.cid)
        if is_usable and await asyncio.to_thread(folder.renew, manifest.cid):
            return cls(folder, manifest, set())
        incoming = cls(folder, manifest, set(range(len(manifest.chunks))), usable, sender)
        folder.check_room(manifest.size_bytes)
        await asyncio.to_thread(incoming._look)
        return incoming

    @property
    def missing_bytes(self) -> int:
        """The number of bytes still missing."""
        return sum(map(self.manifest.length, self.missing))

    async def take(self, chunks: Mapping[int, bytes]) -> None:
        """Store chunks by number; they are durable when `finish` returns.

        Raises:
            CommunityError: A chunk does not match the manifest (`bad_request`), or there is no room
                (`capacity_exceeded`).
        """
        self._folder.check_room(sum(map(len, chunks.values())))
        await asyncio.to_thread(self._take, chunks)
        self.missing.difference_update(chunks)

    async def finish(self) -> None:
        """Publish the blob; it is durable on return. `bad_request` if a chunk is missing."""
        if not self.missing:
            await asyncio.to_thread(self._finish)
        if self.missing:
            raise bad_request(f"{len(self.missing)} chunks are missing")

    def _take(self, chunks: Mapping[int, bytes]) -> None:
        for i, data in chunks.items():
            if not 0 <= i < len(self.manifest.chunks):
                raise bad_request(f"the blob has no chunk {i}")
            self.manifest.check_chunk(i, data)
        with disk_errors(), self._draft().open("r+b") as file:
            for i, data in chunks.items():
                os.pwrite(file.fileno(), data, i * CHUNK)

    def _look(self) -> None:
        """Use the chunks of an earlier draft and those that other blobs have."""
        with disk_errors(), self._draft().open("r+b") as file:
            self.missing = self._missing(file)
            places: dict[str, list[int]] = {}
            for i in self.missing:
                places.setdefault(self.manifest.chunks[i], []).append(i)
            for cid, data in self._folder.find(places, self._usable):
                for i in places[cid]:
                    if len(data) == self.manifest.length(i):
                        os.pwrite(file.fileno(), data, i * CHUNK)
                        self.missing.discard(i)

    def _finish(self) -> None:
        draft = self._draft()
        if self._folder.renew(self.manifest.cid):
            draft.unlink(missing_ok=True)
            return
        # Another receiver of the same blob may have published the draft, and it may be collected
        # since.
        with disk_errors(), draft.open("r+b") as file:
            self.missing = self._missing(file)
        if not self.missing:
            self._folder.publish(draft, self.manifest)

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
        return self._folder.draft(_draft_name(self.manifest.cid, self._sender))


def _draft_name(cid: str, sender: str) -> str:
    """Return the name of a draft; drafts of different senders are kept apart."""
    digits = cid.partition(":")[2]
    return f"{digits}-{blake3(sender.encode()).hexdigest()[:16]}" if sender else digits


Source: TypeAlias = Path | bytes | AsyncIterable[bytes]
Written: TypeAlias = list[tuple[str, int]]
"""CID and size of each chunk that was written, in order."""

_CHUNKS_TOGETHER: Final = 64
_BATCH: Final = _CHUNKS_TOGETHER * CHUNK


async def copy_chunks(source: Source, to: BinaryIO) -> AsyncGenerator[Written, None]:
    """Write a source to a file, yielding the chunks after every batch; may raise `bad_request`."""
    if isinstance(source, Path):
        file = await asyncio.to_thread(_opened, source)
        # Closing a buffered file waits for a thread that still reads from it.
        with file:
            while written := await asyncio.to_thread(_copy, file, to):
                yield written
        return
    waiting = bytearray()
    async for part in _parts(source):
        waiting += part
        while len(waiting) >= _BATCH:
            yield await asyncio.to_thread(_write, bytes(waiting[:_BATCH]), to)
            del waiting[:_BATCH]
    if waiting:
        yield await asyncio.to_thread(_write, bytes(waiting), to)


async def _parts(source: bytes | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    if isinstance(source, bytes):
        for start in range(0, len(source), _BATCH):
            yield source[start : start + _BATCH]
        return
    async for part in source:
        yield part


def _copy(file: BinaryIO, to: BinaryIO) -> Written:
    written: Written = []
    for _ in range(_CHUNKS_TOGETHER):
        try:
            data = file.read(CHUNK)
        except OSError as error:
            raise _unreadable(error) from error
        if not data:
            break
        to.write(data)
        written.append((cid_of(data), len(data)))
    return written


def _write(batch: bytes, to: BinaryIO) -> Written:
    to.write(batch)
    chunks = [memoryview(batch)[start : start + CHUNK] for start in range(0, len(batch), CHUNK)]
    return [(cid_of(chunk), len(chunk)) for chunk in chunks]


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> CommunityError:
    return bad_request(f"it cannot be read ({error.strerror or error})")


MIN_FREE_BYTES: Final = 1024**3
"""The default for the free disk space below which nothing is written."""

Progress: TypeAlias = Callable[[int], None]

# A mebibyte fits into a processor's cache.
_AHEAD: Final = 4
_OWNER: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Label:
    """The owner's name and title for a pinned file; a blob itself has no name."""

    name: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Collected:
    """The number of removed blobs, and of removed bytes including drafts."""

    blobs: int
    size_bytes: int


class Blobs:
    """The blobs of a node. Several instances and processes may use one folder.

    Attributes:
        shares: What this node shares.
        catalogue: What others share with this node.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock | None = None,
        *,
        min_free_bytes: int = MIN_FREE_BYTES,
    ) -> None:
        self.folder = BlobFolder(folder, clock or SystemClock(), min_free_bytes=min_free_bytes)
        self.shares = Shares(folder / "shares")
        self.catalogue = ShareCatalogue(folder / "catalogue")
        self._pins = folder / "pins"
        self._keys = folder / "keys"

    async def put(self, source: Source, *, progress: Progress | None = None) -> str:
        """Store a file, bytes or a stream of bytes, and return its CID once it is durable.

        Args:
            progress: Called with the number of bytes stored since the last call.

        Raises:
            CommunityError: There is no room (`capacity_exceeded`), it is too long or cannot be read
                (`bad_request`); nothing of it stays.
        """
        draft = await asyncio.to_thread(self.folder.draft)
        chunks: list[str] = []
        size = 0
        try:
            # Closing a buffered file waits for a thread that is still writing.
            with disk_errors(), draft.open("wb") as file:
                async with aclosing(copy_chunks(source, file)) as copying:
                    async for written in copying:
                        chunks += [cid for cid, _ in written]
                        length = sum(length for _, length in written)
                        size += length
                        check_size(size)
                        self.folder.check_room(0)
                        if progress is not None:
                            progress(length)
            manifest = Manifest.of(size, chunks)
            await asyncio.to_thread(self.folder.publish, draft, manifest)
        finally:
            draft.unlink(missing_ok=True)
        return manifest.cid

    def has(self, cid: str) -> bool:
        """Whether a complete blob is here; `bad_request` if the CID is malformed."""
        return self.folder.has(cid)

    def manifest(self, cid: str) -> Manifest:
        """Return a blob's manifest, or raise `not_found`."""
        return self.folder.manifest(cid)

    def chunk(self, cid: str) -> bytes:
        """Return a chunk of any blob that has it, verified, or raise `not_found`."""
        for _, data in self.folder.find([cid]):
            return data
        raise CommunityError(Code.NOT_FOUND, "this blob or chunk is not here", where=cid)

    def with_chunk(self, cid: str) -> list[str]:
        """The blobs that have a chunk according to the index."""
        with disk_errors():
            return self.folder.with_chunk(cid)

    async def read(self, cid: str, offset: int = 0) -> AsyncIterator[bytes]:
        """Yield verified bytes of a blob from an offset on; `not_found` if missing or damaged."""
        manifest = await asyncio.to_thread(self.manifest, cid)
        first, skip = divmod(max(offset, 0), CHUNK)
        async with aclosing(self.chunks(manifest, first)) as chunks:
            async for data in chunks:
                if skip < len(data):
                    yield data[skip:] if skip else data
                skip = 0

    async def chunks(self, manifest: Manifest, first: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield the chunks of a blob in order, verified; `not_found` if missing or damaged."""

        def reading(start: int) -> asyncio.Future[list[bytes]]:
            read = asyncio.to_thread(self.folder.read, manifest, start, _AHEAD)
            return asyncio.ensure_future(read)

        starts = range(first, len(manifest.chunks), _AHEAD)
        following = reading(first) if starts else None
        try:
            for start in starts:
                assert following is not None
                batch = await following
                # Read ahead while the consumer handles this batch.
                more = start + _AHEAD < len(manifest.chunks)
                following = reading(start + _AHEAD) if more else None
                for data in batch:
                    yield data
        finally:
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)

    def cids(self, prefix: str = PREFIX) -> list[str]:
        """Return the CIDs of all complete blobs with a prefix, in order."""
        with disk_errors():
            return list(self.folder.cids(prefix))

    async def receive(
        self,
        manifest: Manifest,
        *,
        usable: Callable[[str], bool] | None = None,
        sender: str = "",
    ) -> Incoming:
        """Start or resume receiving a blob chunk by chunk.

        Args:
            usable: Whether the chunks of another blob here may be used instead of being sent; None
                for all. Whoever knows only digests must not pass for somebody who has the bytes.
            sender: Empty when this node fetches the blob itself.

        Raises:
            CommunityError: There is no room: `capacity_exceeded`.
        """
        return await Incoming.begin(self.folder, manifest, usable, sender)

    def pin(self, cid: str, owner: str = "owner", *, label: Label | None = None) -> None:
        """Keep a blob regardless of communities until its owner unpins it.

        Args:
            cid: The blob, which need not be here yet.
            owner: Such as `rag-personal`; each owner has its own pins.
            label: None leaves an earlier label unchanged.
        """
        pin = self._pin(cid, owner)
        with disk_errors():
            if not pin.parent.is_dir():
                pin.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_folder(self._pins)
                sync_folder(self._pins.parent)
            if label is None:
                pin.touch(mode=0o600)
            else:
                draft = self._pins / f".{secrets.token_hex(16)}"
                write_private(draft, orjson.dumps(asdict(label)))
                draft.replace(pin)
            sync_folder(pin.parent)

    def unpin(self, cid: str, owner: str = "owner") -> bool:
        """Remove an owner's pin; False if there was none."""
        pin = self._pin(cid, owner)
        with disk_errors():
            if not pin.is_file():
                return False
            pin.unlink()
            sync_folder(pin.parent)
        return True

    def pinned(self, owner: str | None = None) -> set[str]:
        """Return what is pinned by one owner, or by anybody."""
        with disk_errors():
            return {PREFIX + pin.name for pin in self._pins.glob(f"{owner or '*'}/*")}

    def labels(self) -> dict[str, Label]:
        """Return the labels of pinned files that have one."""
        found: dict[str, Label] = {}
        with disk_errors():
            for pin in sorted(self._pins.glob("*/*")):
                with suppress(TypeError, ValueError, FileNotFoundError):
                    if content := pin.read_bytes():
                        found[PREFIX + pin.name] = Label(**orjson.loads(content))
        return found

    def put_key(self, cid: str, key: bytes) -> None:
        """Store the key of an encrypted blob for as long as the blob is here."""
        path = self._key(cid)
        with disk_errors():
            if path.is_file():
                return
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = path.with_name(f".{secrets.token_hex(16)}")
            write_private(draft, key)
            draft.replace(path)
            sync_folder(path.parent)

    def key(self, cid: str) -> bytes | None:
        """Return the stored key of an encrypted blob."""
        with disk_errors(), suppress(FileNotFoundError):
            return self._key(cid).read_bytes()
        return None

    def collect(
        self, named: Iterable[str], *, incoming: Iterable[str] = (), before: float
    ) -> Collected:
        """Remove what is neither named, shared nor pinned; blocking.

        Args:
            named: The blobs that the node's events in its communities keep.
            incoming: Blobs that are being received.
            before: Only what is older is removed, since a young blob may be about to be named.
        """
        kept = {*named, *self.pinned(), *self.shares.referenced()}
        drafts = [cid.removeprefix(PREFIX) for cid in incoming]
        blobs: list[int] = []
        with disk_errors():
            for bucket in range(256):
                # Lock one bucket at a time, so that writers do not wait for long.
                here = self.folder.cids(f"{PREFIX}{bucket:02x}")
                blobs += self.folder.sweep([cid for cid in here if cid not in kept], before=before)
            left = self.folder.tidy(drafts, before=before)
            for path in self._keys.glob("[0-9a-f]*"):
                if not self.folder.has(PREFIX + path.name):
                    path.unlink(missing_ok=True)
        return Collected(len(blobs), sum(blobs) + sum(left))

    def delete(self, cid: str) -> bool:
        """Remove a blob and its key at once, whoever may need it; False if it is not here."""
        with disk_errors():
            gone = self.folder.sweep([cid], before=math.inf)
            if gone:
                self._key(cid).unlink(missing_ok=True)
        return bool(gone)

    def _key(self, cid: str) -> Path:
        return self._keys / check_cid(cid).removeprefix(PREFIX)

    def _pin(self, cid: str, owner: str) -> Path:
        if not _OWNER.fullmatch(owner):
            raise bad_request(f"{owner[:80]!r} cannot own a pin")
        return self._pins / owner / check_cid(cid).removeprefix(PREFIX)


@dataclass(frozen=True, slots=True)
class FileSettings:
    """How a node stores files for others.

    Attributes:
        grace_seconds: How long an unreferenced blob stays before it may be collected.
        idle_seconds: How long a `file.put` waits for the next chunks.
        resume_seconds: How long an interrupted `file.put` may be resumed by its id.
        max_uploads: How many blobs are received at once.
        max_uploads_each: How many of them from one caller.
        max_hints: How many holder hints are kept.
    """

    grace_seconds: float = 86_400.0
    idle_seconds: float = 50.0
    resume_seconds: float = 600.0
    max_uploads: int = 16
    max_uploads_each: int = 4
    max_hints: int = 100_000


@dataclass(slots=True, eq=False)
class Upload:
    """A blob that somebody is uploading.

    Attributes:
        received: How many chunks were sent, not counting those that were here.
        is_done: Whether the blob is complete and durable.
        touched: The time of the last activity, by the monotonic clock.
        changed: Set on every activity.
    """

    upload_id: str
    caller: str
    community: str
    incoming: Incoming
    touched: float
    received: int = 0
    is_done: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def manifest(self) -> Manifest:
        """The blob's manifest."""
        return self.incoming.manifest


class FileUploads:
    """Blobs that other nodes are uploading: progress, ownership and limits.

    An upload without activity is dropped after a while; its chunks stay in the store, so that the
    caller can resume.
    """

    def __init__(self, blobs: Blobs, clock: Clock, settings: FileSettings) -> None:
        self._blobs = blobs
        self._clock = clock
        self._settings = settings
        self._ids = UlidSource(clock)
        self._uploads: dict[str, Upload] = {}
        self._beginning = asyncio.Lock()

    @property
    def cids(self) -> list[str]:
        """The CIDs of the blobs that are being received."""
        return [upload.manifest.cid for upload in self._uploads.values()]

    async def begin(
        self, caller: str, community: str, manifest: Manifest, readable: AbstractSet[str] | None
    ) -> Upload:
        """Start or resume an upload.

        Args:
            readable: Blobs that the caller may read here, whose chunks need not be sent; None for
                all.

        Raises:
            CommunityError: There is no room, or there are too many uploads: `capacity_exceeded`.
        """
        async with self._beginning:
            self._forget()
            whose = (caller, community, manifest.cid)
            for known in self._uploads.values():
                if (known.caller, known.community, known.manifest.cid) == whose:
                    known.touched = self._clock.monotonic()
                    return known
            self._check_count(caller)
            incoming = await self._blobs.receive(
                manifest,
                usable=None if readable is None else readable.__contains__,
                sender=caller,
            )
            expected = sum(each.incoming.missing_bytes for each in self._uploads.values())
            self._blobs.folder.check_room(expected + incoming.missing_bytes)
            upload = Upload(self._ids.new(), caller, community, incoming, self._clock.monotonic())
            self._uploads[upload.upload_id] = upload
            return upload

    def find(self, upload_id: str, caller: str, community: str) -> Upload:
        """Return an upload of a caller, or raise `not_found`."""
        upload = self._uploads.get(upload_id)
        if upload is None or (upload.caller, upload.community) != (caller, community):
            raise CommunityError(
                Code.NOT_FOUND,
                "no such upload is under way",
                mend="ask again with the manifest; what has come is kept",
            )
        return upload

    async def take(self, upload: Upload, chunks: Mapping[int, bytes]) -> None:
        """Store some chunks; raises as `Incoming.take` does."""
        async with upload.turn:
            fresh = len(upload.incoming.missing & chunks.keys())
            if not upload.is_done:
                await upload.incoming.take(chunks)
                upload.received += fresh
            upload.touched = self._clock.monotonic()
            upload.changed.set()

    async def finish(self, upload: Upload) -> bool:
        """Publish the blob if nothing is missing, and return whether this call did."""
        async with upload.turn:
            if upload.is_done or upload.incoming.missing:
                return False
            await upload.incoming.finish()
            upload.is_done = True
            self._uploads.pop(upload.upload_id, None)
            upload.changed.set()
            return True

    def _check_count(self, caller: str) -> None:
        mine = sum(upload.caller == caller for upload in self._uploads.values())
        settings = self._settings
        if mine >= settings.max_uploads_each or len(self._uploads) >= settings.max_uploads:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                "too many blobs are being received",
                details={"retry_after_ms": 5000},
            )

    def _forget(self) -> None:
        oldest = self._clock.monotonic() - self._settings.resume_seconds
        for upload in [each for each in self._uploads.values() if each.touched < oldest]:
            del self._uploads[upload.upload_id]
