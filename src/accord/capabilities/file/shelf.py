"""The folder of the blob store: a file with the bytes of each blob, and its manifest beside it.

Owns the layout, and that nothing counts which is not whole: a blob gets its name after its bytes
are synced, and bytes are hashed whenever they are read. Several processes may use one folder; only
what removes blobs holds the lock alone. Blocking: callers run it in threads.
"""

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from accord.capabilities.file.index import ChunkIndex
from accord.capabilities.file.manifests import (
    CHUNK,
    PREFIX,
    Manifest,
    check_cid,
    cid_of,
    read_manifest,
)
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.files import sync_folder, write_private

TOGETHER: Final = 16
"""How many chunks are read or written in one go."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_RETRY_MS: Final = 60_000
_BUCKET: Final = 2
_MANIFEST: Final = ".json"


class Shelf:
    """The files of a blob store.

    Args:
        folder: Where; made when something is written.
        clock: Dates the blobs, for those that collect garbage.
        min_free_bytes: How much of the disk is left to others.
    """

    def __init__(self, folder: Path, clock: Clock, *, min_free_bytes: int) -> None:
        self.folder = folder
        self._clock = clock
        self._min_free = min_free_bytes
        self._index = ChunkIndex(folder / "chunks")

    def has(self, cid: str) -> bool:
        """Whether a whole blob is here."""
        return self._manifest(cid).is_file()

    def manifest(self, cid: str) -> Manifest:
        """What a blob consists of.

        Raises:
            CommunityError: It is not here, or its manifest is damaged: `not_found`.
        """
        path = self._manifest(cid)
        with told():
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                raise _missing(cid) from None
        if cid_of(content) != cid:
            raise _damaged(cid)
        return read_manifest(canonical.decode(content))

    def read(self, manifest: Manifest, first: int, count: int) -> list[bytes]:
        """Some chunks of a blob, in order, each of them verified.

        Raises:
            CommunityError: It is not here, or damaged: `not_found`.
        """
        chunks = []
        with told():
            try:
                with self._data(manifest.cid).open("rb") as file:
                    file.seek(first * CHUNK)
                    for expected in manifest.chunks[first : first + count]:
                        data = file.read(CHUNK)
                        # While the processor still has it at hand.
                        if cid_of(data) != expected:
                            raise _damaged(manifest.cid)
                        chunks.append(data)
            except FileNotFoundError:
                raise _missing(manifest.cid) from None
        return chunks

    def find(self, cids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Chunks of whichever blobs have them, verified, each once."""
        wanted = set(map(check_cid, cids))
        with told():
            for cid, blob, number in self._index.find(tuple(wanted)):
                if cid not in wanted:
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
        """The blobs that seem to have a chunk."""
        return [blob for _, blob, _ in self._index.find([check_cid(cid)])]

    def renew(self, cid: str) -> bool:
        """Make a blob young, so that nobody collects it; whether it is here, whole and intact."""
        try:
            manifest = self.manifest(cid)
            for first in range(0, len(manifest.chunks), TOGETHER):
                self.read(manifest, first, TOGETHER)
        except CommunityError as error:
            if error.code is Code.NOT_FOUND:
                return False
            raise
        with told(), self._locked(fcntl.LOCK_SH):
            if not self.has(cid):
                return False
            now = self._clock.now()
            os.utime(self._manifest(cid), (now, now))
        return True

    def draft(self, name: str | None = None) -> Path:
        """A place where a blob may be written, or go on to be written, before it has its name."""
        with told():
            drafts = self._made(self.folder / "drafts")
            path = drafts / (name or secrets.token_hex(16))
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        return path

    def publish(self, draft: Path, manifest: Manifest) -> None:
        """Give a draft its name; blob and manifest are durable when this returns.

        A blob that was here already becomes young, so that nobody collects it.
        """
        described = draft.with_name(secrets.token_hex(16))
        data, beside = self._data(manifest.cid), self._manifest(manifest.cid)
        with told():
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
        """Remove blobs that are older than a moment; the sizes of those that were removed."""
        gone: list[int] = []
        with told(), self._locked(fcntl.LOCK_EX):
            for cid in cids:
                data, beside = self._data(cid), self._manifest(cid)
                if beside.is_file() and beside.stat().st_mtime < before:
                    beside.unlink()
                    gone.append(_removed(data))
        return gone

    def tidy(self, spared: Iterable[str], *, before: float) -> list[int]:
        """Remove what a crash or a loss of interest left, and build the index of chunks anew.

        Args:
            spared: The names of drafts that stay.
            before: Only what is older than this moment is removed.

        Returns:
            The sizes of what was removed.
        """
        names = frozenset(spared)
        with told(), self._locked(fcntl.LOCK_EX):
            left = [draft for draft in self.folder.glob("drafts/*") if draft.name not in names]
            left += [
                path
                for path in self.folder.glob(f"{'[0-9a-f]' * _BUCKET}/*")
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
        """The CIDs of all whole blobs that begin with a prefix, in order."""
        digits = prefix.removeprefix(PREFIX)
        for number in range(256):
            bucket = f"{number:02x}"
            if not bucket.startswith(digits[:_BUCKET]):
                continue
            found = self.folder.glob(f"{bucket}/*{_MANIFEST}")
            names = sorted(path.name.removesuffix(_MANIFEST) for path in found)
            yield from (
                f"{PREFIX}{bucket}{name}" for name in names if name.startswith(digits[_BUCKET:])
            )

    def check_room(self, wanted: int) -> None:
        """Check that so many bytes can be written.

        Raises:
            CommunityError: They cannot: `capacity_exceeded`.
        """
        place = self.folder
        while not place.exists():
            place = place.parent
        if shutil.disk_usage(place).free - wanted < self._min_free:
            raise full() from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _data(self, cid: str) -> Path:
        name = check_cid(cid).removeprefix(PREFIX)
        return self.folder / name[:_BUCKET] / name[_BUCKET:]

    def _manifest(self, cid: str) -> Path:
        data = self._data(cid)
        return data.with_name(data.name + _MANIFEST)

    def _made(self, folder: Path) -> Path:
        for each in (self.folder, folder):
            if not each.is_dir():
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_folder(each.parent)
        return folder

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        with (self._made(self.folder) / "lock").open("ab") as lock:
            fcntl.flock(lock, how)
            yield


@contextmanager
def told() -> Iterator[None]:
    """Tell in the community's words what the disk says, and no path: others may hear it."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise full() from error
        raise CommunityError(
            Code.INTERNAL_ERROR,
            f"the blob store cannot be used ({error.strerror or type(error).__name__})",
        ) from error


def full() -> CommunityError:
    """There is no room on the disk."""
    return CommunityError(
        Code.CAPACITY_EXCEEDED,
        "there is no room for this blob",
        mend="free some space, or let `accord file gc` do it",
        details={"retry_after_ms": _RETRY_MS},
    )


def _missing(cid: str) -> CommunityError:
    return CommunityError(Code.NOT_FOUND, "this is not here", where=cid)


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
