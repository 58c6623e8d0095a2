"""A full disk acknowledges nothing, loses nothing, and is forgotten once there is space."""

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, MetaData

from accord.storage import (
    JournalRecord,
    Schema,
    Store,
    StoreError,
    backup,
    check,
    journal,
    open_store,
)

SCHEMA = Schema("faults", MetaData())


def record(name: str, size: int = 2000) -> JournalRecord:
    return JournalRecord("faults", name, 1_700_000_000_000, "test", f'"{"x" * size}"')


async def append_each(store: Store, names: list[str]) -> tuple[set[str], list[StoreError]]:
    outcomes = await asyncio.gather(
        *(store.append(record(name)) for name in names), return_exceptions=True
    )
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(error, StoreError) for error in errors), errors
    done = {n for n, o in zip(names, outcomes, strict=True) if not isinstance(o, BaseException)}
    return done, [error for error in errors if isinstance(error, StoreError)]


async def ids(store: Store) -> list[str]:
    entries = await store.read(lambda c: journal.read(c, "faults", limit=100_000))
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    return [entry.id for entry in entries]


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Make every write beyond a size fail, as on a full disk, also that of a commit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_database_that_cannot_grow_refuses_and_goes_on_when_it_can(tmp_path: Path) -> None:
    def pages(connection: Connection, limit: int) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {limit}")

    async with open_store(tmp_path, SCHEMA) as store:
        await store.append(record("first"))
        await store.write(lambda c: pages(c, 60))
        kept, errors = await append_each(store, [f"a{n}" for n in range(200)])
        assert kept, "what still fits is kept"
        assert errors
        assert all("the disk is full" in str(error) for error in errors)
        assert set(await ids(store)) == {"first"} | kept
        await store.write(lambda c: pages(c, 2**30))
        more, errors = await append_each(store, [f"a{n}" for n in range(200)])
        assert (len(more), errors) == (200, [])
    assert check(tmp_path, SCHEMA).ok


async def test_a_commit_that_cannot_be_written_acknowledges_nobody(tmp_path: Path) -> None:
    async with open_store(tmp_path, SCHEMA) as store:
        kept, _ = await append_each(store, [f"a{n}" for n in range(20)])
        assert len(kept) == 20
        with files_no_larger_than((tmp_path / "faults.db-wal").stat().st_size + 10_000):
            lost, errors = await append_each(store, [f"b{n}" for n in range(100)])
            assert lost == set()
            assert len(errors) == 100
            assert all("the disk" in str(error) and error.mend for error in errors)
        assert set(await ids(store)) == kept
        again, errors = await append_each(store, [f"b{n}" for n in range(100)])
        assert (len(again), errors) == (100, [])
        assert set(await ids(store)) == kept | again
    assert check(tmp_path, SCHEMA).ok


async def test_a_store_that_cannot_be_made_for_want_of_space_is_not_half_made(
    tmp_path: Path,
) -> None:
    with files_no_larger_than(10_000), pytest.raises(StoreError, match="the disk"):
        async with open_store(tmp_path / "stores", SCHEMA):
            pass
    assert not (tmp_path / "stores").exists()


async def test_a_backup_that_finds_no_space_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_store(tmp_path / "stores", SCHEMA) as store:
        await store.append(*(record(f"{n}") for n in range(100)))
    folder = tmp_path / "backups"
    folder.mkdir()
    with files_no_larger_than(50_000), pytest.raises(StoreError, match="the disk"):
        backup(tmp_path / "stores", SCHEMA, folder / "faults.db")
    assert list(folder.iterdir()) == []
