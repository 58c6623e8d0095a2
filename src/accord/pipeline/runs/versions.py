"""Versions of gold: built in drafts, published by one rename, queried, removed when unread.

A version is complete before it is named and never changes afterwards. A table whose inputs have not
changed is linked from the previous version. Readers lock the version that they read. For SQL every
table of the published version is a view; only queries are accepted.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accord import __version__
from accord.kernel.files import sync_folder
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import LAYERS, Layout, table_format
from accord.pipeline.runs.queries import StoredTables
from accord.pipeline.tables.layers import TERMS, StreamAccount, quarantine
from accord.pipeline.tables.table import GoldTable, downstream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT_VERSIONS: Final = 3
"""How many versions are kept, the published one included."""

_FACTS: Final = "version.json"
_NAME: Final = re.compile(r"[0-9]{8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class GoldVersion:
    """A published version of gold."""

    name: str
    path: Path  # the folder with one folder for each table
    facts: Mapping[str, Any]  # the record of the run that published it

    @property
    def tables(self) -> list[str]:
        """The names of its tables."""
        return sorted(each.name for each in self.path.iterdir() if each.is_dir())


def published(layout: Layout) -> GoldVersion | None:
    """The published version; None before the first; raise `PipelineError` if it cannot be read."""
    name = _current(layout)
    while name is not None:
        path = layout.version(name)
        try:
            return GoldVersion(name, path, json.loads((path / _FACTS).read_bytes()))
        except (OSError, ValueError):
            later = _current(layout)
            if later == name:
                raise _unreadable(layout) from None
            name = later  # it was removed meanwhile
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
        "the published version cannot be read",
        where=str(layout.current),
        mend="remove that file and run again",
    )


@contextmanager
def open_published(layout: Layout, name: str | None = None) -> Iterator[GoldVersion]:
    """A version, by default the current one, which is not removed while the block runs.

    Raises PipelineError if there is none, or none of that name any more.
    """
    while True:
        version = published(layout) if name is None else _find(layout, name)
        if version is None:
            raise PipelineError(
                "nothing is published yet", where=str(layout.root), mend="run `accord pipeline run`"
            )
        with contextlib.suppress(FileNotFoundError), (version.path / _FACTS).open("rb") as facts:
            fcntl.flock(facts, fcntl.LOCK_SH)
            # It may have been removed before it was locked.
            if (version.path / _FACTS).exists():
                yield version
                return


def kept_versions(layout: Layout) -> list[str]:
    """The names of all versions that can be read, the published one last."""
    current = published(layout)
    if current is None:
        return []
    return [each for each in sorted(_versions(layout)) if int(each) <= int(current.name)]


def _find(layout: Layout, name: str) -> GoldVersion:
    kept = kept_versions(layout)
    if name.isascii() and name.isdecimal() and (name := f"{int(name):08}") in kept:
        path = layout.version(name)
        with contextlib.suppress(OSError, ValueError):
            return GoldVersion(name, path, json.loads((path / _FACTS).read_bytes()))
    raise PipelineError(
        f"there is no version {name[:40]!r}",
        where=str(layout.gold),
        mend=f"name one of {', '.join(kept)}" if kept else "run `accord pipeline run`",
    )


def create_draft(layout: Layout) -> str:
    """Create the folder of the next version and return its name; removes drafts of killed runs."""
    current = published(layout)
    least = int(current.name) if current else 0
    layout.gold.mkdir(parents=True, exist_ok=True)
    for name in _versions(layout):
        if int(name) > least:
            shutil.rmtree(layout.version(name))
    name = f"{least + 1:08}"
    layout.version(name).mkdir()
    return name


def publish(layout: Layout, name: str, facts: Mapping[str, Any]) -> GoldVersion:
    """Publish a finished draft, for all readers at once."""
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
    return GoldVersion(name, path, facts)


def remove_old(layout: Layout) -> list[str]:
    """Remove versions that are neither recent nor being read, and return their names."""
    current = published(layout)
    least = int(current.name) if current else 0
    removed = []
    for name in _versions(layout):
        if int(name) <= least - KEPT_VERSIONS and _is_unread(layout.version(name)):
            shutil.rmtree(layout.version(name))
            removed.append(name)
    return removed


def _versions(layout: Layout) -> list[str]:
    return sorted(each.name for each in layout.gold.iterdir() if _NAME.fullmatch(each.name))


def _is_unread(version: Path) -> bool:
    try:
        with (version / _FACTS).open("rb") as facts:
            fcntl.flock(facts, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Removed before the lock is released, so that a waiting reader finds nothing.
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


def build_tables(
    tables: StoredTables,
    definitions: Sequence[GoldTable],
    stale: Collection[str],
    previous: GoldVersion | None,
    progress: Callable[[str], None],
) -> list[str]:
    """Fill a draft with every table, and return the names of those that were built.

    The version of `tables` is the draft. `definitions` are in the order of their dependencies;
    those that are not `stale` are linked from `previous`.
    """
    built = []
    for table in definitions:
        progress(table.name)
        target = tables.version / table.name
        if previous is not None and table.name not in stale:
            _carry(previous.path / table.name, target)
        else:
            frame = table.build(tables)
            frame.write.format(tables.table_format).save(str(target))
            built.append(table.name)
    return built


def write_accounting(tables: StoredTables, accounts: Sequence[StreamAccount]) -> None:
    """Write the accounts as the table `accounting`."""
    kinds = ", ".join(f"{term} BIGINT" for term in TERMS)
    rows = [astuple(account) for account in accounts]
    frame = tables.spark.createDataFrame(rows, f"stream STRING, {kinds}").coalesce(1)
    frame.write.format(tables.table_format).save(str(tables.version / "accounting"))


def stale_tables(
    definitions: Sequence[GoldTable],
    previous: GoldVersion | None,
    facts: Mapping[str, Any],
    refreshed: Collection[str] = (),
) -> frozenset[str]:
    """The tables to build, by what changed since the published version.

    Layers are append-only, so a stream with the same counts holds the same records, unless a layer
    was reset.
    """
    same = ("accord", "layers")
    if previous is None or any(previous.facts.get(name) != facts[name] for name in same):
        return frozenset(table.name for table in definitions)
    before, now = _counts(previous.facts), _counts(facts)
    changed = {stream for stream, counts in now.items() if before.get(stream) != counts}
    missing = {table.name for table in definitions} - set(previous.tables)
    return downstream(definitions, {*changed, *missing, *refreshed})


def is_current(
    layout: Layout,
    current: GoldVersion | None,
    landed: Mapping[str, int],
    definitions: Sequence[GoldTable],
) -> bool:
    """Whether the published version has all that landed, in the tables of this Accord."""
    if current is None or current.facts.get("accord") != __version__:
        return False
    try:
        same_layers = current.facts.get("layers") == layer_ids(layout)
    except (OSError, ValueError, KeyError):
        return False
    accounts = current.facts.get("accounts", ())
    known = {each["stream"]: each["landed"] for each in accounts if each["landed"]}
    names = {table.name for table in definitions}
    return same_layers and known == dict(landed) and names <= set(current.tables)


def layer_ids(layout: Layout) -> dict[str, str]:
    """The id in the checkpoint of each layer, which changes when the layer is reset."""
    ids = {}
    for layer in LAYERS:
        metadata = json.loads((layout.checkpoint(layer) / "metadata").read_bytes())
        ids[layer] = str(metadata["id"])
    return ids


def _counts(facts: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    accounts = facts.get("accounts", ())
    return {each["stream"]: (each["accepted"], each["quarantined"]) for each in accounts}


def _carry(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        # A file system without links.
        shutil.copy2(source, target)


QUARANTINED: Final = "quarantined"
"""The view of refused records with their bodies."""

_QUERY: Final = re.compile(r"\s*(select|with|from|values|table)\b", re.IGNORECASE)
_LOOK: Final = re.compile(r"\s*(show|describe|desc)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The rows of a query; `more` tells whether the limit cut them."""

    version: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    more: bool


def run_query(
    layout: Layout, spark: "SparkSession", question: str, *, limit: int, version: str | None = None
) -> QueryResult:
    """Run a query by Spark on a version; raise `PipelineError` if it is no query or fails."""
    require_query(question)
    with open_published(layout, version) as found:
        form = table_format(layout)
        for table in found.tables:
            frame = spark.read.format(form).load(str(found.path / table))
            frame.createOrReplaceTempView(table)
        if version is None:
            stored = StoredTables(spark, layout, form, found.path)
            for layer in LAYERS:
                stored.layer(layer).createOrReplaceTempView(layer)
            quarantine(stored.layer("checked")).createOrReplaceTempView(QUARANTINED)
        answer = spark.sql(_statement(question))
        rows = answer.limit(limit + 1).collect()
        shown = [[plain_value(value) for value in row] for row in rows[:limit]]
        return QueryResult(found.name, answer.columns, shown, len(rows) > limit)


def require_query(question: str) -> None:
    """Raise `PipelineError` unless a text is a query."""
    if not _QUERY.match(question) and not _LOOK.match(question):
        raise PipelineError(
            "only queries can be run on the published tables",
            mend="begin with SELECT, WITH, SHOW TABLES or DESCRIBE",
        )


def _statement(question: str) -> str:
    """Wrapped in brackets, Spark's grammar accepts nothing but a query."""
    bare = question.strip().rstrip(";")
    return f"SELECT * FROM (\n{bare}\n)" if _QUERY.match(bare) else bare  # noqa: S608 - the user's own


def plain_value(value: Any) -> Any:
    """A value of Spark as JSON: bytes in hexadecimal, times as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if hasattr(value, "asDict"):
        return {name: plain_value(each) for name, each in value.asDict().items()}
    if isinstance(value, Mapping):
        return {str(name): plain_value(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [plain_value(each) for each in value]
    return str(value)
