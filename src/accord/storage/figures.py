"""What every store of this process has written, as plain numbers.

Owns the counts, by the place of the store: planes open and close stores, several at the same place,
and what a store has done must not be forgotten with one opening of it. It shows nothing itself.
"""

import os
from contextlib import suppress
from pathlib import Path

from accord.metering import Durations
from accord.storage.place import Place, locate
from accord.storage.schema import Schema


class Figures:
    """The counts of one store.

    Attributes:
        commits: How long transactions took from their beginning to the disk.
        units: How many units of work were committed.
        failures: How many units the store could not, or would not, keep.
    """

    __slots__ = ("_file", "commits", "failures", "units")

    def __init__(self, file: Path | None) -> None:
        self.commits = Durations()
        self.units = 0
        self.failures = 0
        self._file = file

    @property
    def size(self) -> int | None:
        """The bytes of its files; None where a server keeps it."""
        if self._file is None:
            return None
        total = 0
        for suffix in ("", "-wal"):
            with suppress(FileNotFoundError):
                total += self._file.with_name(self._file.name + suffix).stat().st_size
        return total


_known: dict[str, Figures] = {}


def figures_at(place: Place) -> Figures:
    """The counts of the store at a place, whoever opens it."""
    return _known.setdefault(place.label, Figures(place.file))


def figures(where: str | os.PathLike[str], schema: Schema) -> Figures | None:
    """The counts of a store; None where this process never opened it."""
    return _known.get(locate(where, schema).label)
