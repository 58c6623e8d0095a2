"""Writes that are awaited are durable, share commits, and fail alone."""

import asyncio
import random
import shutil
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from accord.storage import Store, StoreError, open_store
from accord.storage import store as writing


class Gate:
    """Holds the writer in the middle of a transaction until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _: Connection) -> None:
        self.entered.set()
        assert self.opened.wait(20)


async def hold(store: Store) -> tuple[Gate, asyncio.Task[None]]:
    gate = Gate()
    task = asyncio.create_task(store.write(gate))
    assert await asyncio.to_thread(gate.entered.wait, 20)
    return gate, task


def adding(shop: Any, name: str) -> Any:
    def add(connection: Connection) -> str:
        connection.execute(sa.insert(shop.goods).values(name=name))
        return name

    return add


def all_names(shop: Any) -> Any:
    def names(connection: Connection) -> set[str]:
        return set(connection.execute(sa.select(shop.goods.c.name)).scalars())

    return names


async def test_an_awaited_write_is_there_when_the_store_is_opened_again(
    where: str, shop: Any
) -> None:
    async with open_store(where, shop.schema) as store:
        assert await store.write(adding(shop, "salt")) == "salt"
        assert await store.read(all_names(shop)) == {"salt"}
    async with open_store(where, shop.schema) as store:
        assert await store.read(all_names(shop)) == {"salt"}


async def test_units_that_wait_together_share_one_commit(
    where: str, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[int] = []
    transact = writing.Writer._transact

    def count(self: writing.Writer, units: list[Any]) -> list[Any]:
        groups.append(len(units))
        return transact(self, units)

    monkeypatch.setattr(writing.Writer, "_transact", count)
    async with open_store(where, shop.schema) as store:
        names = [f"good {n}" for n in range(64)]
        assert await asyncio.gather(*(store.write(adding(shop, name)) for name in names)) == names
    assert groups == [64]


async def test_a_failed_unit_of_work_leaves_its_neighbours_committed(where: str, shop: Any) -> None:
    def fail(connection: Connection) -> None:
        adding(shop, "never")(connection)
        raise LookupError("out of stock")

    async with open_store(where, shop.schema) as store:
        outcomes = await asyncio.gather(
            store.write(adding(shop, "salt")),
            store.write(fail),
            store.write(adding(shop, "bread")),
            store.write(adding(shop, "salt")),
            store.write(adding(shop, "wine")),
            return_exceptions=True,
        )
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [str, LookupError, str, sa.exc.IntegrityError, str]
        assert await store.read(all_names(shop)) == {"salt", "bread", "wine"}


async def test_a_unit_whose_deferred_constraint_fails_at_the_commit_fails_alone(
    where: str, shop: Any
) -> None:
    def order_nothing(connection: Connection) -> None:
        connection.execute(sa.insert(shop.orders).values(number="1", good=404, body=b"{}"))

    async with open_store(where, shop.schema) as store:
        outcomes = await asyncio.gather(
            store.write(adding(shop, "salt")), store.write(order_nothing), return_exceptions=True
        )
        assert outcomes[0] == "salt"
        assert isinstance(outcomes[1], sa.exc.IntegrityError)
        assert await store.write(adding(shop, "bread")) == "bread"


async def test_a_unit_that_swallows_the_end_of_its_transaction_is_not_acknowledged(
    where: str, shop: Any
) -> None:
    def swallow(connection: Connection) -> None:
        adding(shop, "never")(connection)
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("ROLLBACK")  # as SQLite does itself on a full disk
        else:
            with pytest.raises(sa.exc.ProgrammingError):
                connection.exec_driver_sql("SELECT * FROM nowhere")

    async with open_store(where, shop.schema) as store:
        outcomes = await asyncio.gather(
            store.write(adding(shop, "salt")), store.write(swallow), return_exceptions=True
        )
        assert outcomes[0] == "salt"
        assert isinstance(outcomes[1], StoreError)
        assert await store.read(all_names(shop)) == {"salt"}


async def test_an_error_does_not_tell_what_was_in_the_record(where: str, shop: Any) -> None:
    def order(connection: Connection) -> None:
        connection.execute(sa.insert(shop.orders).values(number="1", body=b"hunter2"))

    async with open_store(where, shop.schema) as store:
        await store.write(order)
        with pytest.raises(sa.exc.IntegrityError) as error:
            await store.write(order)
    assert "hunter2" not in str(error.value)


async def test_a_commit_waits_for_the_disk(where: str, shop: Any) -> None:
    def settings(connection: Connection) -> list[object]:
        if connection.dialect.name == "sqlite":
            asked = ["PRAGMA journal_mode", "PRAGMA synchronous", "PRAGMA foreign_keys"]
        else:
            asked = ["SHOW fsync", "SHOW synchronous_commit", "SHOW search_path"]
        return [connection.exec_driver_sql(each).scalar_one() for each in asked]

    async with open_store(where, shop.schema) as store:
        kept = await store.write(settings)
    assert kept == (["on", "on", "shop"] if "://" in where else ["wal", 2, 1])


def names_in_the_file(folder: Path, shop: Any, copy: Path) -> set[str]:
    """What is in the store's file, without its write-ahead log."""
    shutil.copyfile(folder / f"{shop.schema.name}.db", copy)
    with closing(sqlite3.connect(copy)) as file:
        return {name for (name,) in file.execute("SELECT name FROM goods")}


async def test_the_log_is_copied_into_the_file_beside_the_commits(
    tmp_path: Path, shop: Any
) -> None:
    folder, copy = tmp_path / "stores", tmp_path / "copy.db"
    folder.mkdir()
    async with open_store(folder, shop.schema) as store:
        # More than SQLite's own thousand pages, in a few commits: none of them copies anything.
        names = [f"{number} {'x' * 1_000_000}" for number in range(writing._CHECKPOINT)]
        for name in names[:-1]:
            await store.write(adding(shop, name))
        assert names_in_the_file(folder, shop, copy) == set()
        await store.write(adding(shop, names[-1]))
        async with asyncio.timeout(30):
            while (folder / f"{shop.schema.name}.db").stat().st_size < 10_000_000:
                await store.read(all_names(shop))
        more = [f"more {number}" for number in range(100)]
        for name in more:
            assert await store.write(adding(shop, name)) == name
    assert names_in_the_file(folder, shop, copy) == {*names, *more}


@pytest.mark.parametrize("error", [StopIteration, SystemExit, KeyboardInterrupt])
async def test_no_exception_of_a_unit_ends_the_writer(
    error: type[BaseException], where: str, shop: Any
) -> None:
    def leave(_: Connection) -> None:
        raise error

    async with open_store(where, shop.schema) as store:
        with pytest.raises(RuntimeError if error is StopIteration else error):
            await store.write(leave)
        assert await store.write(adding(shop, "salt")) == "salt"


async def test_a_caller_cancelled_before_its_unit_starts_leaves_no_trace(
    where: str, shop: Any
) -> None:
    async with open_store(where, shop.schema) as store:
        gate, held = await hold(store)
        waiting = asyncio.create_task(store.write(adding(shop, "never")))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gate.opened.set()
        await held
        await store.write(adding(shop, "salt"))
        assert await store.read(all_names(shop)) == {"salt"}


async def test_a_caller_cancelled_in_mid_work_disturbs_nobody(where: str, shop: Any) -> None:
    async with open_store(where, shop.schema) as store:
        gate, held = await hold(store)
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        gate.opened.set()
        assert await store.write(adding(shop, "salt")) == "salt"


async def test_callers_are_held_back_when_too_many_wait(
    where: str, shop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_WAITING", 4)
    async with open_store(where, shop.schema) as store:
        gate, held = await hold(store)
        writes = [asyncio.create_task(store.write(adding(shop, f"{n}"))) for n in range(10)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert store._writer._slots.locked()
        assert store._writer._handed.qsize() == 1
        assert not any(task.done() for task in writes)
        gate.opened.set()
        assert await asyncio.gather(*writes) == [f"{n}" for n in range(10)]
        await held


async def test_closing_finishes_what_was_accepted_and_refuses_what_comes_later(
    where: str, shop: Any
) -> None:
    async with open_store(where, shop.schema) as store:
        gate, held = await hold(store)
        accepted = [asyncio.create_task(store.write(adding(shop, f"{n}"))) for n in range(10)]
        await asyncio.sleep(0)
        gate.opened.set()
    await asyncio.gather(held, *accepted)
    with pytest.raises(StoreError, match="the store is closed"):
        await store.write(adding(shop, "late"))
    with pytest.raises(StoreError, match="the store is closed"):
        await store.read(all_names(shop))
    async with open_store(where, shop.schema) as store:
        assert await store.read(all_names(shop)) == {f"{n}" for n in range(10)}


async def test_reading_neither_waits_for_the_writer_nor_sees_what_is_not_committed(
    where: str, shop: Any
) -> None:
    async with open_store(where, shop.schema) as store:
        await store.write(adding(shop, "salt"))
        gate = Gate()

        def add_slowly(connection: Connection) -> None:
            adding(shop, "bread")(connection)
            gate(connection)

        writing = asyncio.create_task(store.write(add_slowly))
        assert await asyncio.to_thread(gate.entered.wait, 20)
        seen = await asyncio.gather(*(store.read(all_names(shop)) for _ in range(20)))
        assert seen == [{"salt"}] * 20
        gate.opened.set()
        await writing
        assert await store.read(all_names(shop)) == {"salt", "bread"}


async def test_a_reader_sees_one_moment(where: str, shop: Any) -> None:
    async with open_store(where, shop.schema) as store:
        await store.write(adding(shop, "salt"))
        gate = Gate()

        def look_twice(connection: Connection) -> tuple[set[str], set[str]]:
            first = all_names(shop)(connection)
            gate(connection)
            return first, all_names(shop)(connection)

        reading = asyncio.create_task(store.read(look_twice))
        assert await asyncio.to_thread(gate.entered.wait, 20)
        await store.write(adding(shop, "bread"))
        gate.opened.set()
        assert await reading == ({"salt"}, {"salt"})


async def test_a_reader_cannot_write(where: str, shop: Any) -> None:
    async with open_store(where, shop.schema) as store:
        with pytest.raises((StoreError, sa.exc.DBAPIError), match=r"read-?only|written"):
            await store.read(adding(shop, "never"))
        assert await store.read(all_names(shop)) == set()


@pytest.mark.parametrize("seed", range(6))
async def test_exactly_the_acknowledged_units_are_there(seed: int, where: str, shop: Any) -> None:
    chance = random.Random(seed)
    acknowledged: set[str] = set()

    def failing(name: str, kind: str) -> Any:
        def work(connection: Connection) -> str:
            adding(shop, name)(connection)
            if kind == "raise":
                raise LookupError(name)
            if kind == "repeat":
                adding(shop, name)(connection)
            if kind == "swallow" and connection.dialect.name == "postgresql":
                with pytest.raises(sa.exc.ProgrammingError):
                    connection.exec_driver_sql("SELECT * FROM nowhere")
            return name

        return work

    async def call(store: Store, caller: int) -> None:
        for turn in range(12):
            kind = chance.choice(["fine", "fine", "fine", "raise", "repeat", "swallow", "cancel"])
            name = f"{caller}.{turn}"
            task = asyncio.create_task(store.write(failing(name, kind)))
            if kind == "cancel":
                await asyncio.sleep(0)
                task.cancel()
            try:
                acknowledged.add(await task)
            except (LookupError, sa.exc.IntegrityError, StoreError):
                refused.add(name)
            except asyncio.CancelledError:
                unknown.add(name)

    refused: set[str] = set()
    unknown: set[str] = set()
    async with open_store(where, shop.schema) as store:
        await asyncio.gather(*(call(store, caller) for caller in range(12)))
    async with open_store(where, shop.schema) as store:
        there = await store.read(all_names(shop))
    assert acknowledged <= there
    assert not refused & there
    assert there <= acknowledged | unknown
    assert len(acknowledged) + len(refused) + len(unknown) == 12 * 12


@pytest.mark.parametrize("where", ["postgres"], indirect=True)
async def test_a_transaction_that_a_deadlock_ended_runs_again(where: str, shop: Any) -> None:
    both = threading.Barrier(2, timeout=20)
    runs: list[str] = []

    def crossing(name: str, first: int, second: int) -> Any:
        def work(connection: Connection) -> str:
            runs.append(name)
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(first)))
            if runs.count(name) == 1:
                both.wait()
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(second)))
            adding(shop, name)(connection)
            return name

        return work

    async with open_store(where, shop.schema) as one, open_store(where, shop.schema) as two:
        done = tuple(
            await asyncio.gather(
                one.write(crossing("salt", 1, 2)), two.write(crossing("oil", 2, 1))
            )
        )
        assert done == ("salt", "oil")
        assert len(runs) == 3
        assert await one.read(all_names(shop)) == {"salt", "oil"}
