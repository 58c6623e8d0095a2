"""Small reads of published tables by DuckDB: no JVM starts, and an answer takes a moment.

Every gold table is a view. Of the published version there are also the layers, and the view
`quarantined` of refused records with their bodies. A query can read nothing outside the folder.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.errors import PipelineError, missing_extra
from accord.pipeline.folder import DEFAULT_FORMAT, LAYERS, Layout, layer_files, table_format
from accord.pipeline.runs.versions import (
    QUARANTINED,
    GoldVersion,
    QueryResult,
    open_published,
    plain_value,
    require_query,
)

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

MOST_SECONDS: Final = 3600.0
"""Seconds after which a query is interrupted unless its caller says otherwise."""

_SKIPPED: Final = 2048
_SETTINGS: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "TimeZone": "UTC",
}


def table_files(version: GoldVersion, table: str) -> list[Path]:
    """The Parquet files of a gold table in a version."""
    return version.files(table)


def layer_paths(layout: Layout, layer: str) -> list[Path]:
    """The Parquet files of a layer."""
    return sorted(layout.table(layer) / each for each in layer_files(layout, layer))


@dataclass(frozen=True)
class TableReader:
    """Tables that DuckDB reads."""

    connection: "duckdb.DuckDBPyConnection"
    version: str

    def rows(self, question: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a query of ours; raises `PipelineError` if a table is missing."""
        import duckdb

        try:
            return self.connection.execute(question, values).fetchall()
        except duckdb.Error as error:
            raise _failed(error) from None

    def ask(
        self, question: str, *, limit: int, seconds: float = MOST_SECONDS, skip: int = 0
    ) -> QueryResult:
        """Answer a user's query; raises `PipelineError` if it is none, fails, or takes longer.

        Args:
            skip: Rows at the beginning that are left out.
        """
        import duckdb

        interrupt = threading.Timer(seconds, self.connection.interrupt)
        interrupt.daemon = True
        interrupt.start()
        try:
            statements = self.connection.extract_statements(question)
            if [each.type for each in statements] != [duckdb.StatementType.SELECT]:
                require_query("")
            answer = self.connection.execute(statements[0])
            columns = [each[0] for each in answer.description or ()]
            while skip and (passed := answer.fetchmany(min(skip, _SKIPPED))):
                skip -= len(passed)
            found = answer.fetchmany(limit + 1)
        except duckdb.InterruptException:
            raise PipelineError(
                f"the query took more than {seconds:.0f} seconds and was ended",
                mend="ask for less, or allow more with --patience",
            ) from None
        except duckdb.Error as error:
            raise _failed(error) from None
        finally:
            interrupt.cancel()
        rows = [[plain_value(value) for value in row] for row in found[:limit]]
        return QueryResult(self.version, columns, rows, len(found) > limit)


def _failed(error: Exception) -> PipelineError:
    reason = " ".join(line.strip() for line in str(error).splitlines() if line.strip())
    return PipelineError(
        f"the query failed: {reason[:500]}",
        mend='it is DuckDB\'s SQL (columns like "at" are quoted; SHOW TABLES lists the tables); '
        "--spark asks in Spark's",
    )


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """What a reader inside a long-running process may use; nothing is spilled to disk."""

    memory: str = "512MB"
    threads: int = 1

    def apply(self, connection: "duckdb.DuckDBPyConnection") -> None:
        """Set the limits of a connection that is not locked yet."""
        connection.execute(f"SET memory_limit = {_quoted(self.memory)}")
        connection.execute(f"SET threads = {self.threads:d}")
        connection.execute("SET temp_directory = ''")


@contextmanager
def open_reader(
    layout: Layout,
    version: str | None = None,
    *,
    layers: bool = True,
    limits: ReaderLimits | None = None,
) -> Iterator[TableReader]:
    """Read a version, by default the published one with its layers, while the block runs.

    Raises PipelineError if there is no such version, or its format is not Parquet.
    """
    if table_format(layout) != DEFAULT_FORMAT:
        raise PipelineError(
            f"tables in the format {table_format(layout)} are read by Spark alone",
            where=str(layout.root),
            mend="ask with --spark",
        )
    with (
        open_published(layout, version) as found,
        read_version(layout, found, LAYERS if layers and version is None else (), limits) as reader,
    ):
        yield reader


@contextmanager
def read_version(
    layout: Layout,
    version: GoldVersion,
    layers: Sequence[str] = (),
    limits: ReaderLimits | None = None,
) -> Iterator[TableReader]:
    """Read a version that the caller holds, or a draft, and the named layers."""
    files = {table: table_files(version, table) for table in version.tables}
    files |= {layer: layer_paths(layout, layer) for layer in layers}
    with _connected() as connection:
        if limits is not None:
            limits.apply(connection)
        for name, paths in files.items():
            if paths:
                _create_view(connection, name, paths)
        if files.get("checked"):
            connection.table("checked").filter("rule IS NOT NULL").create_view(QUARANTINED)
        _confine(connection, layout.root)
        yield TableReader(connection, version.name)


@contextmanager
def given_tables(tables: "Mapping[str, pa.Table]") -> Iterator[TableReader]:
    """A reader of tables in memory, for tests and notebooks."""
    with _connected() as connection:
        for name, table in tables.items():
            connection.register(name, table)
        yield TableReader(connection, "given")


@contextmanager
def _connected() -> "Iterator[duckdb.DuckDBPyConnection]":
    try:
        import duckdb
    except ModuleNotFoundError:
        raise missing_extra() from None
    with duckdb.connect() as connection:
        for name, value in _SETTINGS.items():
            connection.execute(f"SET {name} = '{value}'")
        yield connection


def _create_view(connection: "duckdb.DuckDBPyConnection", name: str, files: Sequence[Path]) -> None:
    import duckdb

    listed = ", ".join(_quoted(str(each)) for each in files)
    # A layer has the stream in the names of its folders, and columns that later versions added.
    options = ", union_by_name = true, hive_types = {'stream': VARCHAR}" if name in LAYERS else ""
    try:
        connection.execute(
            f'CREATE VIEW "{name}" AS SELECT * FROM read_parquet([{listed}]{options})'  # noqa: S608
        )
    except duckdb.Error as error:
        raise PipelineError(
            f"the table {name} cannot be read: {str(error).splitlines()[0][:300]}",
            mend=f"run `accord pipeline refresh {name}`",
        ) from None


def _confine(connection: "duckdb.DuckDBPyConnection", folder: Path) -> None:
    connection.execute(f"SET allowed_directories = [{_quoted(str(folder.absolute()))}]")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
