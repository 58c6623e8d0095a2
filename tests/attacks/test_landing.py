"""Border: files of the pipeline that were damaged and carry a name that fits their bytes."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3
from sqlalchemy import MetaData

from accord.capabilities.rag.prepared import PreparedDocument
from accord.capabilities.rag.rules.chunks import Chunk
from accord.pipeline.corpus import store as corpus_store
from accord.pipeline.errors import PipelineError
from accord.pipeline.exporter import ExportSource, Retention, export, prune
from accord.pipeline.landing import Landing, Segment, pack, read_footer, read_records, verify
from accord.storage import JournalEntry, JournalRecord, Schema, Store, journal, open_store

STREAM = "bus.calls"
STORE = "plane-0a1b2c3d"
ROWS = 5


def record(number: int) -> JournalRecord:
    return JournalRecord(
        STREAM, f"id-{number}", 1_700_000_000_000 + number, "node", f'{{"n":{number}}}'
    )


def written() -> tuple[Segment, bytes]:
    made = [record(n) for n in range(1, ROWS + 1)]
    entries = [
        JournalEntry(each.stream, each.id, each.recorded_at, each.source, each.body, seq)
        for seq, each in enumerate(made, start=1)
    ]
    return pack(STORE, entries)


def renamed(segment: Segment, data: bytes) -> Segment:
    """The name of a segment that an intruder gave these bytes."""
    return replace(segment, digest=blake3(data).hexdigest()[:16])


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes with some changed, left out or added; mostly in the footer, which is parsed first."""
    footer = int.from_bytes(data[-8:-4], "little") + 8
    start = chance.choice((0, len(data) - footer))
    bad = bytearray(data)
    kind = chance.randrange(8)
    place = chance.randrange(start, len(bad))
    if kind == 0:
        del bad[place : place + chance.randrange(1, 9)]
    elif kind == 1:
        bad[place:place] = chance.randbytes(chance.randrange(1, 9))
    else:
        for _ in range(kind - 1):
            bad[chance.randrange(start, len(bad))] = chance.randrange(256)
    return bytes(bad)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(tmp_path / "stores", Schema("plane", MetaData())) as opened:
        yield opened


@pytest.mark.parametrize(
    "seed", [1, 2, 3, 4, *(pytest.param(n, marks=pytest.mark.long) for n in range(5, 31))]
)
def test_a_damaged_segment_is_refused_or_gives_every_record(seed: int) -> None:
    segment, data = written()
    chance = random.Random(seed)
    refused = 0
    for _ in range(500):
        bad = damaged(data, chance)
        try:
            footer = verify(renamed(segment, bad), bad)
        except PipelineError as error:
            assert error.mend
            refused += 1
        else:
            records = read_records(bad)
            assert [each.seq for each in records] == list(range(1, ROWS + 1))
            assert (records[-1].id, records[-1].recorded_at) == (footer.last_id, footer.last_at)
    assert 100 < refused < 500


async def test_an_export_goes_on_beside_damaged_segments(store: Store, tmp_path: Path) -> None:
    segment, data = written()
    outbox = ExportSource("plane", store, "0a1b2c3d")
    await store.append(*(record(n) for n in range(1, ROWS + 4)))
    chance = random.Random(17)
    for number in range(150):
        landing = Landing(tmp_path / f"landing-{number}")
        bad = damaged(data, chance)
        landing.put(renamed(segment, bad), bad)
        done = await export([outbox], landing)
        assert done.records == {STREAM: 3}, number


async def test_a_column_name_that_is_no_text_is_refused(store: Store, tmp_path: Path) -> None:
    segment, data = written()
    at = data.index(b"recorded_at")
    bad = data[:at] + b"\xff" + data[at + 1 :]
    landing = Landing(tmp_path / "landing")
    landing.put(renamed(segment, bad), bad)
    with pytest.raises(PipelineError, match="damaged"):
        landing.footer(renamed(segment, bad))
    await store.append(*(record(n) for n in range(1, ROWS + 1)))
    done = await export([ExportSource("plane", store, "0a1b2c3d")], landing)
    assert done.records == {}


async def test_a_damaged_footer_does_not_make_a_store_a_copy_of_itself(
    store: Store, tmp_path: Path
) -> None:
    segment, data = written()
    at = len(data) - len(data.partition(b"accord.last_id")[2])
    bad = data[:at] + data[at:].replace(f"id-{ROWS}".encode(), b"id-9", 1)
    assert read_footer(tmp_file(tmp_path, bad), segment.name).last_id == "id-9"
    landing = Landing(tmp_path / "landing")
    landing.put(renamed(segment, bad), bad)
    await store.append(*(record(n) for n in range(1, ROWS + 2)))
    done = await export([ExportSource("plane", store, "0a1b2c3d")], landing)
    assert done.records == {STREAM: 1}
    assert {each.store for each in landing.segments(STREAM)} == {STORE}


async def test_the_journal_keeps_what_a_damaged_segment_should_hold(
    store: Store, tmp_path: Path
) -> None:
    segment, data = written()
    pages = bytearray(data)
    pages[40:120] = bytes(80)  # records, while footer and digest stay right
    bad = bytes(pages)
    landing = Landing(tmp_path / "landing")
    landing.put(renamed(segment, bad), bad)
    await store.append(*(record(n) for n in range(1, ROWS + 1)))
    with pytest.raises(PipelineError, match="damaged"):
        await prune(
            [ExportSource("plane", store, "0a1b2c3d")],
            landing,
            Retention(journal_days=1),
            now_ms=2**45,
        )
    assert len(await store.read(lambda connection: journal.read(connection, STREAM))) == ROWS


@pytest.mark.parametrize("seed", [1, 2])
def test_a_damaged_part_of_a_corpus_is_refused_or_gives_every_document(
    seed: int, tmp_path: Path
) -> None:
    chunks = (Chunk("a", 0, "x" * 50, 1, "Words", ()),)
    built = PreparedDocument(
        "cid", "recipe", "Title", "en", "porter", 1, 2, "{}", None, chunks, b"t", None
    )
    made = [corpus_store.BuiltDocument(f"k{n}", "name", built, b"content") for n in range(ROWS)]
    data = (tmp_path / corpus_store.write_part(tmp_path, made)).read_bytes()
    chance = random.Random(seed)
    refused = 0
    for _ in range(200):
        bad = damaged(data, chance)
        name = f"{ROWS:06}-{blake3(bad).hexdigest(length=16)}.parquet"
        (tmp_path / name).write_bytes(bad)
        try:
            found = [each.built.doc_cid for each in corpus_store.read_part(tmp_path, name)]
            keys = corpus_store.document_keys(tmp_path, name)
        except PipelineError:
            refused += 1
        else:
            assert len(found) == ROWS
            assert keys
    assert 40 < refused < 200


def tmp_file(folder: Path, data: bytes) -> Path:
    path = folder / "segment.parquet"
    path.write_bytes(data)
    return path
