"""An outbox to export from, on both engines, and a place to land."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import MetaData

from accord.pipeline.exporter import ExportSource
from accord.pipeline.landing import Landing
from accord.storage import JournalRecord, Schema, Store, open_store

PLANE = Schema("plane", MetaData())
STREAM = "bus.calls"
NOW = 1_700_000_000_000

Call = Callable[[int], JournalRecord]


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a store on each engine."""
    if request.param == "sqlite":
        return str(tmp_path / "stores")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def plane() -> Schema:
    return PLANE


@pytest.fixture
async def store(where: str) -> AsyncIterator[Store]:
    async with open_store(where, PLANE) as opened:
        yield opened


@pytest.fixture
def outbox(store: Store) -> ExportSource:
    return ExportSource("plane", store, "0a1b2c3d")


@pytest.fixture
def landing(tmp_path: Path) -> Landing:
    return Landing(tmp_path / "landing")


@pytest.fixture
def call() -> Call:
    """Makes records as the bus writes them."""

    def make(number: int) -> JournalRecord:
        key = "ed25519:" + "A" * 43
        body = (
            f'{{"request_id":"r{number}","community":"{key}","caller":"{key}",'
            '"capability":"chat.send","version":"1.0","status":200,"code":null,"check":null,'
            f'"ms":{number},"request_bytes":10,"response_bytes":20,"request_digest":null,'
            f'"response_digest":"blake3:{"0" * 64}"}}'
        )
        return JournalRecord(STREAM, f"id-{number}", NOW + number, "node", body)

    return make
