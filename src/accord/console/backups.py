"""Backups that the console has made: complete ones in the folder `backups` of the home.

`accord backup` makes them, as a process of its own; it leaves this folder out. One is downloaded as
a tar archive, which is written while it is sent.
"""

import json
import re
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from accord.console.messages import tr
from accord.console.sessions import ConsoleError
from accord.kernel.clock import Clock, format_time

FOLDER: Final = "backups"
_LIST: Final = "backup.json"
_NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z(?:-[0-9]{1,3})?", re.ASCII)
_CHUNK: Final = 1 << 18
_BLOCK: Final = tarfile.BLOCKSIZE


@dataclass(frozen=True, slots=True)
class Backup:
    """A complete backup; `made_at` in milliseconds since the epoch, `size` in bytes."""

    name: str
    path: Path
    made_at: int
    size: int
    files: int
    version: str


def new_backup(home: Path, clock: Clock) -> Path:
    """Make the folder of backups, and return the path of a new one, which is not there yet."""
    folder = home / FOLDER
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise ConsoleError(
            tr("the backup cannot be written ({strerror})", strerror=error.strerror),
            where=str(folder),
            mend=tr("let this user write there, and see that the disk has room"),
            status=507,
        ) from error
    name = format_time(clock.now()).partition(".")[0].removesuffix("Z") + "Z"
    plain = name.replace("-", "").replace(":", "")
    taken = {each.name for each in folder.iterdir()}
    names = (plain if number == 0 else f"{plain}-{number}" for number in range(1000))
    return folder / next(each for each in names if each not in taken)


def list_backups(home: Path) -> list[Backup]:
    """The complete backups, the latest first; what cannot be read as one is left out."""
    found = []
    for folder in (home / FOLDER).glob("[0-9]*"):
        try:
            listed = folder / _LIST
            changed = listed.lstat().st_mtime_ns
            if _NAME.fullmatch(folder.name) and not folder.is_symlink():
                found.append(_read(folder, changed))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return sorted(found, key=lambda each: (-each.made_at, each.name))


def get_backup(home: Path, name: str) -> Backup:
    """A backup by its name; `ConsoleError` if there is none."""
    for each in list_backups(home):
        if each.name == name:
            return each
    raise ConsoleError(
        tr("there is no such backup"),
        where=name[:40],
        mend=tr("choose one of the list"),
        status=404,
    )


def delete_backup(home: Path, name: str) -> None:
    """Delete a backup; `ConsoleError` if there is none, or it cannot be deleted."""
    backup = get_backup(home, name)
    try:
        # Without its list it is no backup any more, also if the rest cannot be removed.
        (backup.path / _LIST).unlink()
        shutil.rmtree(backup.path)
    except OSError as error:
        raise ConsoleError(
            tr("the backup cannot be deleted ({strerror})", strerror=error.strerror),
            where=str(backup.path),
            status=500,
        ) from error


def archive(backup: Backup) -> Iterator[bytes]:
    """A backup as a tar archive, in pieces; its files lie in a folder that is called like it."""
    for file in sorted(backup.path.rglob("*")):
        if file.is_symlink() or not file.is_file():
            continue
        with file.open("rb") as opened:
            there = file.stat()
            entry = tarfile.TarInfo(f"{backup.name}/{file.relative_to(backup.path).as_posix()}")
            entry.size, entry.mtime, entry.mode = there.st_size, int(there.st_mtime), 0o600
            yield entry.tobuf(tarfile.PAX_FORMAT)
            left = entry.size
            while left and (part := opened.read(min(_CHUNK, left))):
                left -= len(part)
                yield part
            # A file of a complete backup does not change; were it cut off, the rest stays aligned.
            yield bytes(left + -entry.size % _BLOCK)
    yield bytes(2 * _BLOCK)


@lru_cache(maxsize=256)
def _read(folder: Path, _changed: int) -> Backup:
    told = json.loads((folder / _LIST).read_bytes())
    sizes = [each.stat().st_size for each in folder.rglob("*") if each.is_file()]
    return Backup(
        folder.name,
        folder,
        int(told["made"]) * 1000,
        sum(sizes),
        len(told["files"]),
        str(told["version"])[:40],
    )
