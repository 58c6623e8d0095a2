"""A backup is a whole store of one moment, or is not there; restoring never overwrites."""

import asyncio
import importlib
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from accord.storage import (
    JournalRecord,
    Store,
    StoreError,
    backup,
    check,
    journal,
    open_store,
    restore,
)

Note = Callable[..., JournalRecord]


async def sell(store: Store, shop: Any, name: str, note: JournalRecord) -> None:
    """A good, an order for it and a note, in one unit."""

    def work(connection: sa.Connection) -> None:
        good = sa.insert(shop.goods).values(name=name).returning(shop.goods.c.id)
        number = connection.execute(good).scalar_one()
        order = {"number": name, "good": number, "body": b"\x00\xff" + name.encode()}
        connection.execute(sa.insert(shop.orders), order)
        journal.append(connection, [note])

    await store.write(work)


async def contents(where: str | Path, shop: Any) -> dict[str, list[tuple[Any, ...]]]:
    def read(connection: sa.Connection) -> dict[str, list[tuple[Any, ...]]]:
        return {
            table.name: sorted(tuple(row) for row in connection.execute(sa.select(table)))
            for table in shop.schema.metadata.sorted_tables
        }

    async with open_store(where, shop.schema) as store:
        return await store.read(read)


@pytest.fixture
def other(request: pytest.FixtureRequest, where: str, tmp_path: Path) -> str:
    """An empty place on the other engine."""
    if "://" in where:
        return str(tmp_path / "other")
    return str(request.getfixturevalue("postgres_url"))


async def test_a_backup_is_a_store_and_moves_between_the_engines(
    where: str, other: str, shop: Any, note: Note, tmp_path: Path
) -> None:
    async with open_store(where, shop.schema) as store:
        for n in range(30):
            await sell(store, shop, f"good {n}", note(f"{n}"))
    before = await contents(where, shop)
    file = tmp_path / "shop.db"
    steps: list[str] = []
    backup(where, shop.schema, file, progress=lambda what, done, total: steps.append(what))
    assert steps
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_bytes()[18] == 1, "a backup is a plain file without write-ahead log"

    restore(file, other, shop.schema)
    assert check(other, shop.schema).ok
    assert await contents(other, shop) == before
    restore(file, tmp_path / "same", shop.schema)
    assert await contents(tmp_path / "same", shop) == before
    assert await contents(tmp_path, shop) == before
    async with open_store(other, shop.schema) as store:
        await sell(store, shop, "the next", note("next"))
    assert len((await contents(other, shop))["orders"]) == 31


async def test_a_backup_under_load_is_of_one_moment(
    where: str, shop: Any, note: Note, tmp_path: Path
) -> None:
    sold = 0
    done = asyncio.Event()

    async def keep_selling(store: Store, caller: int) -> None:
        nonlocal sold
        turn = 0
        while not done.is_set():
            await sell(store, shop, f"{caller}.{turn}", note(f"{caller}.{turn}"))
            turn += 1
            sold += 1

    (tmp_path / "backups").mkdir()
    async with open_store(where, shop.schema) as store:
        callers = [asyncio.create_task(keep_selling(store, caller)) for caller in range(8)]
        for n in range(3):
            at_least = sold
            await asyncio.to_thread(backup, where, shop.schema, tmp_path / "backups" / f"{n}.db")
            at_most = sold + len(callers)
            (tmp_path / f"{n}").mkdir()
            shutil.copy(tmp_path / "backups" / f"{n}.db", tmp_path / f"{n}" / "shop.db")
            assert check(tmp_path / f"{n}", shop.schema).ok
            rows = await contents(tmp_path / f"{n}", shop)
            assert at_least <= len(rows["goods"]) <= at_most
            assert len(rows["goods"]) == len(rows["orders"]) == len(rows["journal"])
        done.set()
        await asyncio.gather(*callers)
    assert sorted(path.name for path in (tmp_path / "backups").iterdir()) == [
        "0.db",
        "1.db",
        "2.db",
    ]


async def test_a_write_between_two_steps_of_a_backup_does_not_start_it_anew(
    shop: Any, note: Note, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("accord.storage.backup")
    monkeypatch.setattr(module, "_PAGES_AT_ONCE", 1)
    async with open_store(tmp_path, shop.schema) as store:
        await store.append(*(note(f"{n}") for n in range(200)))
    steps = 0

    def write_meanwhile(what: str, done: int, total: int) -> None:
        nonlocal steps
        if what == "pages" and total > 1:
            steps += 1
            assert steps <= total, "it was started anew"
            raw.execute("INSERT INTO goods (name) VALUES (?)", (f"good {steps}",))

    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as raw:
        backup(tmp_path, shop.schema, tmp_path / "copy.db", progress=write_meanwhile)
        assert raw.execute("SELECT count(*) FROM goods").fetchone() == (steps,)
    assert steps > 5
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("SELECT count(*) FROM goods").fetchone() == (0,)


async def test_a_damaged_store_is_not_published_as_a_backup(
    where: str, shop: Any, note: Note, tmp_path: Path
) -> None:
    async with open_store(where, shop.schema) as store:
        await sell(store, shop, "salt", note("1"))
        await store.write(lambda c: c.exec_driver_sql("UPDATE journal SET body = ''").close())
    folder = tmp_path / "backups"
    folder.mkdir()
    with pytest.raises(StoreError, match="accord store check"):
        backup(where, shop.schema, folder / "shop.db")
    assert list(folder.iterdir()) == []


async def test_nothing_is_overwritten(where: str, shop: Any, note: Note, tmp_path: Path) -> None:
    async with open_store(where, shop.schema) as store:
        await sell(store, shop, "salt", note("1"))
    file = tmp_path / "shop.db"
    backup(where, shop.schema, file)
    first = file.read_bytes()
    with pytest.raises(StoreError, match="the file is there already"):
        backup(where, shop.schema, file)
    assert file.read_bytes() == first
    before = await contents(where, shop)
    with pytest.raises(StoreError, match="the store is not empty"):
        restore(file, where, shop.schema)
    assert await contents(where, shop) == before


async def test_a_restore_that_fails_half_way_leaves_the_store_empty(
    where: str, shop: Any, note: Note, tmp_path: Path
) -> None:
    async with open_store(tmp_path, shop.schema) as store:
        for n in range(3):
            await sell(store, shop, f"{n}", note(f"{n}"))

    def stop(what: str, done: int, _: int) -> None:
        if what == "orders" and done:
            order_of_tables.append(what)
            if len(order_of_tables) == 2:  # first by the check, then by the copy
                raise OSError(28, "No space left on device")

    order_of_tables: list[str] = []
    with pytest.raises(StoreError, match="No space left on device"):
        restore(tmp_path / "shop.db", where, shop.schema, progress=stop)
    assert {name: len(rows) for name, rows in (await contents(where, shop)).items()} == {
        "goods": 0,
        "orders": 0,
        "journal": 0,
        "journal_heads": 0,
        "journal_identity": 0,
    }
    restore(tmp_path / "shop.db", where, shop.schema)
    assert check(where, shop.schema).ok


async def test_a_damaged_backup_is_not_restored(
    where: str, shop: Any, note: Note, tmp_path: Path
) -> None:
    async with open_store(tmp_path, shop.schema) as store:
        await sell(store, shop, "salt", note("1"))
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as raw:
        raw.execute("UPDATE orders SET body = x'00'")
    with pytest.raises(StoreError, match="the record is damaged"):
        restore(tmp_path / "shop.db", where, shop.schema)
    assert not (tmp_path / "stores").exists()


async def test_a_backup_of_an_older_version_can_be_restored(
    where: str, shop: Any, later_shop: Any, note: Note, tmp_path: Path
) -> None:
    async with open_store(tmp_path, shop.schema) as store:
        await sell(store, shop, "salt", note("1"))
    before = (tmp_path / "shop.db").read_bytes()
    restore(tmp_path / "shop.db", where, later_shop.schema)
    assert (await contents(where, later_shop))["goods"] == [(1, "salt", "grey")]
    assert check(where, later_shop.schema).ok
    assert (tmp_path / "shop.db").read_bytes() == before


async def test_a_store_can_be_backed_up_before_it_is_migrated(
    shop: Any, later_shop: Any, note: Note, tmp_path: Path
) -> None:
    async with open_store(tmp_path, shop.schema) as store:
        await sell(store, shop, "salt", note("1"))
    backup(tmp_path, later_shop.schema, tmp_path / "before.db")
    (tmp_path / "old").mkdir()
    shutil.copy(tmp_path / "before.db", tmp_path / "old" / "shop.db")
    assert len((await contents(tmp_path / "old", shop))["goods"]) == 1


@pytest.mark.parametrize("content", [None, b"dear diary, " * 1000, b""])
def test_what_is_not_a_backup_is_not_restored(
    content: bytes | None, shop: Any, tmp_path: Path
) -> None:
    file = tmp_path / "backup.db"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StoreError) as error:
        restore(file, tmp_path / "stores", shop.schema)
    assert str(file) in str(error.value)
    assert not (tmp_path / "stores").exists()


def test_a_store_that_is_not_there_cannot_be_backed_up(where: str, shop: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with pytest.raises(StoreError):
            backup(where, shop.schema, Path(folder) / "shop.db")
        assert list(Path(folder).iterdir()) == []


async def test_a_backup_into_a_folder_that_is_not_there_is_refused(
    where: str, shop: Any, tmp_path: Path
) -> None:
    async with open_store(where, shop.schema):
        pass
    with pytest.raises(StoreError, match="the backup failed"):
        backup(where, shop.schema, tmp_path / "nowhere" / "shop.db")
