"""The tables of the control half, and the revision that makes them."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, MetaData

from accord.relay.connector import RELAY, tables
from accord.storage import open_store


def only_ours(name: str | None, kind: str, _parent: object) -> bool:
    return kind != "table" or name in {
        table.name
        for table in vars(tables).values()
        if hasattr(table, "c") and hasattr(table, "name")
    }


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_the_revision_makes_exactly_the_declared_tables(where: str, engine: str) -> None:
    ours = MetaData()
    for table in RELAY.metadata.tables.values():
        if only_ours(table.name, "table", None):
            table.to_metadata(ours)

    def differences(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"include_name": only_ours})
        return list(compare_metadata(context, ours))

    async with open_store(where, RELAY) as store:
        assert await store.read(differences) == []


async def test_a_store_opens_again(where: str) -> None:
    async with open_store(where, RELAY) as store:
        heads = await store.read(lambda c: c.execute(tables.change_head.select()).mappings().all())
    assert [dict(row) for row in heads] == [{"id": 1, "version": 0}]
