"""Old entries may go, their numbers stay taken, and the check knows from where on to look."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
STREAM = "shop.notes"


async def prune(store: Store, upto: int) -> int:
    return await store.write(lambda connection: journal.prune(connection, STREAM, upto))


async def seqs(store: Store) -> list[int]:
    entries = await store.read(lambda connection: journal.read(connection, STREAM))
    return [entry.seq for entry in entries]


async def test_pruning_forgets_the_oldest_and_numbering_goes_on(
    where: str, shop: Any, note: Note
) -> None:
    async with open_store(where, shop.schema) as store:
        await store.append(*(note(f"{n}") for n in range(10)), note("x", stream="other"))
        assert await prune(store, 4) == 4
        assert await prune(store, 4) == 0
        assert await prune(store, 2) == 0
        assert await seqs(store) == [5, 6, 7, 8, 9, 10]
        assert await store.append(note("new")) == (11,)
        reach = await store.read(journal.stream_ranges)
        assert reach == {STREAM: journal.StreamRange(4, 11), "other": journal.StreamRange(0, 1)}
    assert check(where, shop.schema).ok


async def test_a_stream_that_was_pruned_whole_is_sound_and_goes_on(
    where: str, shop: Any, note: Note
) -> None:
    async with open_store(where, shop.schema) as store:
        await store.append(*(note(f"{n}") for n in range(3)))
        assert await prune(store, 3) == 3
        assert check(where, shop.schema).ok
        assert await store.append(note("new")) == (4,)
    assert check(where, shop.schema).ok


@pytest.mark.parametrize("upto", [11, 2**62])
async def test_what_was_never_written_cannot_be_pruned(
    upto: int, where: str, shop: Any, note: Note
) -> None:
    async with open_store(where, shop.schema) as store:
        await store.append(*(note(f"{n}") for n in range(10)))
        with pytest.raises(StoreError, match="does not reach so far"):
            await prune(store, upto)
        with pytest.raises(StoreError, match="does not reach so far"):
            await store.write(lambda c: journal.prune(c, "nothing", 1))
        assert len(await seqs(store)) == 10


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM journal WHERE seq = 5",
        "DELETE FROM journal WHERE seq = 10",
        "DELETE FROM journal",
        "UPDATE journal_heads SET floor = 3",
        "UPDATE journal_heads SET floor = 5",
        "UPDATE journal_heads SET floor = 10",
    ],
)
async def test_what_is_missing_behind_the_floor_is_found(
    statement: str, where: str, shop: Any, note: Note
) -> None:
    async with open_store(where, shop.schema) as store:
        await store.append(*(note(f"{n}") for n in range(10)))
        await prune(store, 4)
        await store.write(lambda connection: connection.exec_driver_sql(statement).close())
    (finding,) = check(where, shop.schema).findings
    assert finding.rule == "store.sequence"


async def test_a_backup_keeps_floor_and_identity(
    where: str, shop: Any, note: Note, tmp_path: Path
) -> None:
    async with open_store(where, shop.schema) as store:
        await store.append(*(note(f"{n}") for n in range(10)))
        await prune(store, 4)
        assert await store.write(lambda c: journal.identity(c, "one")) == "one"
        assert await store.write(lambda c: journal.identity(c, "two")) == "one"
    backup(where, shop.schema, tmp_path / "copy.db")
    restore(tmp_path / "copy.db", tmp_path / "elsewhere", shop.schema)
    async with open_store(tmp_path / "elsewhere", shop.schema) as store:
        assert await store.write(lambda c: journal.identity(c, "three")) == "one"
        assert (await store.read(journal.stream_ranges))[STREAM] == journal.StreamRange(4, 10)
        assert await seqs(store) == [5, 6, 7, 8, 9, 10]


async def test_one_holds_a_store_for_a_purpose_and_others_are_told(where: str, shop: Any) -> None:
    async with open_store(where, shop.schema) as store, open_store(where, shop.schema) as other:
        async with store.exclusive("export"):
            with pytest.raises(StoreError, match="holds the store for its export"):
                async with other.exclusive("export"):
                    pytest.fail("two hold it")
            async with other.exclusive("something else"):
                await asyncio.gather(store.append(), other.append())
        async with other.exclusive("export"):
            pass
