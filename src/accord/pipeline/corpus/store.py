"""A built corpus on disk: immutable parts, and the catalogue that lists them.

A part is a Parquet file with one row for each document, which has everything that a node stores of
it, its bytes included. Its name holds the number of documents and the digest of the bytes.
Interrupted writes leave a draft, which is never read. The catalogue is replaced by one rename after
all its parts are on disk; parts that it does not list do not belong to the corpus.
"""

import os
import re
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from blake3 import blake3

from accord.capabilities.rag.prepared import PreparedDocument
from accord.capabilities.rag.rules.chunks import Chunk
from accord.kernel import canonical
from accord.kernel.files import sync_folder
from accord.pipeline.corpus.plan import RECIPE, RefusedDocument
from accord.pipeline.errors import PipelineError

FORM: Final = 1
"""The format version of a built corpus."""

_MOST_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The contents of a built corpus."""

    corpus: str
    recipe: str  # how documents were cut and embedded
    documents: int
    chunks: int
    parts: tuple[str, ...]  # the names of the files
    refused: tuple[RefusedDocument, ...]


def parts_folder(out: Path) -> Path:
    """The folder of the parts of a built corpus."""
    return out / "parts"


def publish(out: Path, catalogue: Catalogue) -> None:
    """Replace the catalogue, for all readers at once."""
    new = out / "_corpus.json"
    with new.open("wb") as file:
        file.write(canonical.encode({"form": FORM, **asdict(catalogue)}))
        file.flush()
        os.fsync(file.fileno())
    new.replace(_catalogue_path(out))
    sync_folder(out)


def published(out: Path) -> Catalogue | None:
    """The catalogue; None before the first; raise `PipelineError` if it is damaged."""
    try:
        with _catalogue_path(out).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PipelineError(
            f"the corpus cannot be read: {error.strerror}", where=str(_catalogue_path(out))
        ) from error
    return _read_catalogue(out, data)


def usable(out: Path) -> Catalogue:
    """The catalogue of a corpus that this node can load; raise `PipelineError` if there is none."""
    catalogue = published(out)
    if catalogue is None:
        raise PipelineError(
            "there is no built corpus",
            where=str(out),
            mend="build one with `accord pipeline corpus build`",
        )
    if catalogue.recipe != RECIPE:
        raise PipelineError(
            f"the corpus was made by {catalogue.recipe[:80]!r}, and this node uses {RECIPE!r}",
            where=str(out),
            mend="build it again with this release",
        )
    return catalogue


def _catalogue_path(out: Path) -> Path:
    return out / "corpus.json"


def _read_catalogue(out: Path, data: bytes) -> Catalogue:
    try:
        fields: dict[str, Any] = canonical.decode(data, max_bytes=_MOST_BYTES)
        if fields["form"] != FORM:
            raise PipelineError(
                f"the corpus is of form {str(fields['form'])[:20]}, and {FORM} is known here",
                where=str(out),
                mend="use the release that built it, or build it again",
            )
        return Catalogue(
            str(fields["corpus"]),
            str(fields["recipe"]),
            int(fields["documents"]),
            int(fields["chunks"]),
            tuple(map(str, fields["parts"])),
            tuple(
                RefusedDocument(str(each["name"]), str(each["reason"]))
                for each in fields["refused"]
            ),
        )
    except (canonical.CanonicalError, KeyError, TypeError, ValueError) as error:
        raise PipelineError(
            "the catalogue of the corpus is damaged",
            where=str(_catalogue_path(out)),
            mend="build the corpus again; only what is missing is made",
        ) from error


_PART: Final = re.compile(r"(?P<documents>[0-9]{6})-(?P<digest>[0-9a-f]{32})\.parquet", re.ASCII)
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

# Columns that are copied from the document.
_PLAIN: Final = (
    *("doc_cid", "recipe", "title", "language", "stemming", "size_bytes", "tokens", "metadata"),
    *("model", "terms", "vectors"),
)


@dataclass(frozen=True, slots=True, eq=False)
class BuiltDocument:
    """A document ready to be loaded."""

    key: str  # see `plan.DocumentOrder`
    name: str  # its name in the source
    built: PreparedDocument
    content: bytes

    @property
    def weight(self) -> int:
        """Its approximate size in bytes."""
        return self.built.weight + len(self.content)


def write_part(folder: Path, made: Sequence[BuiltDocument]) -> str:
    """Write and fsync a part, and return its name."""
    return _write(folder, pa.Table.from_pylist([_row(each) for each in made], SCHEMA))


def read_part(folder: Path, name: str) -> Iterator[BuiltDocument]:
    """The documents of a part; raise `PipelineError` if it is missing or damaged."""
    table = _table(folder, name)
    for batch in table.to_batches(max_chunksize=1):
        (row,) = batch.to_pylist()
        yield _made(row)


def part_names(folder: Path) -> list[str]:
    """The parts in a folder, damaged or not."""
    try:
        return sorted(each for each in os.listdir(folder) if _PART.fullmatch(each))  # noqa: PTH208
    except FileNotFoundError:
        return []


def part_documents(name: str) -> int:
    """The number of documents in a part."""
    match = _PART.fullmatch(name)
    return int(match["documents"]) if match else 0


def document_keys(folder: Path, name: str) -> dict[str, int]:
    """The number of chunks by document key; raises as `read_part`."""
    table = _table(folder, name, ["key", "chunks.list.element.chunk_id"])
    counts = pc.list_value_length(table.column("chunks")).to_pylist()
    return dict(zip(table.column("key").to_pylist(), counts, strict=True))


def keep_only(folder: Path, name: str, wanted: Collection[str]) -> str:
    """Write a part with only the wanted documents of another, and return its name."""
    table = _table(folder, name)
    is_wanted = pa.array([key in wanted for key in table.column("key").to_pylist()], pa.bool_())
    return _write(folder, table.filter(is_wanted))


def sweep(folder: Path, listed: Collection[str]) -> None:
    """Remove drafts, and parts that are not listed."""
    for name in os.listdir(folder) if folder.is_dir() else ():  # noqa: PTH208
        if name.startswith(_DRAFT) or (_PART.fullmatch(name) and name not in listed):
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
    match = _PART.fullmatch(name)
    if match is None:
        raise _damaged(folder, name)  # a catalogue may name anything, also paths elsewhere
    try:
        data = (folder / name).read_bytes()
    except OSError as error:
        raise _damaged(folder, name) from error
    if blake3(data).hexdigest(length=16) != match["digest"]:
        raise _damaged(folder, name)
    try:
        with pq.ParquetFile(pa.BufferReader(data)) as file:
            is_whole = file.schema_arrow.equals(SCHEMA)
            table = file.read(columns)
        table.validate(full=True)
    except Exception as error:  # the library raises all sorts of errors for damaged bytes
        raise _damaged(folder, name) from error
    wanted = {each.partition(".")[0] for each in columns or SCHEMA.names}
    if (
        not is_whole
        or not wanted <= {*table.column_names}
        or table.num_rows != part_documents(name)
    ):
        raise _damaged(folder, name)
    return table


def _damaged(folder: Path, name: str) -> PipelineError:
    return PipelineError(
        "a part of the corpus is gone or damaged",
        where=str(folder / name),
        mend="build the corpus again; only what is missing is made",
    )


def _row(made: BuiltDocument) -> dict[str, Any]:
    built = made.built
    chunks = [
        {"chunk_id": c.chunk_id, "page": c.page, "heading": c.heading, "text": c.text}
        for c in built.chunks
    ]
    values = {name: getattr(built, name) for name in _PLAIN}
    return {
        "key": made.key,
        "name": made.name,
        **values,
        "chunks": chunks,
        "content": made.content,
    }


def _made(row: dict[str, Any]) -> BuiltDocument:
    chunks = tuple(
        Chunk(c["chunk_id"], position, c["text"], c["page"], c["heading"], ())
        for position, c in enumerate(row["chunks"])
    )
    values = {name: row[name] for name in _PLAIN}
    return BuiltDocument(
        row["key"], row["name"], PreparedDocument(chunks=chunks, **values), row["content"]
    )
