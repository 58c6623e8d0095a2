"""Whoever is killed in the midst of a migration leaves a store that either version can go on with.

Both ways, on both engines: the older version opens what it had, and the newer one goes on.
"""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from tests.faults.migrating_store import revisions, schema

from accord.storage import JournalRecord, StoreError, check, journal, open_store
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

PROGRAM = str(Path(__file__).with_name("migrating_store.py"))
ENTRIES = 200


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "stores")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def older(tmp_path: Path) -> Path:
    return revisions(tmp_path / "older", 1)


@pytest.fixture
def later(tmp_path: Path) -> Path:
    return revisions(tmp_path / "later", 2)


async def fill(where: str, folder: Path) -> None:
    async with open_store(where, schema(folder)) as store:
        rows = text("INSERT INTO days (id, said) VALUES (:id, :said)")
        days = [{"id": number, "said": f"day {number}"} for number in range(ENTRIES)]
        await store.write(lambda c: c.execute(rows, days).close())
        await store.append(
            *(JournalRecord("diary", f"{n}", n, "test", "{}") for n in range(ENTRIES))
        )


async def read(where: str, folder: Path) -> list[Any]:
    """What the days say, after the journal was found whole."""

    def work(connection: Connection) -> list[Any]:
        assert len(journal.read(connection, "diary", limit=1000)) == ENTRIES
        return list(connection.execute(text("SELECT said FROM days ORDER BY id")).scalars())

    async with open_store(where, schema(folder)) as store:
        said = await store.read(work)
    assert check(where, schema(folder)).findings == ()
    return said


def run(verb: str, where: str, folder: Path) -> None:
    with python_child(PROGRAM, verb, where, str(folder), env={"GO_ON": "1"}) as child:
        assert child.read_line() == "done"
        assert child.wait() == 0


def killed_half_way(verb: str, where: str, folder: Path) -> None:
    with python_child(PROGRAM, verb, where, str(folder)) as child:
        assert child.read_line() == "half way"
        child.kill()
        child.assert_gone()


async def test_a_migration_that_is_killed_half_way_has_not_happened(
    where: str, older: Path, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GO_ON", "1")
    await fill(where, older)
    with monkeypatch.context() as patched:
        patched.delenv("GO_ON")
        killed_half_way("upgrade", where, later)
    assert await read(where, older) == [f"day {number}" for number in range(ENTRIES)]

    run("upgrade", where, later)
    assert set(await read(where, later)) == {"changed"}


async def test_a_rollback_that_is_killed_half_way_has_not_happened(
    where: str, older: Path, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GO_ON", "1")
    await fill(where, later)
    with monkeypatch.context() as patched:
        patched.delenv("GO_ON")
        killed_half_way("rollback", where, later)
    with pytest.raises(StoreError, match="written by a newer version"):
        await read(where, older)
    assert await read(where, later) == [f"day {number}" for number in range(ENTRIES)]

    run("rollback", where, later)
    assert set(await read(where, older)) == {"changed back"}
