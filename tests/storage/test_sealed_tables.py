"""No plane can forget the checksum of a record, or change the record behind its back."""

from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from accord.storage import StoreError, open_store, sealed, verify
from accord.storage.journal import checksum, is_intact

VALUES = st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary() | st.text("ab\x00é")
ROWS = st.dictionaries(st.sampled_from("abc"), VALUES)


async def test_a_row_is_sealed_however_it_is_inserted(where: str, shop: Any) -> None:
    def order(connection: Connection) -> None:
        connection.execute(sa.insert(shop.orders).values(number="1", body=b"one"))
        connection.execute(
            sa.insert(shop.orders), [{"number": "2", "body": b"two"}, {"number": "3", "body": b""}]
        )
        both = [{"number": "4", "body": b"four"}, {"number": "5", "body": b"five"}]
        connection.execute(sa.insert(shop.orders).values(both))

    def prove(connection: Connection) -> list[str]:
        rows = connection.execute(sa.select(shop.orders)).mappings().all()
        for row in rows:
            verify(shop.orders, row)
        return sorted(row["number"] for row in rows)

    async with open_store(where, shop.schema) as store:
        await store.write(order)
        assert await store.read(prove) == ["1", "2", "3", "4", "5"]


async def test_a_sealed_row_cannot_be_updated_but_can_be_deleted(where: str, shop: Any) -> None:
    async with open_store(where, shop.schema) as store:
        insert = sa.insert(shop.orders).values(number="1", body=b"one")
        await store.write(lambda connection: connection.execute(insert).close())
        update = sa.update(shop.orders).values(body=b"two")
        with pytest.raises(StoreError, match="a sealed record cannot be changed"):
            await store.write(lambda connection: connection.execute(update).close())
        delete = sa.delete(shop.orders)
        assert await store.write(lambda connection: connection.execute(delete).rowcount) == 1


def test_a_column_that_does_not_come_back_exactly_cannot_be_sealed() -> None:
    with pytest.raises(StoreError, match="the column price cannot be sealed"):
        sealed("sales", sa.MetaData(), sa.Column("price", sa.Float))


@pytest.mark.parametrize("value", [1.0, True, 2**70, bytearray(b"x"), "\ud800"])
def test_a_value_that_does_not_come_back_exactly_is_refused(value: object) -> None:
    with pytest.raises(StoreError, match="cannot be sealed"):
        checksum("orders", ("body",), {"body": value})


@given(ROWS, ROWS)
def test_different_rows_have_different_checksums(
    one: dict[str, object], other: dict[str, object]
) -> None:
    columns = ("a", "b", "c")
    told = {key: value for key, value in one.items() if value is not None}
    also = {key: value for key, value in other.items() if value is not None}
    same = checksum("t", columns, one) == checksum("t", columns, other)
    assert same == (told == also)
    assert checksum("t", columns, one) != checksum("u", columns, one)


@given(ROWS)
def test_a_nullable_column_added_later_breaks_no_seal(row: dict[str, object]) -> None:
    older = checksum("t", ("a", "b", "c"), row)
    assert older == checksum("t", ("a", "b", "c", "d"), {**row, "d": None})


def test_a_row_of_impossible_values_is_damaged_rather_than_an_error() -> None:
    table = sealed("t", sa.MetaData(), sa.Column("body", sa.Text, primary_key=True))
    assert not is_intact(table, {"body": "\udcff", "checksum": b""})
