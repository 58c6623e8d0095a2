"""Publication of gold: versions side by side, and one name that says which of them stands.

A version is complete before it is named, and nothing in it changes afterwards. Readers hold the
version that they read, so that it is not swept away under them. Never builds a table.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from accord.kernel.files import sync_folder
from accord.pipeline.errors import PipelineError
from accord.pipeline.layout import Layout

KEPT: Final = 3
"""How many versions are kept, the published one included."""

_FACTS: Final = "version.json"
_NAME: Final = re.compile(r"[0-9]{8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Version:
    """A published version of gold.

    Attributes:
        name: Its number.
        path: The folder with one folder for each table.
        facts: What the run that published it had to say.
    """

    name: str
    path: Path
    facts: Mapping[str, Any]

    @property
    def tables(self) -> list[str]:
        """The names of its tables."""
        return sorted(each.name for each in self.path.iterdir() if each.is_dir())


def published(layout: Layout) -> Version | None:
    """The version that stands; None before the first.

    Raises:
        PipelineError: The file that names it, or the version itself, cannot be read.
    """
    name = _current(layout)
    while name is not None:
        path = layout.version(name)
        try:
            return Version(name, path, json.loads((path / _FACTS).read_bytes()))
        except (OSError, ValueError):
            later = _current(layout)
            if later == name:
                raise _unreadable(layout) from None
            name = later  # it was swept away while we looked
    return None


def _current(layout: Layout) -> str | None:
    try:
        name = layout.current.read_text("ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        raise _unreadable(layout) from None
    if not _NAME.fullmatch(name):
        raise _unreadable(layout)
    return name


def _unreadable(layout: Layout) -> PipelineError:
    return PipelineError(
        "what is published cannot be read",
        where=str(layout.current),
        mend="remove that file and run again",
    )


@contextmanager
def reading(layout: Layout) -> Iterator[Version]:
    """Read the version that stands, and keep it while the block runs.

    Raises:
        PipelineError: Nothing is published.
    """
    while True:
        version = published(layout)
        if version is None:
            raise PipelineError(
                "nothing is published yet", where=str(layout.root), mend="run `accord pipeline run`"
            )
        with contextlib.suppress(FileNotFoundError), (version.path / _FACTS).open("rb") as facts:
            fcntl.flock(facts, fcntl.LOCK_SH)
            # It may have been swept away between our look and our lock.
            if (version.path / _FACTS).exists():
                yield version
                return


def draft(layout: Layout) -> str:
    """Make room for the next version and return its name; what a killed run left is removed."""
    standing = published(layout)
    least = int(standing.name) if standing else 0
    layout.gold.mkdir(parents=True, exist_ok=True)
    for name in _versions(layout):
        if int(name) > least:
            shutil.rmtree(layout.version(name))
    name = f"{least + 1:08}"
    layout.version(name).mkdir()
    return name


def publish(layout: Layout, name: str, facts: Mapping[str, Any]) -> Version:
    """Let a finished draft stand, for all readers at once."""
    path = layout.version(name)
    (path / _FACTS).write_text(json.dumps(facts))
    for file in path.rglob("*"):
        _bring_to_disk(file)
    sync_folder(path)
    sync_folder(layout.gold)
    new = layout.current.with_name("_CURRENT")
    new.write_text(f"{name}\n", "ascii")
    _bring_to_disk(new)
    new.replace(layout.current)
    sync_folder(layout.gold)
    return Version(name, path, facts)


def sweep(layout: Layout) -> list[str]:
    """Remove versions that are neither recent nor read by anybody, and return their names."""
    standing = published(layout)
    least = int(standing.name) if standing else 0
    removed = []
    for name in _versions(layout):
        if int(name) <= least - KEPT and _is_unread(layout.version(name)):
            shutil.rmtree(layout.version(name))
            removed.append(name)
    return removed


def _versions(layout: Layout) -> list[str]:
    return sorted(each.name for each in layout.gold.iterdir() if _NAME.fullmatch(each.name))


def _is_unread(version: Path) -> bool:
    try:
        with (version / _FACTS).open("rb") as facts:
            fcntl.flock(facts, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Gone before the lock is, so that a reader who waits finds nothing.
            (version / _FACTS).unlink()
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return True
    return True


def _bring_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
