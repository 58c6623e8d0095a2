"""A segment is what its name and footer say, or it is refused with a sentence."""

import io
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from accord.pipeline.errors import PipelineError
from accord.pipeline.landing import Landing, Segment, pack, parse_name, read_records, verify
from accord.pipeline.rules import COLUMNS, STREAMS
from accord.storage import JournalEntry

STREAM = "relay.inbound"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def entries(count: int = 3, first: int = 1, stream: str = STREAM) -> list[JournalEntry]:
    return [
        JournalEntry(stream, f"id{n}", 1_700_000_000_000 + n, "node", f'{{"n":{n}}}', n)
        for n in range(first, first + count)
    ]


def changed(**metadata: str) -> tuple[Segment, bytes]:
    """A segment whose footer says something else, under a name that fits its bytes."""
    segment, data = pack("store", entries())
    table = pq.read_table(io.BytesIO(data))
    told = {
        **table.schema.metadata,
        **{f"accord.{k}".encode(): each.encode() for k, each in metadata.items()},
    }
    return rewritten(segment, table.replace_schema_metadata(told))


def rewritten(segment: Segment, table: Any) -> tuple[Segment, bytes]:
    made = io.BytesIO()
    pq.write_table(table, made)
    data = made.getvalue()
    digest = blake3(data).hexdigest()[:16]
    return Segment(segment.stream, segment.store, segment.first, segment.last, digest), data


@given(
    st.lists(st.tuples(texts, st.integers(0, 2**62), texts, texts), min_size=1, max_size=20),
    st.integers(1, 10**15),
    st.sampled_from(STREAMS),
)
def test_records_come_back_exactly(
    rows: list[tuple[str, int, str, str]], first: int, stream: str
) -> None:
    given_ = [
        JournalEntry(stream, name, at, source, body, first + place)
        for place, (name, at, source, body) in enumerate(rows)
    ]
    segment, data = pack("store-1", given_)
    assert parse_name(stream, segment.name) == segment
    assert read_records(data) == given_
    footer = verify(segment, data)
    assert (footer.rows, footer.first, footer.last) == (len(rows), first, segment.last)
    assert footer.newest == max(at for _, at, _, _ in rows)
    assert (footer.last_id, footer.last_at) == (rows[-1][0], rows[-1][1])


def test_the_file_is_compressed_and_has_the_landed_columns_in_order() -> None:
    _, data = pack("store", entries())
    file = pq.ParquetFile(io.BytesIO(data))
    assert tuple(file.schema_arrow.names) == COLUMNS
    assert file.metadata.num_row_groups == 1
    assert {file.metadata.row_group(0).column(n).compression for n in range(6)} == {"ZSTD"}


def test_the_same_records_are_the_same_bytes() -> None:
    assert pack("store", entries()) == pack("store", entries())


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [*entries(2), *entries(1, first=4)],
        [*entries(2), *entries(1, first=3, stream="relay.outbound")],
        entries(first=0),
        entries(first=10**16 - 1),
        entries(stream="relay.control"),
    ],
)
def test_what_does_not_belong_together_is_no_segment(wrong: list[JournalEntry]) -> None:
    with pytest.raises(PipelineError):
        pack("store", wrong)


@pytest.mark.parametrize("store", ["", "-x", "A", "a/b", "..", "a" * 81, "a\n"])
def test_a_store_has_a_name_that_a_file_can_have(store: str) -> None:
    with pytest.raises(PipelineError):
        pack(store, entries())


@given(st.text(max_size=80))
def test_other_files_are_no_segments(name: str) -> None:
    assert parse_name(STREAM, name) is None


def test_a_name_that_says_nonsense_is_no_segment() -> None:
    segment, _ = pack("store", entries())
    assert parse_name("relay.control", segment.name) is None
    assert parse_name(STREAM, "_" + segment.name) is None
    assert parse_name(STREAM, segment.name.replace("-0000000000000001-", f"-{9:016}-")) is None


@pytest.mark.parametrize("keep", [0, 3, 4, 100, -1])
def test_a_truncated_segment_is_refused(keep: int) -> None:
    segment, data = pack("store", entries())
    with pytest.raises(PipelineError, match="its digest does not match its name"):
        verify(segment, data[:keep])
    cut = Segment(STREAM, "store", 1, 3, blake3(data[:keep]).hexdigest()[:16])
    with pytest.raises(PipelineError, match="cut off or damaged"):
        verify(cut, data[:keep])


def test_every_flipped_byte_is_noticed() -> None:
    segment, data = pack("store", entries())
    for place in range(0, len(data), 7):
        broken = bytearray(data)
        broken[place] ^= 0x40
        with pytest.raises(PipelineError):
            verify(segment, bytes(broken))


def test_a_segment_from_the_future_is_refused_in_a_sentence() -> None:
    with pytest.raises(
        PipelineError, match=r"has form 2, .* knows up to 1; upgrade Accord"
    ) as told:
        verify(*changed(format="2"))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("column", COLUMNS)
def test_a_missing_column_is_named(column: str) -> None:
    segment, data = pack("store", entries())
    table = pq.read_table(io.BytesIO(data)).drop_columns([column])
    with pytest.raises(PipelineError, match=f"lacks the column {column}"):
        verify(*rewritten(segment, table))


def test_a_column_of_another_type_is_named() -> None:
    segment, data = pack("store", entries())
    table = pq.read_table(io.BytesIO(data))
    place = table.schema.get_field_index("seq")
    table = table.set_column(place, "seq", table.column("seq").cast(pa.string()))
    with pytest.raises(PipelineError, match="has string in the column seq, not int64"):
        verify(*rewritten(segment, table))


@pytest.mark.parametrize(
    "metadata",
    [{"first": "2"}, {"last": "9"}, {"first": "one"}, {"store": "other"}, {"stream": "bus.calls"}],
)
def test_a_footer_that_says_something_else_is_refused(metadata: dict[str, str]) -> None:
    with pytest.raises(PipelineError):
        verify(*changed(**metadata))


def test_a_place_of_an_unknown_kind_is_refused_without_its_password() -> None:
    with pytest.raises(PipelineError) as error:
        Landing("carrier-pigeon://me:hunter2@host/path")
    assert "hunter2" not in str(error.value)
    assert "carrier-pigeon://host/path" in str(error.value)


def test_a_place_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "landing").write_text("here is a file")
    landing = Landing(tmp_path / "landing")
    with pytest.raises(PipelineError, match="cannot be written"):
        landing.put(*pack("store", entries()))
    with pytest.raises(PipelineError, match="cannot be listed"):
        landing.segments(STREAM)


@pytest.mark.parametrize("library", ["pyarrow", "pyarrow.parquet"])
def test_a_missing_extra_is_one_sentence(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(PipelineError, match=r"pip install 'accord\[pipeline\]'"):
        pack("store", entries())


def test_a_landing_that_is_not_there_is_empty(tmp_path: Path) -> None:
    landing = Landing(tmp_path / "landing")
    assert landing.segments(STREAM) == []
    assert landing.landed() == dict.fromkeys(STREAMS, 0)
    assert not (tmp_path / "landing").exists()


@pytest.mark.parametrize("named", ["bus.calls", "no.such", None])
def test_a_record_of_another_unknown_or_no_stream_spoils_its_segment_by_name(
    named: str | None,
) -> None:
    segment, data = pack("store", entries())
    table = pq.read_table(io.BytesIO(data))
    names = [STREAM, named, STREAM]
    table = table.set_column(0, "stream", pa.array(names, pa.string()))
    changed_segment, bytes_of_it = rewritten(segment, table)
    with pytest.raises(PipelineError, match=changed_segment.name):
        verify(changed_segment, bytes_of_it)
