"""Backup and restore of a station: stores, keys, settings, blobs, streams and landed data.

A station may run meanwhile: stores are copied by their engine, other databases by SQLite, streams
while their server is paused. Pipeline tables, logs, console logins and the home's own backups are
left out. Nothing is overwritten, and a backup or a restored home appears complete or not at all. A
restore does not trust the backup: it takes only regular files that its list names, inside the home.
"""

import json
import os
import shutil
import sqlite3
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Final

from blake3 import blake3

from accord import __version__, storage
from accord.authority.nats.server import paused_server
from accord.community.log import RestoreNote
from accord.kernel.clock import SystemClock
from accord.kernel.files import sync_folder
from accord.station import store
from accord.station.errors import StationError
from accord.station.home import LOCK_NAME
from accord.station.settings import FILE_NAME, Settings, load
from accord.station.store import store_location
from accord.station.versions import SCHEMAS
from accord.storage import StoreError

Progress = Callable[[str], None]

_FORM: Final = 1
_LONGEST_LIST: Final = 1 << 29
_LIST: Final = "backup.json"
_STORES: Final = "stores"
_STREAMS: Final = Path("nats")
_LEFT_OUT: Final = frozenset({LOCK_NAME, "backups", "console", "logs", _STORES})
_TABLES: Final = Path("pipeline")
_KEPT_OF_PIPELINE: Final = frozenset({"landing"})
_RUNNING: Final = frozenset({"server.pid", "server.out", "server.log", "lock"})
_DATABASE: Final = b"SQLite format 3\0"
_BESIDE_DATABASES: Final = ("-wal", "-shm", "-journal")


def back_up(settings: Settings, dest: Path, progress: Progress) -> dict[str, Any]:
    """Copy the station to a new folder, and return the backup's description; it may be running.

    Raises:
        StationError: The folder exists, or cannot be written.
        StoreError: A store is damaged or cannot be read.
    """
    if not settings.home.is_dir():
        raise StationError(
            "there is no station here", where=str(settings.home), mend="name one with --home"
        )
    with _made_whole(dest) as draft:
        # Blobs never change; the second pass copies those that were added meanwhile.
        _copy_files(settings.home, draft, progress)
        _copy_stores(settings, draft / _STORES, progress)
        _copy_files(settings.home, draft, progress)
        _copy_streams(settings.home / _STREAMS, draft / _STREAMS, progress)
        progress("writing the list of its files")
        told = {
            "form": _FORM,
            "version": __version__,
            "made": int(time.time()),
            "files": dict(_digests(draft)),
        }
        (draft / _LIST).write_text(json.dumps(told, indent=1), encoding="utf-8")
    # A backup must succeed when the station's disk is full and acts cannot be recorded.
    with suppress(StoreError):
        store.record_act(settings, SystemClock(), "backup.made", path=str(dest.absolute()))
    return told


def restore(source: Path, home: Path, progress: Progress, *, alone: bool = False) -> None:
    """Make a home from a backup.

    Args:
        home: A folder that does not exist or is empty.
        alone: Nobody else has what this node signed since; it may sign without asking others.

    Raises:
        StationError: It is no backup, it is damaged, or the home is not empty.
        StoreError: The backup's stores cannot be restored.
    """
    files = _read(source)
    if home.exists() and any(home.iterdir()):
        raise StationError(
            "something is here already", where=str(home), mend="name a new folder with --home"
        )
    progress("verifying the backup")
    _prove(source, files)
    if home.exists():
        home.rmdir()
    with _made_whole(home) as draft:
        for name in files:
            if PurePosixPath(name).parts[0] != _STORES:
                _copy_in(source / name, draft, name)
        (draft / _STORES).mkdir(mode=0o700)
        _restore_stores(source, files, draft, progress)
        if not alone:
            for community in (draft / "communities").glob("[!.]*/"):
                RestoreNote(community).create()
    store.record_act(load(home), SystemClock(), "station.restored", backup=str(source.absolute()))


def _copy_stores(settings: Settings, folder: Path, progress: Progress) -> None:
    where = store_location(settings)
    folder.mkdir(mode=0o700)
    for schema in SCHEMAS:
        if storage.exists(where, schema):
            progress(f"backing up {schema.name}")
            storage.backup(where, schema, folder / f"{schema.name}.db")


def _restore_stores(source: Path, files: dict[str, str], home: Path, progress: Progress) -> None:
    config = home / FILE_NAME
    settings = load(home, config if config.exists() else None)
    for schema in SCHEMAS:
        name = f"{_STORES}/{schema.name}.db"
        if name in files:
            progress(f"restoring {schema.name}")
            storage.restore(source / name, store_location(settings), schema)


def _copy_in(file: Path, draft: Path, name: str) -> None:
    """Copy a verified file to its place in the new home, for its owner alone."""
    copy = draft / name
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not copy.parent.resolve().is_relative_to(draft.resolve()):
        raise _hostile(name, "it would lie outside the home")
    shutil.copy2(file, copy)
    copy.chmod(stat.S_IMODE(copy.stat().st_mode) & 0o700)


def _copy_files(home: Path, draft: Path, progress: Progress) -> None:
    """Copy every file that is missing; files that disappear meanwhile are ignored."""
    progress("copying files")
    for file in _files(home):
        name = file.relative_to(home)
        if name.parts[0] in _LEFT_OUT or name.parts[0] == _STREAMS.name:
            continue
        if name.parts[0] == _TABLES.name and name.parts[1] not in _KEPT_OF_PIPELINE:
            continue
        _copy(file, draft / name)


def _copy_streams(streams: Path, draft: Path, progress: Progress) -> None:
    if not streams.is_dir():
        return
    progress("copying streams")
    # Copy most of it before the server is paused, then only what has changed.
    _mirror(streams, draft)
    with paused_server(streams):
        _mirror(streams, draft)


def _mirror(streams: Path, draft: Path) -> None:
    there = {file.relative_to(streams) for file in _files(streams) if file.name not in _RUNNING}
    for name in there:
        _copy(streams / name, draft / name, again=True)
    for file in list(_files(draft)):
        if file.relative_to(draft) not in there:
            file.unlink()


def _copy(file: Path, copy: Path, *, again: bool = False) -> None:
    copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        if copy.exists() and (not again or _same(file, copy)):
            return
        with file.open("rb") as opened:
            is_database = opened.read(16) == _DATABASE
        if is_database and not again:
            with (
                closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as old,
                closing(sqlite3.connect(copy)) as new,
            ):
                old.backup(new)
            copy.chmod(0o600)
        else:
            shutil.copy2(file, copy)
    except FileNotFoundError:
        copy.unlink(missing_ok=True)


def _same(file: Path, copy: Path) -> bool:
    one, other = file.stat(), copy.stat()
    return (one.st_size, one.st_mtime_ns) == (other.st_size, other.st_mtime_ns)


def _files(folder: Path) -> Iterator[Path]:
    """Yield every regular file below a folder, except the journals of databases."""
    for parent, _, names in os.walk(folder):
        for name in names:
            file = Path(parent, name)
            if not file.is_symlink() and not name.endswith(_BESIDE_DATABASES):
                yield file


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(_files(folder)):
        yield str(file.relative_to(folder)), _digest(file)


def _digest(file: Path) -> str:
    hasher = blake3()
    hasher.update_mmap(file)
    return hasher.hexdigest()


def _read(source: Path) -> dict[str, str]:
    """Return the files that a backup lists, with their digests; all names are checked."""
    try:
        with (source / _LIST).open("rb") as opened:
            told = json.loads(opened.read(_LONGEST_LIST))
        form, files = told["form"], told["files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise StationError(
            "this is no backup of a station",
            where=str(source),
            mend="name a folder that `accord backup` made",
        ) from None
    if form != _FORM or not isinstance(files, dict):
        raise StationError(
            f"the backup was made by another version ({told.get('version')!r})",
            where=str(source),
            mend="restore it with that version or a newer one",
        )
    for name, digest in files.items():
        if (trouble := _trouble(name)) is not None:
            raise _hostile(name, trouble)
        if not isinstance(digest, str):
            raise _damaged(source / name)
    return files


def _trouble(name: str) -> str | None:
    """Return why a file name is not valid in a backup; None if it is."""
    path = PurePosixPath(name)
    if path.is_absolute():
        return "it is absolute"
    if ".." in path.parts:
        return "it has `..`"
    if not path.parts or str(path) != name or "\0" in name:
        return "it is not a plain path"
    if path.parts[0] in _LEFT_OUT - {_STORES}:
        return "a backup leaves that out"
    return None


def _prove(source: Path, files: dict[str, str]) -> None:
    for name, digest in files.items():
        file = source
        for part in PurePosixPath(name).parts:
            file /= part
            if file.is_symlink():
                raise _hostile(str(file.relative_to(source)), "it is a symbolic link")
        if not file.is_file() or _digest(file) != digest:
            raise _damaged(file)


def _hostile(name: str, why: str) -> StationError:
    return StationError(
        f"the backup is not one that `accord backup` made: it names {name[:200]!r}, and {why}",
        mend="restore only a backup that you made yourself, or whose maker you trust",
    )


def _damaged(file: Path) -> StationError:
    return StationError(
        "the backup is damaged: a file is missing or has changed",
        where=str(file),
        mend="use another backup",
    )


@contextmanager
def _made_whole(dest: Path) -> Iterator[Path]:
    """Yield a folder that gets its name when the block succeeds, and is removed otherwise."""
    if dest.exists():
        raise StationError("it is there already", where=str(dest), mend="name a new folder")
    try:
        with tempfile.TemporaryDirectory(prefix=".accord-", dir=dest.absolute().parent) as made:
            draft = Path(made) / dest.name
            draft.mkdir(mode=0o700)
            yield draft
            os.sync()
            draft.rename(dest)
            sync_folder(dest.absolute().parent)
    except (OSError, sqlite3.Error) as error:
        raise StationError(
            f"it cannot be written here ({getattr(error, 'strerror', None) or error})",
            where=str(dest),
            mend="name a new folder in one that exists, can be written and has space",
        ) from error
