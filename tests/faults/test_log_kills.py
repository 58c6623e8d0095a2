"""A log keeps what it acknowledged, and its author's chain, whoever is killed and whenever."""

import asyncio
import random
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from accord.community.log import EventLog, open_log
from accord.community.queries import verify_log
from accord.community.store import COMMUNITY_STORE, sync_items
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.storage import StoreError, check, open_store
from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

WRITER = str(Path(__file__).with_name("log_writer.py"))
ROOT = SigningKey(b"root".ljust(32, b"."))
FOUNDER = SigningKey(b"founder".ljust(32, b"."))
CLOCK = SystemClock()
POST = "market.post.created"


def post(name: str) -> dict[str, object]:
    return {"client_id": name, "category": "offer", "title": "A chair", "body": "x" * 3000}


async def kept_in(log: EventLog) -> set[bytes]:
    found = await log.store.read(lambda c: list(sync_items(c, log.number)))
    return {digest for _, _, digest in found}


async def assert_kept(where: str, folder: Path, promised: set[str]) -> None:
    async with (
        open_store(where, COMMUNITY_STORE) as store,
        open_log(store, ROOT.id, key=FOUNDER, clock=CLOCK, folder=folder) as log,
    ):
        kept = {digest.hex() for digest in await kept_in(log)}
        assert not promised - kept
        assert not log.is_recovering
        chain = log.state.chains[FOUNDER.id]
        assert chain.is_whole, "a gap or a fork"
        assert chain.head_seq > 0
        assert (await verify_log(log)).findings == ()
    assert check(where, COMMUNITY_STORE).findings == ()


async def killed(where: str, folder: Path, kills: int) -> None:
    chance = random.Random(2026)
    promised: set[str] = set()
    for run in range(kills):
        proving = "provers" if run % 4 == 3 else "thread"
        with python_child(WRITER, where, str(folder), str(run), proving) as child:
            lines = [child.read_line() for _ in range(chance.randrange(1, 120))]
            lines += child.kill()
            child.assert_gone()
        promised |= {line.removeprefix("done ") for line in lines}
    assert len(promised) >= kills
    await assert_kept(where, folder, promised)


@pytest.mark.parametrize(("engine", "kills"), [("sqlite", 8), ("postgres", 3)])
async def test_every_acknowledged_event_survives_the_death_of_its_process(
    engine: str, kills: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    where = str(tmp_path if engine == "sqlite" else request.getfixturevalue("postgres_url"))
    await killed(where, tmp_path, kills)


@pytest.mark.long
async def test_every_acknowledged_event_survives_fifty_deaths(tmp_path: Path) -> None:
    await killed(str(tmp_path), tmp_path, 50)


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Make every write beyond a size fail, as on a full disk, also that of a commit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_full_disk_refuses_loses_nothing_and_breaks_no_chain(tmp_path: Path) -> None:
    async with (
        open_store(tmp_path, COMMUNITY_STORE) as store,
        open_log(store, ROOT.id, key=FOUNDER, clock=CLOCK, folder=tmp_path) as log,
    ):
        policy = {
            "capability_token_ttl_seconds": 3600,
            "default_member_can_invite": True,
            "federation_enabled": False,
            "min_signatures_to_demote": 1,
            "min_signatures_to_invite": 1,
            "min_signatures_to_revoke": 1,
        }
        data = {"name": "Town", "founder_node_id": FOUNDER.id, "policy": policy}
        await log.append("community.created", data, key=ROOT)
        said = await append_each(log, "before", 20)
        assert len(said) == 20
        with files_no_larger_than((tmp_path / "community.db-wal").stat().st_size + 10_000):
            refused = await append_each(log, "during", 30)
        assert refused == []
        assert {event.digest for event in said} <= await kept_in(log)
        again = await append_each(log, "after", 20)
        assert len(again) == 20
        assert log.state.chains[FOUNDER.id].is_whole
        assert (await verify_log(log)).findings == ()
    promised = {event.digest.hex() for event in (*said, *again)}
    await assert_kept(str(tmp_path), tmp_path, promised)


async def append_each(log: EventLog, name: str, count: int) -> list[Any]:
    outcomes = await asyncio.gather(
        *(log.append(POST, post(f"{name} {number}")) for number in range(count)),
        return_exceptions=True,
    )
    errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert all(isinstance(error, StoreError) and "disk" in str(error) for error in errors), errors
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
