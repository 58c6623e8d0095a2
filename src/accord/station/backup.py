"""A whole station in a folder: its stores, keys, settings, blobs, streams and what has landed.

Owns what belongs to a backup and how each kind of file is copied while the station runs: stores by
their engine, other databases by SQLite, streams while their server stands still, everything else
as it is. Left out is what can be made again or must not be copied: tables of the pipeline, logs,
and who is logged in at the console. Nothing is ever overwritten, and a backup or a restored home
appears whole or not at all.
"""

import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from accord import __version__, storage
from accord.authority.nats.process import still
from accord.community.log import Note
from accord.kernel.clock import SystemClock
from accord.kernel.files import sync_folder
from accord.station import acts
from accord.station.errors import StationError
from accord.station.home import LOCK_NAME
from accord.station.settings import FILE_NAME, Settings, load
from accord.station.store import place
from accord.station.stores import SCHEMAS
from accord.storage import StoreError

Progress = Callable[[str], None]

_FORM: Final = 1
_LIST: Final = "backup.json"
_STORES: Final = "stores"
_STREAMS: Final = Path("nats")
_LEFT_OUT: Final = frozenset({LOCK_NAME, "console", "logs", _STORES})
_TABLES: Final = Path("pipeline")
_KEPT_OF_PIPELINE: Final = frozenset({"landing"})
_RUNNING: Final = frozenset({"server.pid", "server.out", "server.log", "lock"})
_DATABASE: Final = b"SQLite format 3\0"
_BESIDE_DATABASES: Final = ("-wal", "-shm", "-journal")


def back_up(settings: Settings, dest: Path, progress: Progress) -> dict[str, Any]:
    """Copy the station to a new folder; it may be running.

    Returns:
        What the backup says of itself.

    Raises:
        StationError: The folder is there already, or cannot be written.
        StoreError: A store is damaged or cannot be read.
    """
    if not settings.home.is_dir():
        raise StationError(
            "there is no station here", where=str(settings.home), mend="name one with --home"
        )
    with _made_whole(dest) as draft:
        # Blobs are never changed: those that come or go meanwhile are caught by the second look.
        _copy_files(settings.home, draft, progress)
        _copy_stores(settings, draft / _STORES, progress)
        _copy_files(settings.home, draft, progress)
        _copy_streams(settings.home / _STREAMS, draft / _STREAMS, progress)
        progress("writing down what it holds")
        told = {
            "form": _FORM,
            "version": __version__,
            "made": int(time.time()),
            "files": dict(_digests(draft)),
        }
        (draft / _LIST).write_text(json.dumps(told, indent=1), encoding="utf-8")
    # A backup is wanted most when the disk of the station is full, and takes no more notes.
    with suppress(StoreError):
        acts.note(settings, SystemClock(), "backup.made", path=str(dest.absolute()))
    return told


def restore(source: Path, home: Path, progress: Progress, *, alone: bool = False) -> None:
    """Make a home from a backup.

    Args:
        source: A folder that `back_up` made.
        home: Where to; there must be nothing.
        progress: Told what is being done.
        alone: Nobody else has what this node signed since; it need not ask before it signs.

    Raises:
        StationError: It is no backup, it is damaged, or something is there already.
        StoreError: The backup's stores cannot be restored.
    """
    told = _read(source)
    if home.exists() and any(home.iterdir()):
        raise StationError(
            "something is here already", where=str(home), mend="name a new folder with --home"
        )
    progress("proving the backup")
    _prove(source, told["files"])
    if home.exists():
        home.rmdir()
    with _made_whole(home) as draft:
        for name in told["files"]:
            file = draft / name
            if Path(name).parts[0] != _STORES:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                shutil.copy2(source / name, file)
        (draft / _STORES).mkdir(mode=0o700)
        _restore_stores(source / _STORES, draft, progress)
        if not alone:
            for community in (draft / "communities").glob("[!.]*"):
                Note(community).leave()
    acts.note(load(home), SystemClock(), "station.restored", backup=str(source.absolute()))


def _copy_stores(settings: Settings, folder: Path, progress: Progress) -> None:
    where = place(settings)
    folder.mkdir(mode=0o700)
    for schema in SCHEMAS:
        if storage.exists(where, schema):
            progress(f"backing up {schema.name}")
            storage.backup(where, schema, folder / f"{schema.name}.db")


def _restore_stores(folder: Path, home: Path, progress: Progress) -> None:
    config = home / FILE_NAME
    settings = load(home, config if config.exists() else None)
    for schema in SCHEMAS:
        file = folder / f"{schema.name}.db"
        if file.exists():
            progress(f"restoring {schema.name}")
            storage.restore(file, place(settings), schema)


def _copy_files(home: Path, draft: Path, progress: Progress) -> None:
    """Copy every file that is not there yet; one that has gone meanwhile is not missed."""
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
    # The longest part is done before the server stands still; then only what has changed.
    _mirror(streams, draft)
    with still(streams):
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
    """Every plain file below a folder, but for what databases keep beside them."""
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


def _read(source: Path) -> dict[str, Any]:
    try:
        told = json.loads((source / _LIST).read_bytes())
        form, files = told["form"], told["files"]
    except (OSError, ValueError, KeyError, TypeError):
        raise StationError(
            "this is no backup of a station",
            where=str(source),
            mend="name a folder that `accord backup` made",
        ) from None
    if form != _FORM or not isinstance(files, dict):
        raise StationError(
            f"the backup was made by another version ({told.get('version')})",
            where=str(source),
            mend="restore it with that version or a newer one",
        )
    return {"files": files}


def _prove(source: Path, files: dict[str, str]) -> None:
    for name, digest in files.items():
        file = source / name
        inside = file.resolve().is_relative_to(source.resolve())
        if not inside or not file.is_file() or _digest(file) != digest:
            raise StationError(
                "the backup is damaged: a file is missing or has changed",
                where=str(file),
                mend="use another backup",
            )


@contextmanager
def _made_whole(dest: Path) -> Iterator[Path]:
    """A folder that appears under its name when the block ends well, and not at all otherwise."""
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
