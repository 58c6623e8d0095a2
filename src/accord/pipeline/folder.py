"""A pipeline's folder: its layout, lock, the files of its layers, relocation and table format.

On a cluster every worker must see the folder under the same path. The lock belongs to an open
file, which the JVM inherits: it is free when the last process that could still write has ended.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

from accord.kernel.files import sync_folder
from accord.pipeline.errors import PipelineError

LAYERS: Final = ("bronze", "checked", "silver")
"""The append-only tables, each made from the one before it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths in a pipeline's folder, whether or not they exist."""

    root: Path

    @property
    def landing(self) -> Path:
        """Segments as they arrive, a folder for each stream."""
        return self.root / "landing"

    @property
    def admitted(self) -> Path:
        """The verified segments, which Spark reads, a folder for each stream."""
        return self.root / "admitted"

    def table(self, layer: str) -> Path:
        """The files of an append-only table."""
        return self.root / "tables" / layer

    def checkpoint(self, layer: str) -> Path:
        """The checkpoint of the query that writes an append-only table."""
        return self.root / "checkpoints" / layer

    @property
    def gold(self) -> Path:
        """One folder for each version of gold."""
        return self.root / "gold"

    def version(self, name: str) -> Path:
        """The tables of one version of gold."""
        return self.gold / name

    @property
    def current(self) -> Path:
        """The file that names the published version of gold."""
        return self.gold / "CURRENT"

    @property
    def runs(self) -> Path:
        """The results of runs, and the logs of Spark."""
        return self.root / "runs"

    @property
    def spark_log(self) -> Path:
        """The output of the JVM."""
        return self.runs / "spark.log"

    @property
    def scratch(self) -> Path:
        """Temporary files of Spark."""
        return self.root / "scratch"

    @property
    def lock(self) -> Path:
        """The lock file of the folder."""
        return self.root / "pipeline.lock"

    @property
    def settings(self) -> Path:
        """The file that names the table format."""
        return self.root / "pipeline.json"


@contextmanager
def lock_folder(layout: Layout, doing: str) -> Iterator[int]:
    """Create the folder if it is missing, and lock it while the block runs.

    Yields the descriptor of the lock file; `doing` names the command to others that find it locked.
    Raises PipelineError if another process holds the lock, or the folder cannot be written.
    """
    try:
        layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise PipelineError(
            f"the pipeline's folder cannot be used: {error.strerror}",
            where=str(layout.root),
            mend="let this user write to it, or name another with --folder",
        ) from error
    with FileIO(descriptor, "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _refusal(layout, lock.read(1000)) from None
        lock.truncate()
        lock.write(json.dumps({"pid": os.getpid(), "doing": doing}).encode())
        yield descriptor


def lock_holder(layout: Layout) -> str | None:
    """The process that holds the lock, as a phrase; None if it is free."""
    try:
        with FileIO(layout.lock) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _who(lock.read(1000))
    except OSError:
        # Without a readable lock file nothing has run here.
        return None
    return None


def _refusal(layout: Layout, written: bytes) -> PipelineError:
    return PipelineError(
        f"{_who(written)} holds this pipeline",
        where=str(layout.root),
        mend="wait until it has ended; one run at a time changes the tables",
    )


def _who(written: bytes) -> str:
    try:
        holder = json.loads(written)
        pid, doing = int(holder["pid"]), str(holder["doing"])[:40]
    except (ValueError, KeyError, TypeError):
        return "another process"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return f"the Spark of process {pid} (`{doing}`), which has ended,"
    except PermissionError:
        pass  # a process of another user, which is running
    return f"process {pid} (`accord pipeline {doing}`)"


_SINK_LOG: Final = "_spark_metadata"


def layer_files(layout: Layout, layer: str) -> list[str]:
    """The files of an append-only table that the sink's log names, as paths in its folder.

    Others are of batches that never ended.
    """
    files: set[str] = set()
    for batch in _batches(layout.table(layer) / _SINK_LOG):
        for line in batch.read_text("utf-8").splitlines()[1:]:
            entry = json.loads(line)
            # The folder may have been moved since; the path below it is the same.
            path = unquote(urlsplit(entry["path"]).path)
            file = path.rpartition(f"/tables/{layer}/")[2]
            if entry["action"] == "add":
                files.add(file)
            else:
                files.discard(file)
    return sorted(files)


def _batches(log: Path) -> list[Path]:
    """The entries of a log in order; a compacted one replaces those up to it."""
    numbered = {
        int(each.name.partition(".")[0]): each
        for each in sorted(log.glob("[0-9]*"))
        if re.fullmatch(r"[0-9]+(\.compact)?", each.name)
    }
    compact = [number for number, each in numbered.items() if each.suffix]
    return [numbered[number] for number in sorted(numbered) if number >= max(compact, default=0)]


# Greedy: a parent folder may be called `tables`, too.
_NAMED: Final = re.compile(
    rf'("path":"file:(?://)?)/[^"\n]*(/(?:admitted|tables/(?:{"|".join(LAYERS)}))/[^"\n]*")'
)
# Characters that Java does not encode in a path; nor does it encode those beyond ASCII.
_PLAIN: Final = "/:@&=+$,;_-!.~'()*"


def has_moved(layout: Layout) -> bool:
    """Whether the path of the folder differs from the recorded one, or none was recorded."""
    try:
        return _note(layout).read_text("utf-8") != _place(layout)
    except FileNotFoundError:
        return any(_logs(layout))


def relocate(layout: Layout) -> None:
    """Write the present path into Spark's logs; the caller holds the lock."""
    if has_moved(layout):
        for log in _logs(layout):
            _rename(log, _encoded(_place(layout)))
    layout.runs.mkdir(parents=True, exist_ok=True)
    _replace(_note(layout), _place(layout))


def _logs(layout: Layout) -> Iterator[Path]:
    for layer in LAYERS:
        folders = [layout.table(layer) / _SINK_LOG]
        folders += (layout.checkpoint(layer) / "sources").glob("*/")
        for folder in folders:
            yield from (each for each in folder.glob("[0-9]*") if each.is_file())


def _rename(log: Path, place: str) -> None:
    text = log.read_text("utf-8")
    renamed = _NAMED.sub(lambda named: f"{named[1]}{place}{named[2]}", text)
    if renamed != text:
        # Its checksum file is of the old text; Spark accepts a file without one.
        log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
        _replace(log, renamed)


def _replace(file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}.draft")
    with draft.open("w", encoding="utf-8", newline="") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    draft.replace(file)
    sync_folder(file.parent)


def _note(layout: Layout) -> Path:
    return layout.runs / "place"


def _place(layout: Layout) -> str:
    return str(layout.root.absolute())


def _encoded(place: str) -> str:
    return "".join(each if ord(each) > 127 else quote(each, safe=_PLAIN) for each in place)


FORMATS: Final = ("parquet", "delta", "iceberg")
"""Only Parquet is tested; the others need their jars."""

DEFAULT_FORMAT: Final = "parquet"


def initialise(layout: Layout, chosen: str = DEFAULT_FORMAT) -> bool:
    """Create a folder with a table format; False if it exists, raise if its format differs."""
    if chosen not in FORMATS:
        raise PipelineError(
            f"there is no table format {chosen!r}", mend=f"choose one of {', '.join(FORMATS)}"
        )
    if layout.settings.exists():
        if (found := table_format(layout)) != chosen:
            raise PipelineError(
                f"the tables are in the format {found}",
                where=str(layout.root),
                mend="name another folder; tables cannot change their format",
            )
        return False
    try:
        for place in (layout.landing, layout.runs):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        layout.settings.write_text(json.dumps({"form": 1, "table_format": chosen}) + "\n")
    except OSError as error:
        raise PipelineError(
            f"the pipeline's folder cannot be made: {error.strerror}", where=str(layout.root)
        ) from error
    return True


def table_format(layout: Layout) -> str:
    """The format of the folder's tables; raise `PipelineError` if its settings are damaged."""
    try:
        settings = json.loads(layout.settings.read_bytes())
        found = settings["table_format"]
    except FileNotFoundError:
        return DEFAULT_FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if found not in FORMATS:
        raise PipelineError(
            "the file names no known table format",
            where=str(layout.settings),
            mend=f'write {{"form": 1, "table_format": "{DEFAULT_FORMAT}"}} into it',
        )
    return str(found)
