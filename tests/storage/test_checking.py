"""The check finds every kind of damage, names it, and never falls over it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from accord.contracts import Finding
from accord.storage import JournalRecord, StoreError, check, journal, open_store

Note = Callable[..., JournalRecord]


async def fill(where: str | Path, shop: Any, note: Note, count: int = 20) -> None:
    async with open_store(where, shop.schema) as store:
        await store.append(
            *(note(f"note-{n:04}", body=f'{{"n":"mark-{n:04}"}}') for n in range(count))
        )
        good = sa.insert(shop.goods).values(name="salt")
        await store.write(lambda c: c.execute(good).close())
        order = sa.insert(shop.orders).values(number="1", good=1, body=b"order-mark")
        await store.write(lambda c: c.execute(order).close())


async def damage(where: str, shop: Any, *statements: str) -> None:
    def run(connection: sa.Connection) -> None:
        for statement in statements:
            connection.exec_driver_sql(statement)

    async with open_store(where, shop.schema) as store:
        await store.write(run)


def rules(findings: tuple[Finding, ...]) -> set[str]:
    return {finding.rule for finding in findings}


async def test_a_healthy_store_passes_open_or_closed(where: str, shop: Any, note: Note) -> None:
    await fill(where, shop, note)
    seen: list[tuple[str, int, int]] = []
    report = check(where, shop.schema, progress=lambda *step: seen.append(step))
    assert report.ok
    assert report.records == 21
    assert ("journal", 20, 20) in seen
    async with open_store(where, shop.schema) as store:
        await store.append(note("one more"))
        assert check(where, shop.schema).records == 22


@pytest.mark.parametrize(
    ("statement", "rule", "place"),
    [
        ("UPDATE journal SET body = '{}' WHERE seq = 3", "store.checksum", "seq=3"),
        ("UPDATE orders SET number = '2'", "store.checksum", "orders/number='2'"),
        ("UPDATE orders SET good = NULL", "store.checksum", "orders/number='1'"),
        ("DELETE FROM journal WHERE seq = 3", "store.sequence", "stream='shop.notes'"),
        ("DELETE FROM journal WHERE seq = 1", "store.sequence", "stream='shop.notes'"),
        ("DELETE FROM journal WHERE seq = 20", "store.sequence", "stream='shop.notes'"),
        ("DELETE FROM journal_heads", "store.sequence", "stream='shop.notes'"),
        ("DELETE FROM journal", "store.sequence", "stream='shop.notes'"),
    ],
)
async def test_a_changed_or_missing_record_is_found(
    statement: str, rule: str, place: str, where: str, shop: Any, note: Note
) -> None:
    await fill(where, shop, note)
    await damage(where, shop, statement)
    (finding,) = check(where, shop.schema).findings
    assert finding.rule == rule
    assert place in finding.pointer


@pytest.mark.parametrize("bit", [0x01, 0x80])
async def test_a_flipped_bit_in_the_file_is_found_by_the_check_and_by_reading(
    bit: int, tmp_path: Path, shop: Any, note: Note
) -> None:
    await fill(tmp_path, shop, note)
    file = tmp_path / "shop.db"
    data = bytearray(file.read_bytes())
    assert data.count(b"mark-0007") == 1
    data[data.index(b"mark-0007") + 2] ^= bit
    file.write_bytes(data)
    (finding,) = check(tmp_path, shop.schema).findings
    assert (finding.rule, "seq=8" in finding.pointer) == ("store.checksum", True)
    async with open_store(tmp_path, shop.schema) as store:
        with pytest.raises(StoreError, match="damaged"):
            await store.read(lambda c: journal.read(c, "shop.notes"))


async def test_a_dangling_reference_is_found(tmp_path: Path, shop: Any, note: Note) -> None:
    await fill(tmp_path, shop, note)
    with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as raw:
        raw.execute("DELETE FROM goods")
    (finding,) = check(tmp_path, shop.schema).findings
    assert (finding.rule, finding.message) == ("store.reference", "no such row in goods")


async def test_a_file_with_any_page_destroyed_is_reported_without_a_traceback(
    tmp_path: Path, shop: Any, note: Note
) -> None:
    await fill(tmp_path, shop, note, count=300)
    file = tmp_path / "shop.db"
    sound = file.read_bytes()
    assert len(sound) > 10 * 4096
    for start in range(0, len(sound), 4096):
        file.write_bytes(sound[:start] + b"\xa5" * 4096 + sound[start + 4096 :])
        report = check(tmp_path, shop.schema)
        assert not report.ok, f"page at {start}"
        assert all(finding.message and "\n" not in finding.pointer for finding in report.findings)


@pytest.mark.parametrize("keep", [0, 100, 4096, 10_000])
async def test_a_truncated_file_is_reported(
    keep: int, tmp_path: Path, shop: Any, note: Note
) -> None:
    await fill(tmp_path, shop, note)
    file = tmp_path / "shop.db"
    file.write_bytes(file.read_bytes()[:keep])
    report = check(tmp_path, shop.schema)
    assert rules(report.findings) & {"store.integrity", "store.empty", "store.version"}


async def test_a_file_that_is_no_database_is_reported(tmp_path: Path, shop: Any) -> None:
    (tmp_path / "shop.db").write_bytes(b"dear diary, " * 1000)
    report = check(tmp_path, shop.schema)
    assert rules(report.findings) == {"store.integrity"}
    assert "not a database" in report.findings[0].message


async def test_a_store_of_another_version_is_reported(
    where: str, shop: Any, later_shop: Any, note: Note
) -> None:
    await fill(where, shop, note)
    assert rules(check(where, later_shop.schema).findings) == {"store.behind"}
    async with open_store(where, later_shop.schema):
        pass
    (finding,) = check(where, shop.schema).findings
    assert finding.rule == "store.version"
    assert "newer version" in finding.message


async def test_a_store_that_this_user_may_not_open_is_not_called_damaged(
    tmp_path: Path, shop: Any, note: Note
) -> None:
    await fill(tmp_path, shop, note)
    # Root may open everything, so a folder stands where SQLite needs its file.
    (tmp_path / "shop.db-wal").mkdir()
    with pytest.raises(StoreError, match="the store cannot be opened"):
        check(tmp_path, shop.schema)


async def test_checking_leaves_no_files_behind(tmp_path: Path, shop: Any, note: Note) -> None:
    await fill(tmp_path, shop, note)
    before = (tmp_path / "shop.db").read_bytes()
    assert check(tmp_path, shop.schema).ok
    assert not (tmp_path / "shop.db-wal").exists()
    assert not (tmp_path / "shop.db-shm").exists()
    assert (tmp_path / "shop.db").read_bytes() == before


def test_a_store_that_is_not_there_cannot_be_checked(tmp_path: Path, shop: Any) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        check(tmp_path, shop.schema)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there_cannot_be_checked(shop: Any) -> None:
    with pytest.raises(StoreError, match="does not answer"):
        check("postgresql://u:hunter2@127.0.0.1:1/db", shop.schema)
