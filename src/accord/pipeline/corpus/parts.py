"""Parts of a built corpus: Parquet files that appear whole, one row for each document.

Owns the name and the columns of a part. A name says how many documents are inside and the digest of
the bytes, and nobody ever changes a part: whoever dies while writing leaves a draft that no one
reads. A row has everything that a node keeps of a document, its bytes included.
"""

import os
import re
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from blake3 import blake3

from accord.capabilities.rag.building import Built
from accord.capabilities.rag.chunks import Chunk
from accord.kernel.files import sync_folder
from accord.pipeline.errors import PipelineError

_NAME: Final = re.compile(r"(?P<documents>[0-9]{6})-(?P<digest>[0-9a-f]{32})\.parquet", re.ASCII)
_DRAFT: Final = "_draft-"

_CHUNK: Final = pa.struct(
    [
        pa.field("chunk_id", pa.string(), nullable=False),
        pa.field("page", pa.int32()),
        pa.field("heading", pa.string()),
        pa.field("text", pa.string(), nullable=False),
    ]
)
SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("doc_cid", pa.string(), nullable=False),
        pa.field("recipe", pa.string(), nullable=False),
        pa.field("title", pa.string()),
        pa.field("language", pa.string()),
        pa.field("stemming", pa.string(), nullable=False),
        pa.field("size_bytes", pa.int64(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
        pa.field("metadata", pa.string(), nullable=False),
        pa.field("model", pa.string()),
        pa.field("chunks", pa.list_(_CHUNK), nullable=False),
        pa.field("terms", pa.binary(), nullable=False),
        pa.field("vectors", pa.binary()),
        pa.field("content", pa.binary(), nullable=False),
    ]
)
"""The columns of a part."""

# What a row says of a document as it stands.
_PLAIN: Final = (
    *("doc_cid", "recipe", "title", "language", "stemming", "size_bytes", "tokens", "metadata"),
    *("model", "terms", "vectors"),
)


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """A document that was made ready.

    Attributes:
        key: See `plan.Order`.
        name: What its source calls it.
        content: Its bytes.
    """

    key: str
    name: str
    built: Built
    content: bytes

    @property
    def weight(self) -> int:
        """About how many bytes it takes."""
        return self.built.weight + len(self.content)


def write(folder: Path, made: Sequence[Made]) -> str:
    """Write a part, bring it to the disk, and return its name."""
    return _write(folder, pa.Table.from_pylist([_row(each) for each in made], SCHEMA))


def read(folder: Path, name: str) -> Iterator[Made]:
    """The documents of a part.

    Raises:
        PipelineError: It is gone or damaged.
    """
    table = _table(folder, name)
    for batch in table.to_batches(max_chunksize=1):
        (row,) = batch.to_pylist()
        yield _made(row)


def names(folder: Path) -> list[str]:
    """The parts in a folder, whether or not they are whole."""
    try:
        return sorted(each for each in os.listdir(folder) if _NAME.fullmatch(each))  # noqa: PTH208
    except FileNotFoundError:
        return []


def documents(name: str) -> int:
    """How many documents a part has."""
    match = _NAME.fullmatch(name)
    return int(match["documents"]) if match else 0


def keys(folder: Path, name: str) -> dict[str, int]:
    """The keys of a part's documents, and how many chunks each has.

    Raises:
        PipelineError: It is gone or damaged.
    """
    table = _table(folder, name, ["key", "chunks.list.element.chunk_id"])
    counts = pc.list_value_length(table.column("chunks")).to_pylist()
    return dict(zip(table.column("key").to_pylist(), counts, strict=True))


def keep_only(folder: Path, name: str, wanted: Collection[str]) -> str:
    """A part with only the wanted documents of one, beside it; its name."""
    table = _table(folder, name)
    is_wanted = pa.array([key in wanted for key in table.column("key").to_pylist()], pa.bool_())
    return _write(folder, table.filter(is_wanted))


def sweep(folder: Path, standing: Collection[str]) -> None:
    """Remove drafts, and parts that are not among the standing ones."""
    for name in os.listdir(folder) if folder.is_dir() else ():  # noqa: PTH208
        if name.startswith(_DRAFT) or (_NAME.fullmatch(name) and name not in standing):
            (folder / name).unlink(missing_ok=True)


def _write(folder: Path, table: Any) -> str:
    draft = folder / f"{_DRAFT}{secrets.token_hex(8)}"
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", use_dictionary=["recipe", "model", "stemming"])
    data = sink.getvalue()
    name = f"{table.num_rows:06}-{blake3(data).hexdigest(length=16)}.parquet"
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(folder / name)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(folder)
    return name


def _table(folder: Path, name: str, columns: Sequence[str] | None = None) -> Any:
    match = _NAME.fullmatch(name)
    try:
        data = (folder / name).read_bytes()
        if match is None or blake3(data).hexdigest(length=16) != match["digest"]:
            raise _damaged(folder, name)
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            if not file.schema_arrow.equals(SCHEMA) or file.metadata.num_rows != documents(name):
                raise _damaged(folder, name)
            return file.read(columns)
    except (OSError, pa.ArrowException) as error:
        raise _damaged(folder, name) from error


def _damaged(folder: Path, name: str) -> PipelineError:
    return PipelineError(
        "a part of the corpus is gone or damaged",
        where=str(folder / name),
        mend="build the corpus again; only what is missing is made",
    )


def _row(made: Made) -> dict[str, Any]:
    built = made.built
    chunks = [
        {"chunk_id": c.chunk_id, "page": c.page, "heading": c.heading, "text": c.text}
        for c in built.chunks
    ]
    told = {name: getattr(built, name) for name in _PLAIN}
    return {
        "key": made.key,
        "name": made.name,
        **told,
        "chunks": chunks,
        "content": made.content,
    }


def _made(row: dict[str, Any]) -> Made:
    chunks = tuple(
        Chunk(c["chunk_id"], position, c["text"], c["page"], c["heading"], ())
        for position, c in enumerate(row["chunks"])
    )
    told = {name: row[name] for name in _PLAIN}
    return Made(row["key"], row["name"], Built(chunks=chunks, **told), row["content"])
