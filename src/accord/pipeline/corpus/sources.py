"""Sources of documents: the files of a folder, or the rows of a Parquet table.

Documents are read on executors, which must see the folder under the same path.
"""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from accord.capabilities.rag.documents import MAX_BYTES
from accord.pipeline.errors import PipelineError
from accord.pipeline.tables.table import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NAME: Final = "name"
CONTENT: Final = "content"
"""The columns of a frame of documents."""

TOO_LONG: Final = f"the document has more than {MAX_BYTES} bytes; cut it into parts"


@dataclass(frozen=True, slots=True)
class FolderSource:
    """All regular files below a folder; links are not followed."""

    path: Path

    def names(self) -> Iterator[str]:
        """The files, by their path in the folder."""
        for folder, folders, files in os.walk(self.path, onerror=_unreadable):
            folders.sort()
            for file in sorted(files):
                path = Path(folder, file)
                if stat.S_ISREG(path.lstat().st_mode):
                    yield path.relative_to(self.path).as_posix()

    def bytes_of(self, batch: Any) -> Iterator[bytes | str]:
        """The contents of the files named in an Arrow batch; a string is the error of one."""
        return map(self._read, batch.column(NAME).to_pylist())

    def _read(self, name: str) -> bytes | str:
        try:
            descriptor = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
                data = file.read(MAX_BYTES + 1)
        except OSError as error:
            return f"the file cannot be read ({error.strerror})"
        return TOO_LONG if len(data) > MAX_BYTES else data


@dataclass(frozen=True, slots=True)
class TableSource:
    """The rows of a Parquet table, a file or a folder of files."""

    path: Path
    names: str = NAME  # the column with the names of documents
    contents: str = CONTENT  # the column with their bytes or text

    def frame(self, spark: "SparkSession") -> "DataFrame":
        """The documents as `name` and `content`; raise `PipelineError` if a column is missing."""
        from pyspark.errors import AnalysisException

        try:
            rows = spark.read.parquet(str(self.path))
        except AnalysisException:
            raise PipelineError("this is no Parquet table", where=str(self.path)) from None
        kinds = dict(rows.dtypes)
        for option, column, allowed in (
            ("--names", self.names, ("string",)),
            ("--contents", self.contents, ("binary", "string")),
        ):
            if kinds.get(column) not in allowed:
                raise PipelineError(
                    f"the table has no column {column!r} of {' or '.join(allowed)}",
                    where=str(self.path),
                    mend=f"name it with {option}; there are {', '.join(kinds)}",
                )
        return rows.select(
            F.coalesce(_column(self.names), F.lit("")).alias(NAME),
            _column(self.contents).cast("binary").alias(CONTENT),
        )

    def bytes_of(self, batch: Any) -> Iterator[bytes | str]:
        """The contents of the rows of an Arrow batch; a string is the error of one."""
        return (_given(data.as_py()) for data in batch.column(CONTENT))


Source: TypeAlias = FolderSource | TableSource


def source_of(path: Path, names: str = NAME, contents: str = CONTENT) -> Source:
    """A table if the path is Parquet, the files if it is a folder; else raise `PipelineError`."""
    if path.is_file() and path.suffix == ".parquet":
        return TableSource(path, names, contents)
    if not path.is_dir():
        raise PipelineError(
            "there is no folder and no Parquet table", where=str(path), mend="name one that is here"
        )
    # What Spark leaves beside its data begins with one of these.
    shown = [each.name for each in path.iterdir() if each.name[0] not in "._"]
    if shown and all(name.endswith(".parquet") or "=" in name for name in shown):
        return TableSource(path, names, contents)
    return FolderSource(path)


def _column(name: str) -> "Column":
    """A column whose name may hold dots."""
    return F.col("`" + name.replace("`", "``") + "`")


def _given(data: bytes | None) -> bytes | str:
    if data is None:
        return "the row has no document"
    return TOO_LONG if len(data) > MAX_BYTES else data


def _unreadable(error: OSError) -> None:
    raise PipelineError(
        f"the folder cannot be read ({error.strerror})", where=str(error.filename)
    ) from error
