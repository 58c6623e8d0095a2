"""Closed segments: Parquet files that appear whole under their final name, and are read strictly.

Owns the name of a segment, its columns, what its footer says, and where it is put: a local folder
or any place that fsspec knows. A name says which records of which store are inside, and the digest
of the bytes; nobody ever changes a segment. Never decides what lands.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from accord.pipeline.errors import PipelineError, missing_extra
from accord.pipeline.streams import COLUMNS, STREAMS

if TYPE_CHECKING:
    from accord.storage import Entry

FORMAT: Final = 1
"""The version of the form of segments that this code writes and knows."""

_NAME: Final = re.compile(
    r"(?P<store>[a-z0-9][a-z0-9._-]{0,79})-(?P<first>[0-9]{16})-(?P<last>[0-9]{16})"
    r"-(?P<digest>[0-9a-f]{16})\.parquet",
    re.ASCII,
)
_STORE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}", re.ASCII)
_META: Final = "accord."
_BIGGEST: Final = 10**16 - 1


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment as its name tells it.

    Attributes:
        store: The store whose journal it came from.
        first: The `seq` of its first record.
        last: The `seq` of its last; all between are inside.
        digest: The first 16 hexadecimal digits of the BLAKE3 of the file's bytes.
    """

    stream: str
    store: str
    first: int
    last: int
    digest: str

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.store}-{self.first:016}-{self.last:016}-{self.digest}.parquet"

    @property
    def rows(self) -> int:
        """How many records are inside."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Footer:
    """What the end of a segment says of it.

    Attributes:
        newest: The latest `recorded_at` in it, in milliseconds.
        last_id: The id of its last record.
        last_at: When that was recorded.
    """

    stream: str
    store: str
    first: int
    last: int
    rows: int
    newest: int
    last_id: str
    last_at: int


def parse_name(stream: str, name: str) -> Segment | None:
    """Read the name of a segment; None where it is not one."""
    found = _NAME.fullmatch(name)
    if found is None or stream not in STREAMS:
        return None
    first, last = int(found["first"]), int(found["last"])
    if not 1 <= first <= last:
        return None
    return Segment(stream, found["store"], first, last, found["digest"])


def is_store(name: str) -> bool:
    """Whether a store may be called so in the names of segments."""
    return _STORE.fullmatch(name) is not None


def pack(store: str, entries: "Sequence[Entry]") -> tuple[Segment, bytes]:
    """Write records of one stream, numbered without a gap, as the bytes of a segment.

    The same records give the same bytes, as long as the Parquet library stays the same.

    Raises:
        PipelineError: There are none, or they do not follow each other.
    """
    pa, pq = _arrow()
    if not entries:
        raise PipelineError("a segment has at least one record")
    stream, first, last = entries[0].stream, entries[0].seq, entries[-1].seq
    follows = all(
        each.seq == first + place and each.stream == stream for place, each in enumerate(entries)
    )
    if not follows or first < 1 or last > _BIGGEST or not is_store(store) or stream not in STREAMS:
        raise PipelineError(
            "a segment holds records of one stream and store that follow each other",
            where=f"{store} {stream} {first}-{last}",
        )
    told = {
        "format": FORMAT,
        "stream": stream,
        "store": store,
        "first": first,
        "last": last,
        "newest": max(each.recorded_at for each in entries),
        "last_id": entries[-1].id,
        "last_at": entries[-1].recorded_at,
    }
    schema = columns().with_metadata({_META + key: str(value) for key, value in told.items()})
    arrays = {name: [getattr(each, name) for each in entries] for name in COLUMNS}
    table = pa.table(arrays, schema=schema)
    made = io.BytesIO()
    # Only these two repeat; a dictionary of the others would only be tried and given up.
    alike = ["stream", "source"]
    pq.write_table(
        table, made, compression="zstd", row_group_size=len(entries), use_dictionary=alike
    )
    data = made.getvalue()
    return Segment(stream, store, first, last, blake3(data).hexdigest()[:16]), data


def columns() -> Any:
    """The Arrow schema of a segment."""
    pa, _ = _arrow()
    kinds = {"seq": pa.int64(), "recorded_at": pa.int64()}
    return pa.schema([pa.field(name, kinds.get(name, pa.string()), False) for name in COLUMNS])


def read_footer(source: Any, name: str) -> Footer:
    """Read the end of a segment.

    Args:
        source: A path, or an open file.
        name: The segment's, for people.

    Raises:
        PipelineError: It is no segment, lacks a column, or is of a newer version of Accord.
    """
    pa, pq = _arrow()
    try:
        with pq.ParquetFile(source) as file:
            found, rows = file.schema_arrow, file.metadata.num_rows
            raw: dict[bytes, bytes] = file.metadata.metadata or {}
    except (pa.ArrowException, OSError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise _broken(f"is cut off or damaged ({reason})", name) from None
    told = {
        key.decode(errors="replace"): value.decode(errors="replace") for key, value in raw.items()
    }
    _check_version(told.get(f"{_META}format", ""), name)
    for field in columns():
        if found.get_field_index(field.name) < 0:
            raise _broken(f"lacks the column {field.name}", name)
        # Long texts are texts, too.
        seen = found.field(field.name).type
        if seen != field.type and (field.type, seen) != (pa.string(), pa.large_string()):
            raise _broken(f"has {seen} in the column {field.name}, not {field.type}", name)
    try:
        first, last, newest, last_at = (
            int(told[_META + key]) for key in ("first", "last", "newest", "last_at")
        )
        stream, store, last_id = (told[_META + key] for key in ("stream", "store", "last_id"))
    except (KeyError, ValueError):
        raise _broken("does not say what it holds", name) from None
    if rows != last - first + 1:
        raise _broken(f"holds {rows} records where {first} to {last} are told", name)
    return Footer(stream, store, first, last, rows, newest, last_id, last_at)


def _check_version(version: str, name: str) -> None:
    if version.isascii() and version.isdecimal() and int(version[:9]) > FORMAT:
        raise PipelineError(
            f"the segment has form {version[:9]}, and this version of Accord knows up to {FORMAT}",
            where=name,
            mend="upgrade Accord where the pipeline runs; the segment stays as it is",
        )


def verify(segment: Segment, data: bytes) -> Footer:
    """Prove that bytes are the segment that their name tells of.

    Raises:
        PipelineError: They are not.
    """
    if blake3(data).hexdigest()[:16] != segment.digest:
        raise _broken("is not what was written: its digest does not fit its name", segment.name)
    footer = read_footer(io.BytesIO(data), segment.name)
    told = (footer.stream, footer.store, footer.first, footer.last)
    if told != (segment.stream, segment.store, segment.first, segment.last):
        raise _broken("has the name of another", segment.name)
    return footer


def read_records(data: bytes) -> "list[Entry]":
    """The records of a segment that was verified."""
    from accord.storage import Entry

    _, pq = _arrow()
    table = pq.read_table(io.BytesIO(data), columns=list(COLUMNS))
    return [Entry(**row) for row in table.to_pylist()]


def _broken(what: str, name: str) -> PipelineError:
    return PipelineError(
        f"the segment {what}",
        where=name,
        mend="move it away; what its journal still holds is then exported anew",
    )


def _arrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise missing_extra() from None
    return pa, pq
