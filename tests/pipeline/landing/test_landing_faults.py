"""A full disk and a kill at any moment leave whole segments only, and the next export goes on."""

import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from accord.pipeline.errors import PipelineError
from accord.pipeline.exporter import ExportSource, SegmentLimits, export
from accord.pipeline.landing import Landing, Segment, pack, read_records
from accord.storage import JournalEntry, JournalRecord, Schema, open_store
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

STREAM = "bus.calls"
PROGRAM = Path(__file__).with_name("export_process.py")
ROWS = 2000

Call = Callable[[int], JournalRecord]


def segments(landing: Landing) -> list[Segment]:
    """The segments that are there, each proven to be whole."""
    found = landing.segments(STREAM)
    for segment in found:
        assert landing.verify(segment).rows == segment.rows
    return found


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    noise = random.Random(1)
    entries = [
        JournalEntry(STREAM, f"{n}", n, "s", f"{noise.random()}" * 20, n) for n in range(1, 400)
    ]
    landing = Landing(tmp_path)
    segment, data = pack("plane-0a1b2c3d", entries)
    with files_no_larger_than(len(data) // 2), pytest.raises(PipelineError) as error:
        landing.put(segment, data)
    assert "the segment cannot be written" in str(error.value)
    assert "has space" in str(error.value)
    assert list((tmp_path / STREAM).iterdir()) == []
    landing.put(segment, data)
    assert segments(landing) == [segment]


@pytest.mark.parametrize(
    "seed", [1, 2, 3, *(pytest.param(n, marks=pytest.mark.long) for n in range(4, 21))]
)
async def test_an_exporter_killed_at_any_moment_loses_nothing_and_doubles_nothing(
    seed: int, tmp_path: Path, call: Call, plane: Schema
) -> None:
    chance = random.Random(seed)
    stores, landing = tmp_path / "stores", Landing(tmp_path / "landing")
    async with open_store(stores, plane) as store:
        await store.append(*(call(n) for n in range(ROWS)))
    for _ in range(3):
        with python_child(str(PROGRAM), str(stores), str(tmp_path / "landing")) as child:
            for _ in range(chance.randint(1, 25)):
                if child.read_line() == "done":
                    break
            child.kill()
        whole = segments(landing)
        assert whole[-1].last == sum(segment.rows for segment in whole)
    async with open_store(stores, plane) as store:
        await export(
            [ExportSource("plane", store, "ffffffff")], landing, limits=SegmentLimits(rows=500)
        )
    records = [each for one in segments(landing) for each in read_records(landing.read(one))]
    assert [record.seq for record in records] == list(range(1, ROWS + 1))
    assert [record.id for record in records] == [f"id-{n}" for n in range(ROWS)]
    assert not [path for path in (tmp_path / "landing" / STREAM).iterdir() if path.name[0] == "_"]
