"""The gateway's tables, and the way to them from an older version and back."""

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection
from tests.relay.gateway.conftest import message

from accord.relay.gateway import INBOX_SCHEMA, ReceivedEvent, open_stored_inbox
from accord.storage import open_store
from accord.storage.revisions import roll_back
from accord.testing import VirtualClock


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path)
    return str(request.getfixturevalue("postgres_url"))


async def test_the_revisions_make_exactly_the_declared_tables(where: str) -> None:
    def is_ours(name: str | None, kind: str, _: object) -> bool:
        return kind != "table" or name in INBOX_SCHEMA.metadata.tables

    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"include_name": is_ours})
        return list(compare_metadata(context, INBOX_SCHEMA.metadata))

    async with open_store(where, INBOX_SCHEMA) as store:
        assert await store.read(differences) == []


async def test_events_survive_the_way_back_to_a_version_without_an_outbox(where: str) -> None:
    event = ReceivedEvent("k1", message("hi"), buffer_id="b-1")
    async with open_stored_inbox(where, VirtualClock()) as inbox:
        (number,) = await inbox.take([event])
        assert number is not None
    assert [each.revision for each in roll_back(where, INBOX_SCHEMA, "0.2.0")] == [
        "gateway_0004",
        "gateway_0003",
        "gateway_0002",
    ]
    async with open_stored_inbox(where, VirtualClock()) as inbox:
        found = await inbox.begin(number)
        assert found == event
        assert found.turn is None
