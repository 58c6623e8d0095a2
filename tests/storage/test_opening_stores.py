"""A store is opened at the right version, or refused in one sentence and left as it was."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from accord.storage import Schema, StoreError, open_store

BROKEN = """
import sqlalchemy as sa
from alembic import op

revision = "shop_0003"
down_revision = "shop_0002"


def upgrade():
    op.execute("DELETE FROM goods")
    op.create_table("halfway", sa.Column("id", sa.Integer, primary_key=True))
    {}
"""


def one_sentence(error: pytest.ExceptionInfo[StoreError]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def fill(where: str, shop: Any) -> None:
    async with open_store(where, shop.schema) as store:
        rows = [{"name": "salt"}, {"name": "bread"}]
        await store.write(lambda c: c.execute(sa.insert(shop.goods), rows).close())
        order = sa.insert(shop.orders).values(number="1", good=1, body=b"{}")
        await store.write(lambda c: c.execute(order).close())


async def goods(where: str, shop: Any) -> list[tuple[Any, ...]]:
    async with open_store(where, shop.schema) as store:
        query = sa.select(shop.goods).order_by(shop.goods.c.id)
        return await store.read(lambda c: [tuple(row) for row in c.execute(query)])


@pytest.mark.parametrize("version", ["shop", "later_shop"])
async def test_the_revisions_build_the_tables_that_are_declared(
    version: str, where: str, request: pytest.FixtureRequest
) -> None:
    schema = request.getfixturevalue(version).schema

    def differences(connection: sa.Connection) -> list[Any]:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        return list(compare_metadata(context, schema.metadata))

    async with open_store(where, schema) as store:
        assert await store.read(differences) == []


async def test_a_store_of_an_older_version_is_migrated_and_keeps_its_rows(
    where: str, shop: Any, later_shop: Any
) -> None:
    await fill(where, shop)
    assert await goods(where, later_shop) == [(1, "salt", "grey"), (2, "bread", "grey")]


async def test_a_store_of_a_newer_version_is_refused_and_untouched(
    where: str, shop: Any, later_shop: Any
) -> None:
    await fill(where, later_shop)
    with pytest.raises(StoreError) as error:
        async with open_store(where, shop.schema):
            pass
    assert "written by a newer version" in one_sentence(error)
    assert "upgrade Accord" in one_sentence(error)
    assert len(await goods(where, later_shop)) == 2


@pytest.mark.parametrize("step", ["raise RuntimeError('half way')", "op.execute('DROP nonsense')"])
async def test_a_failed_migration_leaves_the_old_version_intact(
    step: str, where: str, shop: Any, later_shop: Any
) -> None:
    await fill(where, shop)
    (later_shop.schema.migrations / "shop_0003.py").write_text(BROKEN.format(step))
    with pytest.raises((RuntimeError, sa.exc.DBAPIError)):
        async with open_store(where, later_shop.schema):
            pass
    assert await goods(where, shop) == [(1, "salt"), (2, "bread")]


async def test_a_first_migration_that_fails_leaves_nothing_behind(
    where: str, later_shop: Any, tmp_path: Path
) -> None:
    (later_shop.schema.migrations / "shop_0003.py").write_text(BROKEN.format("1 / 0"))
    with pytest.raises(ZeroDivisionError):
        async with open_store(where, later_shop.schema):
            pass
    assert not (tmp_path / "stores").exists()
    if "://" in where:
        engine = sa.create_engine(where.replace("://", "+psycopg://"), poolclass=sa.NullPool)
        assert "shop" not in sa.inspect(engine).get_schema_names()


async def test_a_migration_that_would_break_references_is_refused(
    tmp_path: Path, shop: Any, later_shop: Any
) -> None:
    await fill(str(tmp_path), shop)
    (later_shop.schema.migrations / "shop_0003.py").write_text(BROKEN.format("pass"))
    with pytest.raises(StoreError, match="references to rows that are not there"):
        async with open_store(tmp_path, later_shop.schema):
            pass
    assert await goods(str(tmp_path), shop) == [(1, "salt"), (2, "bread")]


async def test_many_may_open_a_new_store_at_once(where: str, shop: Any) -> None:
    async def add(name: str) -> None:
        async with open_store(where, shop.schema) as store:
            insert = sa.insert(shop.goods).values(name=name)
            await store.write(lambda c: c.execute(insert).close())

    await asyncio.gather(*(add(f"{n}") for n in range(5)))
    assert len(await goods(where, shop)) == 5


async def test_stores_of_several_planes_share_a_place(where: str, shop: Any) -> None:
    till = Schema("till", sa.MetaData())
    async with open_store(where, shop.schema), open_store(where, till):
        pass
    async with open_store(where, till), open_store(where, shop.schema):
        pass


async def test_a_new_sqlite_store_is_private_and_writes_ahead(tmp_path: Path, shop: Any) -> None:
    async with open_store(tmp_path / "a" / "b", shop.schema) as store:
        await store.append()
        file = tmp_path / "a" / "b" / "shop.db"
        assert file.stat().st_mode & 0o777 == 0o600
        assert file.parent.stat().st_mode & 0o777 == 0o700
        assert file.with_name("shop.db-wal").exists()
    assert names_in(file.parent) == ["shop.db"]


async def test_a_file_that_is_not_a_database_is_refused_and_untouched(
    tmp_path: Path, shop: Any
) -> None:
    file = tmp_path / "shop.db"
    file.write_bytes(b"dear diary, " * 1000)
    with pytest.raises(StoreError) as error:
        async with open_store(tmp_path, shop.schema):
            pass
    assert f"{file}: this file is not a database" in one_sentence(error)
    assert file.read_bytes() == b"dear diary, " * 1000
    assert names_in(tmp_path) == ["shop.db"]


async def test_a_store_whose_file_was_emptied_is_not_taken_for_a_new_one(
    tmp_path: Path, shop: Any
) -> None:
    (tmp_path / "shop.db").touch()
    with pytest.raises(StoreError) as error:
        async with open_store(tmp_path, shop.schema):
            pass
    assert "the store's file is empty" in one_sentence(error)
    assert (tmp_path / "shop.db").stat().st_size == 0


async def test_a_database_that_is_not_a_store_is_refused_and_untouched(
    tmp_path: Path, shop: Any
) -> None:
    file = tmp_path / "shop.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("CREATE TABLE diary (entry TEXT)")
    other.close()
    before = file.read_bytes()
    with pytest.raises(StoreError) as error:
        async with open_store(tmp_path, shop.schema):
            pass
    assert "holds tables but is not a store" in one_sentence(error)
    assert file.read_bytes() == before


@pytest.mark.parametrize("folder", ["below/a/file", "/proc/nowhere"])
async def test_a_folder_that_cannot_be_made_is_refused_and_nothing_is_made(
    folder: str, tmp_path: Path, shop: Any
) -> None:
    (tmp_path / "below").write_text("a file, not a folder")
    with pytest.raises(StoreError) as error:
        async with open_store(tmp_path / folder, shop.schema):
            pass
    assert "the store cannot be opened" in one_sentence(error)
    assert names_in(tmp_path) == ["below"]


async def test_a_folder_that_stands_where_the_file_should_be_is_refused(
    tmp_path: Path, shop: Any
) -> None:
    (tmp_path / "shop.db").mkdir()
    with pytest.raises(StoreError) as error:
        async with open_store(tmp_path, shop.schema):
            pass
    assert "the store cannot be opened" in one_sentence(error)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("mysql://u:hunter2@127.0.0.1/db", "a store cannot be kept in mysql"),
        ("postgresql://u:hunter2@127.0.0.1:no/db", "the store's URL cannot be read"),
        ("postgresql://u:hunter2@127.0.0.1:1/db", "the PostgreSQL server does not answer"),
        ("postgresql://u:hunter2@/db?host=/nowhere", "the PostgreSQL server does not answer"),
        ("postgresql://u@127.0.0.1:1/db?password=hunter2", "the PostgreSQL server does not answer"),
        ("postgresql://u:hunter2@127.0.0.1:1/db?colour=red", "the store's URL cannot be used"),
    ],
)
async def test_a_wrong_url_is_refused_and_its_password_is_not_shown(
    url: str, sentence: str, shop: Any
) -> None:
    with pytest.raises(StoreError) as error:
        async with open_store(url, shop.schema):
            pass
    assert sentence in one_sentence(error)
    assert "hunter2" not in str(error.value)
    assert error.value.mend


async def test_a_database_or_login_that_the_server_does_not_know_is_refused(
    postgres_url: str, shop: Any
) -> None:
    with pytest.raises(StoreError, match=r"no such database|does not exist") as error:
        async with open_store(f"{postgres_url}_nowhere", shop.schema):
            pass
    one_sentence(error)


@pytest.mark.parametrize("name", ["", "Shop", "shop; DROP", "../shop", "pg_shop", "x" * 40])
def test_a_name_that_is_no_plain_word_cannot_name_a_store(name: str) -> None:
    with pytest.raises(StoreError, match="cannot name a store"):
        Schema(name, sa.MetaData())
