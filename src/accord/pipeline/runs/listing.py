"""The published tables as their readers see them: contracts with schemas, and a database of views.

The database is a DuckDB file that names the files of one version; other programs read the tables by
it and need not know where they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accord.pipeline.catalog import TableContract, contracts, expectations_of, meaning_of
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout
from accord.pipeline.runs.reader import open_reader, table_files
from accord.pipeline.runs.versions import open_published


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A published table with its contract."""

    name: str
    version: str
    owner: str
    meaning: str
    rows: int
    key: Sequence[str]
    columns: Sequence[Mapping[str, str]]  # name, type and meaning
    expectations: Sequence[Mapping[str, str]]  # what is expected, and act
    files: Sequence[str]

    def payload(self) -> dict[str, Any]:
        """The table as JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def published_tables(layout: Layout, version: str | None = None) -> list[PublishedTable]:
    """The tables of a version, by default the published one; raises `PipelineError`."""
    known, expected = contracts(), expectations_of(layout)
    found = []
    with (
        open_published(layout, version) as held,
        open_reader(layout, held.name, layers=False) as reader,
    ):
        for name in held.tables:
            contract = known.get(name, TableContract(name, "unknown"))
            quoted = '"' + name.replace('"', '""') + '"'
            ((rows,),) = reader.rows(f"SELECT count(*) FROM {quoted}")  # noqa: S608
            columns = reader.rows(f"SELECT column_name, column_type FROM (DESCRIBE {quoted})")  # noqa: S608
            found.append(
                PublishedTable(
                    name,
                    held.name,
                    contract.owner,
                    meaning_of(name),
                    rows,
                    list(contract.key),
                    [
                        {"name": column, "type": kind, "meaning": contract.meaning_of(column)}
                        for column, kind in columns
                    ],
                    [
                        {"expected": each.sentence, "act": each.act}
                        for each in expected
                        if each.table == name
                    ],
                    [str(each) for each in table_files(held, name)],
                )
            )
    return found


def write_database(layout: Layout, target: Path, version: str | None = None) -> None:
    """Write a DuckDB file with a view for each table of a version; an older file is replaced."""
    import duckdb

    draft = target.with_name(f".{target.name}.draft")
    try:
        draft.unlink(missing_ok=True)
        with duckdb.connect(str(draft)) as connection:
            for table in published_tables(layout, version):
                _write_view(connection, table)
        draft.replace(target)
    except (OSError, duckdb.Error) as error:
        raise PipelineError(
            f"the database cannot be written: {str(error).splitlines()[0][:300]}",
            where=str(target),
            mend="name a file in a folder that this user may write",
        ) from None
    finally:
        draft.unlink(missing_ok=True)


def _write_view(connection: Any, table: PublishedTable) -> None:
    name = '"' + table.name.replace('"', '""') + '"'
    connection.read_parquet(list(table.files)).create_view(table.name)
    connection.execute(f"COMMENT ON VIEW {name} IS {_text(table.meaning)}")
    for column in table.columns:
        quoted = '"' + column["name"].replace('"', '""') + '"'
        connection.execute(f"COMMENT ON COLUMN {name}.{quoted} IS {_text(column['meaning'])}")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
