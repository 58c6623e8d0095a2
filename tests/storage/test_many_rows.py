"""Many rows go into one statement, and many keys are one parameter, on both engines."""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from accord.storage import (
    BulkInsert,
    JournalRecord,
    StoreError,
    is_one_of,
    journal,
    open_store,
    postgres_array,
    verify,
)

ODD = ["plain", "", 'a "quoted" one', "back\\slash", "{1,2}", "NULL", "ä 😀", "new\nline", "1"]


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 33, 127, 129, 300])
async def test_any_number_of_rows_is_inserted_and_each_gets_its_checksum(
    where: str, shop: Any, count: int
) -> None:
    rows = [(f"{number:03}", None, bytes([number % 256])) for number in range(count)]
    insert = BulkInsert(shop.orders)

    def prove(connection: Connection) -> list[tuple[str, None, bytes]]:
        found = connection.execute(sa.select(shop.orders).order_by("number")).mappings().all()
        for row in found:
            verify(shop.orders, row)
        return [(row["number"], row["good"], row["body"]) for row in found]

    async with open_store(where, shop.schema) as store:
        await store.write(lambda connection: insert.insert(connection, rows))
        assert await store.read(prove) == rows


async def test_a_row_that_is_there_already_leaves_nothing_of_the_others(
    where: str, shop: Any
) -> None:
    insert = BulkInsert(shop.orders)
    rows = [(str(number), None, b"") for number in range(20)]
    async with open_store(where, shop.schema) as store:
        await store.write(lambda connection: insert.insert(connection, rows[19:]))
        with pytest.raises(IntegrityError):
            await store.write(lambda connection: insert.insert(connection, rows))
        everything = sa.select(sa.func.count()).select_from(shop.orders)
        assert await store.read(lambda c: c.execute(everything).scalar_one()) == 1


async def test_rows_are_found_by_a_list_of_any_length_and_content(where: str, shop: Any) -> None:
    rows = list(enumerate(ODD))
    insert = BulkInsert(shop.goods)
    found = sa.select(shop.goods.c.name).where(is_one_of(shop.goods.c.name, "names"))

    def names(*wanted: str) -> Callable[[Connection], set[str]]:
        return lambda c: set(c.execute(found, {"names": list(wanted)}).scalars())

    async with open_store(where, shop.schema) as store:
        await store.write(lambda connection: insert.insert(connection, rows))
        assert await store.read(names()) == set()
        assert await store.read(names(*ODD)) == set(ODD)
        for name in ODD:
            assert await store.read(names(name, "another")) == {name}


async def test_a_list_is_looked_up_by_the_index(where: str, shop: Any) -> None:
    found = sa.select(shop.goods.c.id).where(is_one_of(shop.goods.c.name, "names"), sa.true())

    def plan(connection: Connection) -> str:
        is_server = connection.dialect.name == "postgresql"
        if is_server:  # which else scans a small table
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        text = str(found.compile(connection))
        explain = "EXPLAIN " if is_server else "EXPLAIN QUERY PLAN "
        values: Any = {"names": ["a"]} if is_server else ('["a"]',)
        return str(connection.exec_driver_sql(explain + text, values).all())

    async with open_store(where, shop.schema) as store:
        told = await store.read(plan)
    assert "Index" in told or "SEARCH goods USING" in told
    assert "SCAN goods" not in told


async def test_a_new_record_whose_id_is_there_already_ends_the_transaction(
    where: str, shop: Any, note: Callable[..., JournalRecord]
) -> None:
    def add(*names: str) -> Callable[[Connection], tuple[int, ...]]:
        return lambda c: journal.append(c, [note(name) for name in names], are_new=True)

    async with open_store(where, shop.schema) as store:
        assert await store.write(add("a", "b")) == (1, 2)
        with pytest.raises(IntegrityError):
            await store.write(add("c", "a"))
        assert await store.write(add("d")) == (3,)
        entries = await store.read(lambda c: journal.read(c, "shop.notes"))
    assert [(each.seq, each.id) for each in entries] == [(1, "a"), (2, "b"), (3, "d")]


class Colour(StrEnum):
    RED = 'r"d'


@given(st.lists(st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]))))
def test_texts_survive_the_way_through_an_array(texts: list[str]) -> None:
    # As PostgreSQL reads it: https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
    written = postgres_array(texts)
    items = re.findall(r'"((?:[^"\\]|\\.)*)"(?:,|\}$)', written[1:], re.DOTALL)
    assert [re.sub(r"\\(.)", r"\1", item, flags=re.DOTALL) for item in items] == texts


def test_each_type_has_its_form_in_an_array() -> None:
    assert postgres_array([None, -1, b"\x00\xff", Colour.RED]) == '{NULL,-1,"\\\\x00ff","r\\"d"}'
    with pytest.raises(StoreError, match="of the type float cannot be stored"):
        postgres_array([1.5])  # type: ignore[list-item]
