"""What was acknowledged is there, whole and in order, whoever is killed and whenever."""

import json
import random
from pathlib import Path

import pytest
from sqlalchemy import Connection, MetaData

from accord.storage import JournalRecord, Schema, StoreError, check, journal, open_store
from accord.testing.processes import Child, python_child
from accord.testing.servers import postgres_server

pytestmark = pytest.mark.slow

APPENDER = str(Path(__file__).with_name("storage_appender.py"))
SCHEMA = Schema("faults", MetaData())


def acknowledged(lines: list[str]) -> set[str]:
    return {line.removeprefix("done ") for line in lines if line.startswith("done ")}


def read_until_acknowledged(child: Child, count: int) -> list[str]:
    lines: list[str] = []
    while len(acknowledged(lines)) < count:
        lines.append(child.read_line())
    return lines


async def assert_kept(where: str, promised: set[str]) -> None:
    async with open_store(where, SCHEMA) as store:
        entries = await store.read(lambda c: journal.read(c, "faults", limit=10**9))
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert not promised - {entry.id for entry in entries}
    for entry in entries:
        assert json.loads(entry.body)["name"] == entry.id
    assert check(where, SCHEMA).findings == ()


@pytest.mark.parametrize(
    ("engine", "kills"),
    [("sqlite", 12), ("postgres", 5), pytest.param("sqlite", 50, marks=pytest.mark.long)],
)
async def test_every_acknowledged_record_survives_the_death_of_its_process(
    engine: str, kills: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = str(tmp_path if engine == "sqlite" else request.getfixturevalue("postgres_url"))
    chance = random.Random(2026)
    promised: set[str] = set()
    for run in range(kills):
        with python_child(APPENDER, where, f"{run}") as child:
            lines = read_until_acknowledged(child, chance.randrange(1, 250))
            lines += child.kill()
            child.assert_gone()
        promised |= acknowledged(lines)
        assert not [line for line in lines if line.startswith("error ")]
        if run % 10 == 9:
            # What a kill left behind is looked at before anyone has opened and mended it.
            assert check(where, SCHEMA).findings == ()
    assert len(promised) >= kills
    await assert_kept(where, promised)


async def test_every_acknowledged_record_survives_the_death_of_the_server() -> None:
    chance = random.Random(2026)
    promised: set[str] = set()
    errors: list[str] = []
    with postgres_server() as server, python_child(APPENDER, server.url, "0") as child:
        for _ in range(4):
            lines = read_until_acknowledged(child, chance.randrange(20, 200))
            server.kill()
            server.restart()
            # The same process goes on with the server that came back.
            lines += read_until_acknowledged(child, 200)
            promised |= acknowledged(lines)
            errors += [line for line in lines if line.startswith("error ")]
        promised |= acknowledged(child.kill())
        await assert_kept(server.url, promised)
    assert errors, "no kill fell on a write"
    # Before the commit, or in the midst of it, when nobody can know what became of it.
    told = ("the PostgreSQL server", "its outcome is unknown; repeat it with the same ids")
    assert all(any(sentence in error for sentence in told) for error in errors), set(errors)


async def test_an_idle_store_does_not_notice_that_the_server_was_restarted() -> None:
    def record(name: str) -> JournalRecord:
        return JournalRecord("faults", name, 1_700_000_000_000, "test", "{}")

    def count(connection: Connection) -> int:
        return len(journal.read(connection, "faults"))

    with postgres_server() as server:
        async with open_store(server.url, SCHEMA) as store:
            for seq in range(1, 4):
                assert await store.append(record(f"{seq}")) == (seq,)
                assert await store.read(count) == seq
                server.kill()
                server.restart()
                assert await store.read(count) == seq
            server.kill()
            with pytest.raises(StoreError, match="does not answer"):
                await store.append(record("lost"))
            with pytest.raises(StoreError, match="does not answer"):
                await store.read(count)
            server.restart()
            assert await store.append(record("4")) == (4,)
