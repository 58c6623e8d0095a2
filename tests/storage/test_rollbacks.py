"""A store goes back to what an older version can open, whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from accord.storage import (
    JournalRecord,
    RevisionStep,
    Schema,
    StoreError,
    check,
    journal,
    newer_revisions,
    open_store,
    pending_revisions,
    roll_back,
)

Note = Callable[..., JournalRecord]

UNDONE = (RevisionStep("shop_0002", "Goods have a colour, and orders may carry a remark."),)
NOT_UNDONE = """
\"\"\"{what}\"\"\"
revision = "{name}"
down_revision = {before!r}
branch_labels = {labels!r}
since = {since!r}


def upgrade():
    pass
"""


async def sell(where: str, shop: Any, *orders: dict[str, Any], good: str | None = None) -> None:
    async with open_store(where, shop.schema) as store:

        def work(connection: sa.Connection) -> None:
            if good is not None:
                connection.execute(sa.insert(shop.goods).values(name=good))
            for order in orders:
                connection.execute(sa.insert(shop.orders).values(body=b"{}", **order))

        await store.write(work)


async def sold(where: str, shop: Any) -> tuple[list[str], list[str], list[str]]:
    """The goods, the orders, and what the journal tells."""
    async with open_store(where, shop.schema) as store:

        def work(connection: sa.Connection) -> tuple[list[str], list[str], list[str]]:
            goods = connection.execute(sa.select(shop.goods.c.name)).scalars()
            orders = connection.execute(sa.select(shop.orders.c.number)).scalars()
            notes = [entry.id for entry in journal.read(connection, "shop.notes")]
            return sorted(goods), sorted(orders), notes

        return await store.read(work)


async def test_an_older_version_opens_what_was_rolled_back_and_finds_what_it_can_hold(
    where: str, shop: Any, later_shop: Any, note: Note
) -> None:
    await sell(where, shop, {"number": "1", "good": 1}, good="salt")
    assert newer_revisions(where, shop.schema, "0.1.0") == ()
    assert pending_revisions(where, later_shop.schema) == UNDONE
    async with open_store(where, later_shop.schema) as store:
        await store.append(note("between"))
    await sell(where, later_shop, {"number": "2", "good": 2}, good="bread")
    assert pending_revisions(where, later_shop.schema) == ()
    assert newer_revisions(where, later_shop.schema, "0.1.0") == UNDONE

    assert roll_back(where, later_shop.schema, "v0.1.0") == UNDONE
    assert await sold(where, shop) == (["bread", "salt"], ["1", "2"], ["between"])
    assert check(where, shop.schema).findings == ()
    assert roll_back(where, later_shop.schema, "0.1.0") == (), "it is back already"

    # And up again.
    assert await sold(where, later_shop) == (["bread", "salt"], ["1", "2"], ["between"])


async def test_a_record_that_says_what_the_older_version_cannot_hold_is_not_kept_as_another(
    where: str, shop: Any, later_shop: Any
) -> None:
    await sell(where, later_shop, {"number": "1", "good": 1, "remark": "wrapped"}, good="salt")
    roll_back(where, later_shop.schema, "0.1.0")
    # Its seal was made over the remark: that something is missing can be seen.
    assert [finding.rule for finding in check(where, shop.schema).findings] == ["store.checksum"]


async def test_what_the_wanted_version_knows_stays(where: str, later_shop: Any) -> None:
    await sell(where, later_shop, good="salt")
    for version in ("0.2.0", "0.2.1", "1.0.0"):
        assert roll_back(where, later_shop.schema, version) == ()
    assert pending_revisions(where, later_shop.schema) == ()


async def test_a_branch_that_the_older_version_does_not_have_goes_as_a_whole(
    where: str, shop: Any, later_shop: Any
) -> None:
    for name, before, labels in (("till_0001", None, ("till",)), ("till_0002", "till_0001", None)):
        text = NOT_UNDONE.format(what=name, name=name, before=before, labels=labels, since="0.3.0")
        file = later_shop.schema.migrations / f"{name}.py"
        file.write_text(f"{text}\n\ndef downgrade():\n    pass\n")
    await sell(where, shop, good="salt")
    await sell(where, later_shop, good="bread")
    undone = roll_back(where, later_shop.schema, "0.2.0")
    assert [step.revision for step in undone] == ["till_0002", "till_0001"]
    assert [step.revision for step in newer_revisions(where, later_shop.schema, "0.1.0")] == [
        "shop_0002"
    ]
    roll_back(where, later_shop.schema, "0.1.0")
    assert (await sold(where, shop))[0] == ["bread", "salt"]


async def test_a_revision_without_a_way_back_is_named_and_nothing_is_undone(
    where: str, shop: Any, later_shop: Any
) -> None:
    text = NOT_UNDONE.format(
        what="Final.", name="shop_0003", before="shop_0002", labels=None, since="0.3.0"
    )
    (later_shop.schema.migrations / "shop_0003.py").write_text(text)
    await sell(where, later_shop, good="salt")
    for undo in (newer_revisions, roll_back):
        with pytest.raises(StoreError, match="the revision shop_0003 cannot be undone"):
            undo(where, later_shop.schema, "0.1.0")
    assert (await sold(where, later_shop))[0] == ["salt"]


async def test_an_undoing_that_fails_half_way_leaves_the_newer_version_intact(
    where: str, later_shop: Any
) -> None:
    text = NOT_UNDONE.format(
        what="Fails.", name="shop_0003", before="shop_0002", labels=None, since="0.2.0"
    )
    undo = "\n\ndef downgrade():\n    op.execute('DELETE FROM goods')\n    1 / 0\n"
    file = later_shop.schema.migrations / "shop_0003.py"
    file.write_text(f"from alembic import op\n{text}{undo}")
    await sell(where, later_shop, good="salt")
    with pytest.raises(ZeroDivisionError):
        roll_back(where, later_shop.schema, "0.1.0")
    assert (await sold(where, later_shop))[0] == ["salt"]


@pytest.mark.parametrize("version", ["", "0.1", "latest", "0.1.0rc1", "0.0.9", "../0.1.0"])
async def test_what_is_no_version_is_refused(version: str, tmp_path: Path, shop: Any) -> None:
    await sell(str(tmp_path), shop, good="salt")
    with pytest.raises(StoreError, match="no version"):
        roll_back(tmp_path, shop.schema, version)


def test_a_store_that_is_not_there_cannot_be_rolled_back(where: str, shop: Any) -> None:
    schema: Schema = shop.schema
    if "://" in where:
        assert roll_back(where, schema, "0.1.0") == ()
    else:
        with pytest.raises(StoreError, match="cannot be opened"):
            roll_back(where, schema, "0.1.0")
        assert not Path(where).exists()
