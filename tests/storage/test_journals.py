"""The journal numbers what happened, once, in commit order, exactly as it was said."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from accord.storage import JournalEntry, JournalRecord, Store, StoreError, journal, open_store

Note = Callable[..., JournalRecord]


async def entries(store: Store, stream: str = "shop.notes", **options: int) -> list[JournalEntry]:
    return await store.read(lambda connection: journal.read(connection, stream, **options))


async def test_a_record_comes_back_exactly_as_it_was_said(
    where: str, shop: Any, note: Note
) -> None:
    body = '{"b":1.0,  "a":"\\u00e4 ä \\ud83d\\ude00 😀","z":[ ]}'
    async with open_store(where, shop.schema) as store:
        assert await store.append(note("1", body=body)) == (1,)
        (entry,) = await entries(store)
    assert (entry.seq, entry.id, entry.source, entry.body) == (1, "1", "till", body)
    assert entry.recorded_at == 1_700_000_000_000


async def test_appending_again_changes_nothing_and_tells_the_old_number(
    where: str, shop: Any, note: Note
) -> None:
    async with open_store(where, shop.schema) as store:
        assert await store.append(note("a"), note("b"), note("a")) == (1, 2, 1)
        assert await store.append(note("c"), note("b"), note("a")) == (3, 2, 1)
        assert await store.append(note("a")) == (1,)
        assert await store.append(note("d")) == (4,)
        assert [entry.id for entry in await entries(store)] == ["a", "b", "c", "d"]
        assert await store.append() == ()


async def test_another_record_under_the_same_id_is_refused_and_its_neighbours_are_not(
    where: str, shop: Any, note: Note
) -> None:
    async with open_store(where, shop.schema) as store:
        await store.append(note("a"))
        outcomes = await asyncio.gather(
            store.append(note("b")),
            store.append(note("a", body="{}")),
            store.append(note("c"), note("c", body="{}")),
            store.append(note("d")),
            return_exceptions=True,
        )
        assert [outcomes[0], outcomes[3]] == [(2,), (3,)]
        for refused in outcomes[1:3]:
            assert isinstance(refused, StoreError)
            assert "already holds another record with the id" in str(refused)
        assert [entry.id for entry in await entries(store)] == ["a", "b", "d"]


async def test_a_text_that_no_database_can_keep_fails_alone(
    where: str, shop: Any, note: Note
) -> None:
    async with open_store(where, shop.schema) as store:
        outcomes = await asyncio.gather(
            store.append(note("a")),
            store.append(note("b", body="\ud800")),
            store.append(note("c")),
            return_exceptions=True,
        )
        assert outcomes[0] == (1,)
        assert isinstance(outcomes[1], StoreError | UnicodeError)
        assert outcomes[2] == (2,)


async def test_every_stream_is_numbered_on_its_own_without_gaps(
    where: str, shop: Any, note: Note
) -> None:
    async with open_store(where, shop.schema) as store:
        seqs = await asyncio.gather(
            *(store.append(note(f"{n}", stream=f"s{n % 3}")) for n in range(300))
        )
        for stream in range(3):
            told = [seq for n, (seq,) in enumerate(seqs) if n % 3 == stream]
            assert sorted(told) == list(range(1, 101))
            assert [entry.seq for entry in await entries(store, f"s{stream}")] == sorted(told)


async def test_two_writers_of_one_store_leave_no_gap(where: str, shop: Any, note: Note) -> None:
    async def fill(store: Store, caller: str) -> None:
        for n in range(30):
            # Both streams in one unit, in opposite orders: they must not wait for each other.
            streams = ("s1", "s2") if caller == "a" else ("s2", "s1")
            await store.append(*(note(f"{caller}{n}", stream=stream) for stream in streams))

    async with open_store(where, shop.schema) as a, open_store(where, shop.schema) as b:
        await asyncio.gather(fill(a, "a"), fill(b, "b"))
        for stream in ("s1", "s2"):
            seqs = [entry.seq for entry in await entries(a, stream)]
            assert seqs == list(range(1, 61))


async def test_state_and_journal_are_committed_together_or_not_at_all(
    where: str, shop: Any, note: Note
) -> None:
    def sell(connection: Connection, name: str) -> tuple[int, ...]:
        connection.execute(sa.insert(shop.goods).values(name=name))
        seqs = journal.append(connection, [note(name)])
        if name == "poison":
            raise LookupError(name)
        return seqs

    async with open_store(where, shop.schema) as store:
        assert await store.write(lambda connection: sell(connection, "salt")) == (1,)
        with pytest.raises(LookupError):
            await store.write(lambda connection: sell(connection, "poison"))
        assert await store.write(lambda connection: sell(connection, "bread")) == (2,)
        assert [entry.id for entry in await entries(store)] == ["salt", "bread"]


async def test_a_long_list_is_appended_and_read_in_parts(where: str, shop: Any, note: Note) -> None:
    async with open_store(where, shop.schema) as store:
        await store.append(*(note(f"{n}") for n in range(0, 1200, 2)))
        seqs = await store.append(*(note(f"{n}") for n in range(1200)))
        assert sorted(seqs) == list(range(1, 1201))
        first = await entries(store, limit=1000)
        rest = await entries(store, after=first[-1].seq, limit=1000)
        assert [entry.seq for entry in (*first, *rest)] == list(range(1, 1201))
        assert await entries(store, "another") == []


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE journal SET body = replace(body, 'grüß', 'gruß')",
        "UPDATE journal SET id = 'b'",
        "UPDATE journal SET source = 'thief'",
        "UPDATE journal SET recorded_at = recorded_at + 1",
        "UPDATE journal SET seq = seq + 1",
    ],
)
async def test_a_damaged_record_is_refused_when_it_is_read(
    damage: str, where: str, shop: Any, note: Note
) -> None:
    async with open_store(where, shop.schema) as store:
        await store.append(note("a"))
        await store.write(lambda connection: connection.exec_driver_sql(damage))
        with pytest.raises(StoreError, match="a record is damaged"):
            await entries(store)


@pytest.mark.parametrize("where", ["postgres"], indirect=True)
async def test_what_an_append_reads_does_not_grow_with_the_stream(
    where: str, shop: Any, note: Note
) -> None:
    read = sa.text(
        "SELECT coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)"
        " FROM pg_stat_xact_user_tables WHERE relname = 'journal'"
    )

    def append(connection: Connection, *records: JournalRecord) -> int:
        journal.append(connection, records)
        return int(connection.execute(read).scalar_one())

    async with open_store(where, shop.schema) as store:
        await store.append(*(note(f"old {n}") for n in range(5000)))
        fresh = [note(f"new {n}") for n in range(200)]
        assert await store.write(lambda connection: append(connection, *fresh)) == 0
        assert await store.write(lambda connection: append(connection, *fresh)) == 200
