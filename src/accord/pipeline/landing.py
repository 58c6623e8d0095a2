"""The landing: closed Parquet segments in a local folder or at any URL that fsspec knows.

A segment's name holds the store, the range of records and the digest of the bytes. It appears
whole or not at all and never changes. Names that begin with `_` are not segments. Spark reads only
admitted segments: each is verified once (digest, footer, columns) and linked or copied beside the
landing; a damaged one is left out, reported, and tried again next time.
"""

import contextlib
import io
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from blake3 import blake3

from accord.kernel.files import sync_folder, write_private
from accord.pipeline.errors import PipelineError, missing_extra
from accord.pipeline.folder import Layout
from accord.pipeline.rules.streams import COLUMNS, STREAMS

if TYPE_CHECKING:
    from accord.storage import JournalEntry

FORMAT: Final = 1
"""The format version of segments."""

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
    """A segment as its name describes it."""

    stream: str
    store: str  # the store whose journal it came from
    first: int  # the `seq` of its first record
    last: int  # the `seq` of its last record; all between are inside
    digest: str  # the first 16 hexadecimal digits of the BLAKE3 of the file's bytes

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.store}-{self.first:016}-{self.last:016}-{self.digest}.parquet"

    @property
    def rows(self) -> int:
        """The number of records."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Footer:
    """The metadata in the footer of a segment."""

    stream: str
    store: str
    first: int
    last: int
    rows: int
    newest: int  # the latest `recorded_at`, in milliseconds
    last_id: str
    last_at: int  # the `recorded_at` of the last record


def parse_name(stream: str, name: str) -> Segment | None:
    """Parse the name of a segment; None if it is not one."""
    found = _NAME.fullmatch(name)
    if found is None or stream not in STREAMS:
        return None
    first, last = int(found["first"]), int(found["last"])
    if not 1 <= first <= last:
        return None
    return Segment(stream, found["store"], first, last, found["digest"])


def is_store_name(name: str) -> bool:
    """Whether a store's name is valid in the names of segments."""
    return _STORE.fullmatch(name) is not None


def pack(store: str, entries: "Sequence[JournalEntry]") -> tuple[Segment, bytes]:
    """Write records of one stream as the bytes of a segment; raise `PipelineError` on a gap.

    The same records give the same bytes with the same Parquet library.
    """
    pa, pq = _arrow()
    if not entries:
        raise PipelineError("a segment has at least one record")
    stream, first, last = entries[0].stream, entries[0].seq, entries[-1].seq
    follows = all(
        each.seq == first + place and each.stream == stream for place, each in enumerate(entries)
    )
    if (
        not follows
        or first < 1
        or last > _BIGGEST
        or not is_store_name(store)
        or stream not in STREAMS
    ):
        raise PipelineError(
            "a segment holds records of one stream and store that follow each other",
            where=f"{store} {stream} {first}-{last}",
        )
    metadata = {
        "format": FORMAT,
        "stream": stream,
        "store": store,
        "first": first,
        "last": last,
        "newest": max(each.recorded_at for each in entries),
        "last_id": entries[-1].id,
        "last_at": entries[-1].recorded_at,
    }
    schema = segment_schema().with_metadata(
        {_META + key: str(value) for key, value in metadata.items()}
    )
    arrays = {name: [getattr(each, name) for each in entries] for name in COLUMNS}
    table = pa.table(arrays, schema=schema)
    made = io.BytesIO()
    # Only the values of these two columns repeat; others need no dictionary.
    alike = ["stream", "source"]
    pq.write_table(
        table, made, compression="zstd", row_group_size=len(entries), use_dictionary=alike
    )
    data = made.getvalue()
    return Segment(stream, store, first, last, blake3(data).hexdigest()[:16]), data


def segment_schema() -> Any:
    """The Arrow schema of a segment."""
    pa, _ = _arrow()
    kinds = {"seq": pa.int64(), "recorded_at": pa.int64()}
    return pa.schema([pa.field(name, kinds.get(name, pa.string()), False) for name in COLUMNS])


def read_footer(source: Any, name: str) -> Footer:
    """Read the footer of a segment from a path or an open file; `name` is for messages.

    Raises PipelineError if it is no segment, lacks a column, or is of a newer version of Accord.
    """
    pa, pq = _arrow()
    with _parsing(name), pq.ParquetFile(source) as file:
        found, rows = file.schema_arrow, file.metadata.num_rows
        raw: dict[bytes, bytes] = file.metadata.metadata or {}
    metadata = {
        key.decode(errors="replace"): value.decode(errors="replace") for key, value in raw.items()
    }
    _check_version(metadata.get(f"{_META}format", ""), name)
    for field in segment_schema():
        if found.get_field_index(field.name) < 0:
            raise _broken(f"lacks the column {field.name}", name)
        # Arrow has two types of text.
        seen = found.field(field.name).type
        if seen != field.type and (field.type, seen) != (pa.string(), pa.large_string()):
            raise _broken(f"has {seen} in the column {field.name}, not {field.type}", name)
    try:
        first, last, newest, last_at = (
            int(metadata[_META + key]) for key in ("first", "last", "newest", "last_at")
        )
        stream, store, last_id = (metadata[_META + key] for key in ("stream", "store", "last_id"))
    except (KeyError, ValueError):
        raise _broken("has no description of its content", name) from None
    if rows != last - first + 1:
        raise _broken(f"holds {rows} records where its footer names {first} to {last}", name)
    return Footer(stream, store, first, last, rows, newest, last_id, last_at)


def _check_version(version: str, name: str) -> None:
    if version.isascii() and version.isdecimal() and int(version[:9]) > FORMAT:
        raise PipelineError(
            f"the segment has form {version[:9]}, and this version of Accord knows up to {FORMAT}",
            where=name,
            mend="upgrade Accord where the pipeline runs; the segment stays as it is",
        )


def verify(segment: Segment, data: bytes) -> Footer:
    """Check digest, footer and all records of a segment; raise `PipelineError` on damage."""
    if blake3(data).hexdigest()[:16] != segment.digest:
        raise _broken("is not what was written: its digest does not match its name", segment.name)
    footer = check_footer(segment, read_footer(io.BytesIO(data), segment.name))
    _check_records(footer, data, segment.name)
    return footer


def check_footer(segment: Segment, footer: Footer) -> Footer:
    """Return a footer if it matches the segment's name; raise `PipelineError` otherwise."""
    found = (footer.stream, footer.store, footer.first, footer.last)
    if found != (segment.stream, segment.store, segment.first, segment.last):
        raise _broken("has the name of another segment", segment.name)
    return footer


def _check_records(footer: Footer, data: bytes, name: str) -> None:
    """Decode every page: the digest proves only that the bytes did not change."""
    _, pq = _arrow()
    with _parsing(name):
        table = pq.read_table(io.BytesIO(data), columns=list(COLUMNS))
        table.validate(full=True)
        holes = sum(column.null_count for column in table.columns)
        numbers = table["seq"].to_pylist()
        streams = set(table["stream"].unique().to_pylist())
        times = table["recorded_at"].to_pylist()
        last_id = table["id"][-1].as_py()
    if holes or numbers != list(range(footer.first, footer.last + 1)):
        raise _broken("lacks records that its name announces", name)
    if streams != {footer.stream}:
        raise _broken("holds records of another stream", name)
    if (last_id, times[-1], max(times)) != (footer.last_id, footer.last_at, footer.newest):
        raise _broken("does not hold the records that its footer announces", name)


def read_records(data: bytes) -> "list[JournalEntry]":
    """The records of a verified segment."""
    from accord.storage import JournalEntry

    _, pq = _arrow()
    table = pq.read_table(io.BytesIO(data), columns=list(COLUMNS))
    return [JournalEntry(**row) for row in table.to_pylist()]


@contextmanager
def _parsing(name: str) -> Iterator[None]:
    """Report whatever the Parquet library raises as a damaged segment (even `MemoryError`)."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - see above
        reason = str(error).partition("\n")[0][:200]
        raise _broken(f"is cut off or damaged ({reason})", name) from None


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


RETIRED: Final = "_retired"
"""The folder of empty files with the names of segments that retention removed."""

# Protocols with atomic puts; on others a file is renamed when it is complete.
_PUT_IS_ATOMIC: Final = frozenset(
    {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"}
)


class Landing:
    """A folder or URL of segments; raise `PipelineError` if the protocol is not supported."""

    def __init__(self, where: str | os.PathLike[str]) -> None:
        text = os.fspath(where)
        is_local = "://" not in text or text.startswith(("file://", "local://"))
        self.label = _shown(text)
        self._folder = (
            Path(text.partition("://")[2] if "://" in text else text) if is_local else None
        )
        if self._folder is None:
            self._fs, self._root = _filesystem(text, self.label)
            self._is_atomic = not _PUT_IS_ATOMIC.isdisjoint(_protocols(self._fs))

    def __str__(self) -> str:
        return self.label

    def segments(self, stream: str) -> list[Segment]:
        """The segments of a stream, by store and first record."""
        return self._named(stream, stream)

    def retired(self, stream: str) -> list[Segment]:
        """The segments of a stream that were removed by retention."""
        return self._named(stream, f"{RETIRED}/{stream}")

    def landed(self) -> dict[str, int]:
        """How many records ever landed, by stream."""
        return {
            stream: sum(each.rows for each in {*self.segments(stream), *self.retired(stream)})
            for stream in STREAMS
        }

    def put(self, segment: Segment, data: bytes) -> None:
        """Write a segment atomically and durably; raise `PipelineError` if it cannot be written."""
        with self._explained("the segment cannot be written", segment):
            if self._folder is not None:
                _publish(self._folder / segment.stream, segment.name, data)
            elif self._is_atomic:
                self._fs.pipe_file(f"{self._root}/{segment.stream}/{segment.name}", data)
            else:
                folder = f"{self._root}/{segment.stream}"
                self._fs.makedirs(folder, exist_ok=True)
                self._fs.pipe_file(f"{folder}/_{segment.name}", data)
                self._fs.mv(f"{folder}/_{segment.name}", f"{folder}/{segment.name}")

    def read(self, segment: Segment) -> bytes:
        """The bytes of a segment; raise `PipelineError` if it cannot be read."""
        with self._explained("the segment cannot be read", segment):
            if self._folder is not None:
                return (self._folder / segment.stream / segment.name).read_bytes()
            data: bytes = self._fs.cat_file(f"{self._root}/{segment.stream}/{segment.name}")
            return data

    def footer(self, segment: Segment) -> Footer:
        """Read the footer of a segment and nothing else.

        Raises PipelineError if it cannot be read, is no segment, or does not match its name.
        """
        with self._explained("the segment cannot be read", segment):
            if self._folder is not None:
                path = self._folder / segment.stream / segment.name
                return check_footer(segment, read_footer(path, segment.name))
            with self._fs.open(f"{self._root}/{segment.stream}/{segment.name}", "rb") as file:
                return check_footer(segment, read_footer(file, segment.name))

    def verify(self, segment: Segment) -> Footer:
        """Verify every byte of a segment; raise `PipelineError` if it is unreadable or damaged."""
        return verify(segment, self.read(segment))

    def retire(self, segment: Segment) -> None:
        """Delete a segment and record its name as retired."""
        with self._explained("the segment cannot be removed", segment):
            if self._folder is not None:
                _publish(self._folder / RETIRED / segment.stream, segment.name, b"")
                (self._folder / segment.stream / segment.name).unlink(missing_ok=True)
            else:
                self._fs.makedirs(f"{self._root}/{RETIRED}/{segment.stream}", exist_ok=True)
                self._fs.pipe_file(f"{self._root}/{RETIRED}/{segment.stream}/{segment.name}", b"")
                with suppress(FileNotFoundError):
                    self._fs.rm_file(f"{self._root}/{segment.stream}/{segment.name}")

    def sweep(self, stream: str, store: str) -> None:
        """Remove drafts that a killed exporter of this store left."""
        for name in self._names(stream):
            if name.startswith(f"_{store}-"):
                with self._explained("drafts cannot be removed"):
                    if self._folder is not None:
                        (self._folder / stream / name).unlink(missing_ok=True)
                    else:
                        self._fs.rm_file(f"{self._root}/{stream}/{name}")

    def _named(self, stream: str, folder: str) -> list[Segment]:
        found = (parse_name(stream, name) for name in self._names(folder))
        return sorted(
            (each for each in found if each is not None),
            key=lambda each: (each.store, each.first, each.last, each.digest),
        )

    def _names(self, folder: str) -> list[str]:
        with self._explained("the segments cannot be listed"):
            try:
                if self._folder is not None:
                    return [file.name for file in (self._folder / folder).iterdir()]
                # A cached listing would miss what others have put there.
                self._fs.invalidate_cache()
                listed = self._fs.ls(f"{self._root}/{folder}", detail=False)
            except FileNotFoundError:
                return []
            return [str(path).rstrip("/").rpartition("/")[2] for path in listed]

    @contextmanager
    def _explained(self, what: str, segment: Segment | None = None) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PipelineError(
                f"{what} ({error.strerror or type(error).__name__})",
                where=f"{self.label}/{segment.stream}/{segment.name}" if segment else self.label,
                mend="choose a place that exists, can be written and has space; "
                "what has landed is safe, and the next export goes on from there",
            ) from error


def _publish(folder: Path, name: str, data: bytes) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f"_{name}"
    draft.unlink(missing_ok=True)
    try:
        write_private(draft, data)
        draft.rename(folder / name)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(folder)


def _filesystem(url: str, label: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise missing_extra() from None
    try:
        if (found := _arrow_filesystem(url)) is not None:
            return found
        fs, path = url_to_fs(url)
    except (ImportError, ValueError, OSError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise PipelineError(
            f"segments cannot be put there ({reason})",
            where=label,
            mend="give a folder, or install the fsspec package for that kind of URL",
        ) from None
    return fs, str(path).rstrip("/")


# What pyarrow reaches without another package: the scheme of a URL, as pyarrow names it.
_OF_ARROW: Final = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
    "hdfs": "hdfs",
}


def _arrow_filesystem(url: str) -> tuple[Any, str] | None:
    """The file system of a URL by pyarrow, and the path in it; None if pyarrow has none.

    Keys come from the environment or the machine's role; another endpoint from AWS_ENDPOINT_URL or
    the query: s3://bucket/landing?endpoint_override=http://127.0.0.1:9000.
    """
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow import fs as arrow

    scheme, _, rest = url.partition("://")
    known = _OF_ARROW.get(scheme)
    if known is None:
        return None
    files, path = arrow.FileSystem.from_uri(f"{known}://{rest}")
    return ArrowFSWrapper(files), path.rstrip("/")


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _shown(text: str) -> str:
    """A URL without user and password."""
    scheme, found, rest = text.partition("://")
    if not found:
        return text
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


@dataclass(frozen=True, slots=True)
class DamagedSegment:
    """A segment that does not match its name and was left out."""

    stream: str
    segment: str
    reason: str


AdmissionProgress = Callable[[int, int], None]
"""Called with the number of segments that are done and of all."""


def admit(
    layout: Layout,
    landing: str | None = None,
    progress: AdmissionProgress = lambda _done, _total: None,
) -> tuple[list[Segment], list[DamagedSegment]]:
    """Admit what has landed since the last time; return the new segments and the damaged ones.

    `landing` is a folder or a URL; by default the landing in the pipeline's folder.
    """
    place = Landing(landing or layout.landing)
    local = Path(landing) if landing and "://" not in landing else layout.landing
    fresh = [
        segment
        for stream, known in admitted_names(layout).items()
        for segment in place.segments(stream)
        if segment.name not in known
    ]
    new, spoilt = [], []
    for done, segment in enumerate(fresh):
        progress(done, len(fresh))
        try:
            place.verify(segment)
        except PipelineError as error:
            spoilt.append(DamagedSegment(segment.stream, segment.name, error.what))
            continue
        source = None if landing and "://" in landing else local / segment.stream / segment.name
        try:
            _put(layout, segment, source, place)
        except OSError as error:
            raise PipelineError(
                f"a segment cannot be admitted: {error.strerror}",
                where=str(layout.admitted),
                mend="see that there is space, and run again",
            ) from error
        new.append(segment)
    _report(layout, spoilt)
    return new, spoilt


def admitted_names(layout: Layout) -> dict[str, set[str]]:
    """The names of the admitted segments, by stream, those included that were released."""
    return {
        stream: _names(layout.admitted / stream) | _names(layout.admitted / RETIRED / stream)
        for stream in STREAMS
    }


def admitted(layout: Layout) -> dict[str, int]:
    """The number of records in admitted segments, by stream."""
    counts: Counter[str] = Counter()
    for stream, names in admitted_names(layout).items():
        for name in names:
            segment = parse_name(stream, name)
            if segment is not None:
                counts[stream] += segment.rows
    return dict(counts)


def damaged_segments(layout: Layout) -> list[DamagedSegment]:
    """The segments that the last run left out."""
    try:
        return [DamagedSegment(**each) for each in json.loads(_spoilt(layout).read_bytes())]
    except FileNotFoundError:
        return []


def release_retired(layout: Layout, landing: str | None = None) -> int:
    """Delete the admitted files of segments that the landing has retired, and return how many.

    The caller has brought all that was admitted into the tables. An empty file under
    `admitted/_retired` keeps each name, so that the records still count as landed.
    """
    place = Landing(landing or layout.landing)
    released = 0
    for stream in STREAMS:
        here = _names(layout.admitted / stream)
        for segment in place.retired(stream) if here else ():
            if segment.name in here:
                kept = layout.admitted / RETIRED / stream
                kept.mkdir(parents=True, exist_ok=True)
                (kept / segment.name).touch()
                sync_folder(kept)
                (layout.admitted / stream / segment.name).unlink()
                released += 1
    return released


def forget_released(layout: Layout) -> None:
    """Count released segments no longer: the tables are made again, and without them."""
    shutil.rmtree(layout.admitted / RETIRED, ignore_errors=True)


def recheck_admitted(
    layout: Layout, progress: AdmissionProgress = lambda _done, _total: None
) -> list[DamagedSegment]:
    """Verify every admitted file again; what has changed since is removed and returned.

    The next admission takes it from the landing again, if it is whole there.
    """
    files = [
        (segment, layout.admitted / stream / name)
        for stream in STREAMS
        for name in sorted(_names(layout.admitted / stream))
        if (segment := parse_name(stream, name)) is not None
    ]
    changed = []
    for done, (segment, file) in enumerate(files):
        progress(done, len(files))
        try:
            verify(segment, file.read_bytes())
        except PipelineError as error:
            file.unlink()
            changed.append(DamagedSegment(segment.stream, segment.name, error.what))
    return changed


def _names(folder: Path) -> set[str]:
    try:
        # Faster than pathlib, and there may be very many.
        names = os.listdir(folder)  # noqa: PTH208
        return {name for name in names if name[0] not in "._"}
    except FileNotFoundError:
        return set()


def _put(layout: Layout, segment: Segment, source: Path | None, place: Landing) -> None:
    folder = layout.admitted / segment.stream
    folder.mkdir(parents=True, exist_ok=True)
    if source is not None:
        # Another file system, or one without links: the bytes are copied instead.
        with contextlib.suppress(OSError):
            os.link(source, folder / segment.name)
            return
    draft = folder / f"_{segment.name}"
    draft.write_bytes(place.read(segment))
    draft.rename(folder / segment.name)


def _report(layout: Layout, spoilt: list[DamagedSegment]) -> None:
    layout.runs.mkdir(parents=True, exist_ok=True)
    _spoilt(layout).write_text(json.dumps([asdict(each) for each in spoilt], indent=1))


def _spoilt(layout: Layout) -> Path:
    return layout.runs / "spoilt.json"
