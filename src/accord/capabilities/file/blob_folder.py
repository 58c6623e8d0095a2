"""The folder of the blob store: the bytes of each blob, its manifest, and a chunk index.

A blob gets its name after its bytes are synced, and bytes are hashed whenever they are read.
Several processes may use one folder. The index only says where to look for a chunk.
"""

import errno
import fcntl
import os
import secrets
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from accord.capabilities.file.rules import CHUNK, PREFIX, Manifest, check_cid, cid_of, read_manifest
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.files import sync_folder, write_private

_RECORD: Final = struct.Struct(">32s32sI")


class ChunkIndex:
    """The chunk index of a blob store; callers hold the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, manifest: Manifest) -> None:
        """Add the chunks of a blob."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._append(manifest)

    def find(self, cids: Iterable[str]) -> Iterator[tuple[str, str, int]]:
        """Yield chunk, blob and chunk number for places where chunks may be."""
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
        """Rebuild the index from these blobs."""
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
                # Pad a record that a power cut left incomplete, so that later records stay aligned.
                file.write(bytes(-file.tell() % _RECORD.size) + some)

    def _file(self, first: int) -> Path:
        return self._folder / f"{first:02x}"


def _digest(cid: str) -> bytes:
    return bytes.fromhex(cid.removeprefix(PREFIX))


TOGETHER: Final = 16
"""How many chunks are read or written at a time."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_RETRY_MS: Final = 60_000
_BUCKET: Final = 2
_MANIFEST: Final = ".json"


class BlobFolder:
    """The files of a blob store.

    Args:
        folder: Created on the first write.
        clock: Dates the blobs for garbage collection.
        min_free_bytes: Free disk space below which nothing is written.
    """

    def __init__(self, folder: Path, clock: Clock, *, min_free_bytes: int) -> None:
        self.path = folder
        self._clock = clock
        self._min_free = min_free_bytes
        self._index = ChunkIndex(folder / "chunks")

    def has(self, cid: str) -> bool:
        """Whether a complete blob is here."""
        return self._manifest(cid).is_file()

    def manifest(self, cid: str) -> Manifest:
        """Return a blob's manifest; `not_found` if it is missing or damaged."""
        path = self._manifest(cid)
        with disk_errors():
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                raise _missing(cid) from None
        if cid_of(content) != cid:
            raise _damaged(cid)
        return read_manifest(canonical.decode(content))

    def read(self, manifest: Manifest, first: int, count: int) -> list[bytes]:
        """Return some verified chunks of a blob in order; `not_found` if missing or damaged."""
        chunks = []
        with disk_errors():
            try:
                with self._data(manifest.cid).open("rb") as file:
                    file.seek(first * CHUNK)
                    for expected in manifest.chunks[first : first + count]:
                        data = file.read(CHUNK)
                        # Hash while the data is still in the processor's cache.
                        if cid_of(data) != expected:
                            raise _damaged(manifest.cid)
                        chunks.append(data)
            except FileNotFoundError:
                raise _missing(manifest.cid) from None
        return chunks

    def find(
        self, cids: Iterable[str], usable: Callable[[str], bool] | None = None
    ) -> Iterator[tuple[str, bytes]]:
        """Yield each chunk once, verified, from any blob that is `usable`."""
        wanted = set(map(check_cid, cids))
        with disk_errors():
            for cid, blob, number in self._index.find(tuple(wanted)):
                if cid not in wanted or not (usable is None or usable(blob)):
                    continue
                try:
                    with self._data(blob).open("rb") as file:
                        file.seek(number * CHUNK)
                        data = file.read(CHUNK)
                except FileNotFoundError:
                    continue
                if cid_of(data) == cid:
                    wanted.remove(cid)
                    yield cid, data

    def with_chunk(self, cid: str) -> list[str]:
        """The blobs that have a chunk according to the index."""
        return [blob for _, blob, _ in self._index.find([check_cid(cid)])]

    def renew(self, cid: str) -> bool:
        """Reset a blob's age so that it is not collected; False if it is missing or damaged."""
        try:
            manifest = self.manifest(cid)
            for first in range(0, len(manifest.chunks), TOGETHER):
                self.read(manifest, first, TOGETHER)
        except CommunityError as error:
            if error.code is Code.NOT_FOUND:
                return False
            raise
        with disk_errors(), self._locked(fcntl.LOCK_SH):
            if not self.has(cid):
                return False
            now = self._clock.now()
            os.utime(self._manifest(cid), (now, now))
        return True

    def draft(self, name: str | None = None) -> Path:
        """Create or reopen a file for a blob that has no name yet."""
        with disk_errors():
            drafts = self._made(self.path / "drafts")
            path = drafts / (name or secrets.token_hex(16))
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        return path

    def publish(self, draft: Path, manifest: Manifest) -> None:
        """Rename a draft to its CID; blob and manifest are durable on return.

        The age of a blob that was here already is reset, so that it is not collected.
        """
        described = draft.with_name(secrets.token_hex(16))
        data, beside = self._data(manifest.cid), self._manifest(manifest.cid)
        with disk_errors():
            try:
                _sync(draft)
                write_private(described, manifest.content)
                self._made(data.parent)
                with self._locked(fcntl.LOCK_SH):
                    now = self._clock.now()
                    is_new = not beside.is_file()
                    for each in (draft, described):
                        os.utime(each, (now, now))
                    draft.replace(data)
                    described.replace(beside)
                    if is_new:
                        self._index.add(manifest)
                sync_folder(data.parent)
            finally:
                described.unlink(missing_ok=True)

    def sweep(self, cids: Iterable[str], *, before: float) -> list[int]:
        """Remove blobs older than a time; return the sizes of those removed."""
        gone: list[int] = []
        with disk_errors(), self._locked(fcntl.LOCK_EX):
            for cid in cids:
                data, beside = self._data(cid), self._manifest(cid)
                if beside.is_file() and beside.stat().st_mtime < before:
                    beside.unlink()
                    gone.append(_removed(data))
        return gone

    def tidy(self, spared: Iterable[str], *, before: float) -> list[int]:
        """Remove old drafts and blobs without a manifest, and rebuild the chunk index.

        Args:
            spared: CIDs (hexadecimal digits only) whose drafts stay.
            before: Only what is older is removed.

        Returns:
            The sizes of what was removed.
        """
        names = frozenset(spared)
        with disk_errors(), self._locked(fcntl.LOCK_EX):
            drafts = self.path.glob("drafts/*")
            left = [draft for draft in drafts if draft.name.partition("-")[0] not in names]
            left += [
                path
                for path in self.path.glob(f"{'[0-9a-f]' * _BUCKET}/*")
                if not path.suffix and not path.with_name(path.name + _MANIFEST).is_file()
            ]
            self._index.rebuild(self._manifests())
            return [_removed(path) for path in left if path.stat().st_mtime < before]

    def _manifests(self) -> Iterator[Manifest]:
        for cid in self.cids():
            try:
                yield self.manifest(cid)
            except CommunityError as error:
                if error.code is not Code.NOT_FOUND:
                    raise

    def cids(self, prefix: str = PREFIX) -> Iterator[str]:
        """Yield the CIDs of all complete blobs with a prefix, in order."""
        digits = prefix.removeprefix(PREFIX)
        for number in range(256):
            bucket = f"{number:02x}"
            if not bucket.startswith(digits[:_BUCKET]):
                continue
            found = self.path.glob(f"{bucket}/*{_MANIFEST}")
            names = sorted(path.name.removesuffix(_MANIFEST) for path in found)
            yield from (
                f"{PREFIX}{bucket}{name}" for name in names if name.startswith(digits[_BUCKET:])
            )

    def check_room(self, wanted: int) -> None:
        """Raise `capacity_exceeded` unless so many bytes can be written."""
        place = self.path
        while not place.exists():
            place = place.parent
        if shutil.disk_usage(place).free - wanted < self._min_free:
            raise disk_full() from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _data(self, cid: str) -> Path:
        name = check_cid(cid).removeprefix(PREFIX)
        return self.path / name[:_BUCKET] / name[_BUCKET:]

    def _manifest(self, cid: str) -> Path:
        data = self._data(cid)
        return data.with_name(data.name + _MANIFEST)

    def _made(self, folder: Path) -> Path:
        for each in (self.path, folder):
            if not each.is_dir():
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_folder(each.parent)
        return folder

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        with (self._made(self.path) / "lock").open("ab") as lock:
            fcntl.flock(lock, how)
            yield


@contextmanager
def disk_errors() -> Iterator[None]:
    """Convert `OSError` to `CommunityError` without paths, since other nodes may see it."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise disk_full() from error
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the blob store cannot be used ({error.strerror or type(error).__name__})",
        ) from error


def disk_full() -> CommunityError:
    """Return the error for a full disk."""
    return CommunityError(
        Code.CAPACITY_EXCEEDED,
        "there is no room for this blob",
        mend="free some space, or let `accord file gc` do it",
        details={"retry_after_ms": _RETRY_MS},
    )


def _missing(cid: str) -> CommunityError:
    return CommunityError(Code.NOT_FOUND, "this blob or chunk is not here", where=cid)


def _damaged(cid: str) -> CommunityError:
    return CommunityError(
        Code.NOT_FOUND,
        "the copy here is damaged",
        where=cid,
        mend="add it again, or get it from another holder",
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _removed(path: Path) -> int:
    size = path.stat().st_size if path.is_file() else 0
    path.unlink(missing_ok=True)
    return size
