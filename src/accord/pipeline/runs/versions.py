"""Versions of gold: built in drafts, published by one small file, queried, removed when unread.

A version is a file that names the files of each table, and never changes once it is named. Its run
wrote some of them; the others, of tables or parts that did not change, are of earlier versions and
are proven by their digests before they are named again. Readers lock the version that they read.
For SQL every table of the published version is a view; only queries are accepted.
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

from blake3 import blake3

from accord import __version__
from accord.kernel.files import sync_folder
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import LAYERS, Layout, table_format
from accord.pipeline.tables.table import (
    BUCKET,
    Append,
    GoldTable,
    Merge,
    Touched,
    bucket_of,
    downstream,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from accord.pipeline.tables.layers import NewTables, StoredTables, StreamAccount

KEPT_VERSIONS: Final = 3
"""How many versions are kept, the published one included."""

_FACTS: Final = "version.json"
_TABLES: Final = "files"
_NAME: Final = re.compile(r"[0-9]{8}", re.ASCII)


@dataclass(frozen=True, slots=True)
class GoldVersion:
    """A published version of gold."""

    name: str
    path: Path  # the folder with what its run wrote, one folder for each table
    facts: Mapping[str, Any]  # the record of the run that published it

    @property
    def tables(self) -> list[str]:
        """The names of its tables."""
        if (contents := self.facts.get(_TABLES)) is not None:
            return sorted(contents)
        return sorted(each.name for each in self.path.iterdir() if each.is_dir())

    def files(self, table: str) -> list[Path]:
        """The files of a table: in the folder of this version, and of earlier ones."""
        if self.facts.get(_TABLES) is None:  # as versions were written before they named files
            return sorted((self.path / table).rglob("*.parquet"))
        return [self.path.parent / each["path"] for each in self.facts[_TABLES].get(table, ())]

    def damaged(self, table: str) -> bool:
        """Whether a file of a table is missing, or not what was written."""
        for each in self.facts.get(_TABLES, {}).get(table, ()):
            try:
                if _file_facts(self.path.parent / each["path"], self.path.parent) != each:
                    return True
            except OSError:
                return True
        return False


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
    layout.gold.mkdir(parents=True, exist_ok=True)
    for name in drafts(layout, current):
        shutil.rmtree(layout.version(name))
    name = f"{int(current.name) + 1 if current else 1:08}"
    layout.version(name).mkdir()
    return name


def drafts(layout: Layout, current: GoldVersion | None) -> list[str]:
    """The folders of versions that no run has published."""
    least = int(current.name) if current else 0
    return [name for name in _versions(layout) if int(name) > least]


def publish(
    layout: Layout,
    name: str,
    facts: Mapping[str, Any],
    files: "Mapping[str, Sequence[Path]] | None" = None,
) -> GoldVersion:
    """Publish a finished draft, for all readers at once.

    `files` are those of each table, also of earlier versions, unless `facts` has their `contents`
    already; by default what the draft has.
    """
    path = layout.version(name)
    if files is not None or _TABLES not in facts:
        facts = {**facts, _TABLES: contents(layout, files or _written(path))}
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


def contents(
    layout: Layout, files: "Mapping[str, Sequence[Path]]"
) -> dict[str, list[dict[str, Any]]]:
    """The files of each table with their sizes and digests, as a version names them."""
    return {
        table: [_file_facts(each, layout.gold) for each in found] for table, found in files.items()
    }


def _written(draft: Path) -> dict[str, list[Path]]:
    folders = sorted(each for each in draft.iterdir() if each.is_dir())
    return {each.name: sorted(each.rglob("*.parquet")) for each in folders}


def _file_facts(file: Path, gold: Path) -> dict[str, Any]:
    data = file.read_bytes()
    return {
        "path": file.relative_to(gold).as_posix(),
        "bytes": len(data),
        "digest": blake3(data).hexdigest(),
    }


def remove_old(layout: Layout, keep: int = KEPT_VERSIONS) -> list[str]:
    """Remove versions that are neither among the last `keep` nor being read; return their names.

    Of their files, those stay that a later version names.
    """
    current = published(layout)
    least = int(current.name) if current else 0
    names = _versions(layout)
    old = [name for name in names if int(name) <= least - keep]
    removed = [name for name in old if _is_unread(layout.version(name))]
    named: set[Path] = set()
    for name in set(names) - set(removed):
        with contextlib.suppress(FileNotFoundError):
            path = layout.version(name)
            version = GoldVersion(name, path, json.loads((path / _FACTS).read_bytes()))
            named.update(file for table in version.tables for file in version.files(table))
    for name in removed:
        _remove_unnamed(layout.version(name), named)
    return removed


def _remove_unnamed(folder: Path, named: Collection[Path]) -> None:
    """Remove the files of a folder that no version names, and then the folders that are empty."""
    for each in sorted(folder.rglob("*"), reverse=True):
        if each.is_dir():
            with contextlib.suppress(OSError):  # it is not empty
                each.rmdir()
        elif each not in named:
            each.unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


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


@dataclass(frozen=True, slots=True)
class BuiltTables:
    """The names of the tables that a run built, and of those that follow from what is new only."""

    built: Sequence[str]
    followed: Sequence[str]


def build_tables(
    tables: "StoredTables",
    definitions: Sequence[GoldTable],
    stale: Mapping[str, bool],
    previous: GoldVersion | None,
    new: "NewTables | None",
    progress: Callable[[str], None],
) -> BuiltTables:
    """Fill a draft with every table.

    The version of `tables` is the draft. `definitions` are in the order of their dependencies. Of
    the `stale` ones those that are true are built from everything, the others from what is new;
    of all others the files of `previous` are named again.
    """
    built, followed = [], []
    for table in definitions:
        progress(table.name)
        if previous is not None and table.name not in stale:
            tables.files[table.name] = previous.files(table.name)
            continue
        built.append(table.name)
        is_small = len(previous.files(table.name)) < MOST_FILES if previous is not None else False
        if previous is not None and new is not None and not stale[table.name] and is_small:
            found = _follow(tables, table, previous.files(table.name), new)
            if found is not None:
                tables.files[table.name] = found
                followed.append(table.name)
                continue
        tables.files[table.name] = _write(tables, table, table.build(tables))
    return BuiltTables(built, followed)


MOST_FILES: Final = 256
"""A table in so many files is built from everything, which writes it in few."""


def _follow(
    tables: "StoredTables", table: GoldTable, before: Sequence[Path], new: "NewTables"
) -> list[Path] | None:
    """The files of a table that follows from what is new; None if it must be built whole."""
    from accord.pipeline.tables.layers import WithinTables

    way = table.follows
    if isinstance(way, Append):
        if way.unless(tables):
            return None
        return _with_rows([*before, *_write(tables, table, table.build(new))])
    if isinstance(way, Merge):
        old = tables.read(before)
        rows = way.merge(old.unionByName(table.build(new)))
        return _write(tables, table, rows)
    if isinstance(way, Touched):
        buckets = way.buckets(new)
        if any(bucket_of(each) is None and _has_rows(each) for each in before):
            return None  # written before its rows lay in buckets
        within = WithinTables(tables, way, buckets)
        kept = [each for each in before if bucket_of(each) not in buckets]
        return _with_rows([*kept, *_write(tables, table, table.build(within))])
    return None


def _with_rows(files: Sequence[Path]) -> list[Path]:
    """The files that hold rows; of none that does, one, for its columns."""
    return [each for each in files if _has_rows(each)] or [*files[-1:]]


def _has_rows(file: Path) -> bool:
    from pyarrow import parquet

    return bool(parquet.read_metadata(file).num_rows)


def _write(tables: "StoredTables", table: GoldTable, frame: "DataFrame") -> list[Path]:
    """Write rows into the draft, and return the files that hold any, or the first empty one."""
    target = tables.version / table.name
    if isinstance(table.follows, Touched):
        bucketed = frame.withColumn(BUCKET, table.follows.bucket_of_row())
        bucketed.write.format(tables.table_format).partitionBy(BUCKET).save(str(target))
    else:
        frame.write.format(tables.table_format).save(str(target))
    files = sorted(target.rglob("*.parquet"))
    if not files:  # of partitions without rows nothing is written, not even the columns
        frame.limit(0).coalesce(1).write.format(tables.table_format).mode("append").save(
            str(target)
        )
        files = sorted(target.rglob("*.parquet"))
    return files


def write_accounting(tables: "StoredTables", accounts: "Sequence[StreamAccount]") -> None:
    """Write the accounts as the table `accounting`."""
    from accord.pipeline.tables.layers import TERMS

    kinds = ", ".join(f"{term} BIGINT" for term in TERMS)
    rows = [astuple(account) for account in accounts]
    frame = tables.spark.createDataFrame(rows, f"stream STRING, {kinds}").coalesce(1)
    tables.files[_ACCOUNTING] = _write(tables, GoldTable(_ACCOUNTING, lambda _: frame), frame)


_ACCOUNTING: Final = "accounting"


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
    return downstream(definitions, {*changed, *_missing(definitions, previous), *refreshed})


def _missing(definitions: Sequence[GoldTable], previous: GoldVersion) -> set[str]:
    return {table.name for table in definitions} - set(previous.tables)


def whole_tables(
    definitions: Sequence[GoldTable], previous: GoldVersion | None, refreshed: Collection[str]
) -> frozenset[str]:
    """The tables that are built from everything, whatever is new.

    That is what is asked for, missing or damaged, and all that is made of it.
    """
    if previous is None:
        return frozenset(table.name for table in definitions)
    damaged = {name for name in previous.tables if previous.damaged(name)}
    return downstream(definitions, {*_missing(definitions, previous), *refreshed, *damaged})


def is_current(
    layout: Layout,
    current: GoldVersion | None,
    landed: Mapping[str, int],
    definitions: Sequence[GoldTable] = (),
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
    from accord.pipeline.tables.layers import quarantine

    require_query(question)
    with open_published(layout, version) as found:
        tables = published_tables(layout, spark, found)
        for table in found.tables:
            tables.gold(table).createOrReplaceTempView(table)
        if version is None:
            for layer in LAYERS:
                tables.layer(layer).createOrReplaceTempView(layer)
            quarantine(tables.layer("checked")).createOrReplaceTempView(QUARANTINED)
        answer = spark.sql(_statement(question))
        rows = answer.limit(limit + 1).collect()
        shown = [[plain_value(value) for value in row] for row in rows[:limit]]
        return QueryResult(found.name, answer.columns, shown, len(rows) > limit)


def published_tables(layout: Layout, spark: "SparkSession", version: GoldVersion) -> "StoredTables":
    """The tables of a published version."""
    from accord.pipeline.tables.layers import StoredTables

    files: dict[str, Sequence[Path]] = {name: version.files(name) for name in version.tables}
    return StoredTables(spark, layout, table_format(layout), version.path, files)


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
