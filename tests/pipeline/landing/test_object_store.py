"""Segments land on a real server of S3, each record once, also when it is busy for a while."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fakes.s3 import KEYS, S3Server, s3_server

from accord.pipeline.errors import PipelineError
from accord.pipeline.exporter import ExportSource, SegmentLimits, export
from accord.pipeline.folder import Layout
from accord.pipeline.landing import Landing, admit, admitted, release_retired
from accord.storage import JournalRecord, Schema, open_store

pytestmark = pytest.mark.slow

STREAM = "bus.calls"
URL = "s3a://history/landing"
FEW = SegmentLimits(rows=10)

Call = Callable[[int], JournalRecord]


@pytest.fixture
def store_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server("history") as server:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": server.url}.items():
            monkeypatch.setenv(name, value)
        yield server


def numbers(landing: Landing) -> list[int]:
    """The number of every landed record, each segment proven to be whole."""
    found = landing.segments(STREAM)
    assert all(landing.verify(each).rows == each.rows for each in found)
    return sorted(seq for each in found for seq in range(each.first, each.last + 1))


async def test_records_land_once_are_admitted_and_are_retired(
    store_server: S3Server, tmp_path: Path, plane: Schema, call: Call
) -> None:
    landing, layout = Landing(URL), Layout(tmp_path / "pipeline")
    assert landing.segments(STREAM) == []
    async with open_store(tmp_path / "stores", plane) as store:
        await store.append(*(call(n) for n in range(25)))
        source = ExportSource("plane", store, "0a1b2c3d")
        assert (await export([source], landing, limits=FEW)).segments == 3
        assert (await export([source], landing, limits=FEW)).segments == 0
    assert numbers(landing) == list(range(1, 26))
    new, spoilt = admit(layout, URL)
    assert (len(new), spoilt) == (3, [])
    first = landing.segments(STREAM)[0]
    landing.retire(first)
    assert landing.landed()[STREAM] == 25
    assert len(landing.segments(STREAM)) == 2
    assert release_retired(layout, URL) == 1
    assert admitted(layout) == {STREAM: 25}
    assert store_server.refused == 0


async def test_a_store_that_is_busy_for_a_while_loses_and_doubles_nothing(
    store_server: S3Server, tmp_path: Path, plane: Schema, call: Call
) -> None:
    landing = Landing(URL)
    async with open_store(tmp_path / "stores", plane) as store:
        await store.append(*(call(n) for n in range(25)))
        source = ExportSource("plane", store, "0a1b2c3d")
        store_server.busy = 1_000_000
        with pytest.raises(PipelineError) as told:
            await export([source], landing, limits=FEW)
        assert "a-secret-key" not in str(told.value)
        assert store_server.refused > 1
        store_server.busy = 2
        await export([source], landing, limits=FEW)
    assert store_server.busy == 0
    assert numbers(landing) == list(range(1, 26))


def test_a_bucket_that_is_not_there_is_said(store_server: S3Server, tmp_path: Path) -> None:
    assert store_server.url
    with pytest.raises(PipelineError, match="cannot be listed"):
        admit(Layout(tmp_path), "s3://no-such-bucket/landing")
