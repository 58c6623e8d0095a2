"""A whole station works for minutes with everybody at once, keeps all of it, and grows by nothing.

Seen from outside (memory, files, sockets, processes) and from inside (tasks). Three minutes by
default, thirty with --long.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
from tests.e2e.crowd import Crowd
from tests.fakes.leaks import COUNTED, Sample, leaks, sample

from accord.testing.stations import RunningStation, station

pytestmark = pytest.mark.slow

MINUTE = 60.0
# Connections that nobody uses are closed after a quarter of a minute.
QUIET = 20.0
# What fills in the first ten minutes and then stays: above all the pages that each connection of a
# store keeps, up to 2 MB. Half an hour looks at a station that is past that, three minutes do not.
ALLOWED_BYTES = {3: 45_000_000, 30: 20_000_000}
# Posts are kept in memory on purpose: about 1.5 kB each by the fold and 2 kB by the market's index.
# The requests that go along with one are remembered for ten minutes.
POST_BYTES = 8_000
SHOW = ("community", "show", "--json")
WHOLE = {
    "ACCORD_COMMUNITY__FOUND": "Home",
    "ACCORD_COMMUNITY__SYNC_SECONDS": "1",
    "ACCORD_AUTHORITY__ENABLED": "true",
    "ACCORD_CONCIERGE__ENABLED": "true",
    "ACCORD_MODELS__THREADS": "1",
    "ACCORD_PIPELINE__EXPORT_SECONDS": "5",
}


class Watcher:
    """Takes samples of a station."""

    def __init__(self, running: RunningStation) -> None:
        self._running = running
        self._process = psutil.Process(running.child.pid)

    async def look(self) -> Sample:
        def take() -> Sample:
            metrics = self._running.http.get("/metrics").text
            return sample(loop.time(), self._process, metrics)

        loop = asyncio.get_running_loop()
        return await asyncio.to_thread(take)

    async def rest(self, seconds: float, like: Sample | None = None) -> Sample:
        """The process after so long, or as soon as it counts no more than another sample."""
        until = asyncio.get_running_loop().time() + seconds
        while True:
            seen = await self.look()
            is_like = like and all(getattr(seen, name) <= getattr(like, name) for name in COUNTED)
            if is_like or asyncio.get_running_loop().time() > until:
                return seen
            await asyncio.sleep(1)

    async def watch(self, seconds: float) -> list[Sample]:
        """Samples of so long a time, one a second."""
        seen = []
        until = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < until:
            seen.append(await self.look())
            await asyncio.sleep(1)
        return seen


async def work_for(minutes: int, host: RunningStation, guest: RunningStation, folder: Path) -> None:
    seconds = minutes * MINUTE
    crowd, watcher = Crowd(host, folder), Watcher(host)
    try:
        host.front_page()
        await crowd.arrive()
        # Connections, threads and models are there from the first use on.
        async with crowd.busy():
            await asyncio.sleep(seconds / 6)
            await crowd.backup(folder / "first")
        before = await watcher.rest(seconds=QUIET)
        posted = len(crowd.posted)
        async with crowd.busy():
            samples = await watcher.watch(seconds / 3)
            await crowd.backup(folder / "second")
            samples += await watcher.watch(seconds / 2)
        await all_is_kept(crowd, guest)
        after = await watcher.rest(seconds=4 * QUIET, like=before)
        warm = samples[len(samples) // 4 :]
        allowed = ALLOWED_BYTES[minutes] + POST_BYTES * (len(crowd.posted) - posted)
        found = list(leaks(warm, before, after, allowed_bytes=allowed))
        megabytes = [each.memory // 1_000_000 for each in samples[:: max(1, len(samples) // 12)]]
        print(f"memory {megabytes} MB; at rest {before}, then {after}; {dict(crowd.done)}")
        assert not found, (found, before, after)
    finally:
        await crowd.leave()


async def all_is_kept(crowd: Crowd, guest: RunningStation) -> None:
    """Whatever was acknowledged is here, on the other node, and answered."""
    async with crowd.answering():
        await until(crowd.catch_up, lambda: not crowd.unanswered)
    shown = json.loads(await crowd.command(*SHOW))
    told: dict[str, str] = {}

    async def ask() -> None:
        told.update(json.loads(await asyncio.to_thread(guest.command, *SHOW)))

    await until(ask, lambda: told["state_digest"] == shown["state_digest"])
    assert shown["counts"]["accepted"] >= len(crowd.posted)
    assert len(crowd.posted) == crowd.done["post"]
    assert json.loads(await crowd.command("community", "verify", "--json"))["ok"]


async def until(look: Callable[[], Awaitable[None]], is_so: Callable[[], bool]) -> None:
    """Look again and again until it is so."""
    async with asyncio.timeout(120):
        await look()
        while not is_so():
            await asyncio.sleep(3)
            await look()


@pytest.mark.parametrize(
    "minutes",
    [
        pytest.param(3, marks=pytest.mark.timeout(900)),
        pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
def test_a_busy_station_keeps_everything_and_leaks_nothing(tmp_path: Path, minutes: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    guests = {"ACCORD_COMMUNITY__SYNC_SECONDS": "1"}
    with (
        station(tmp_path / "host", env=WHOLE) as host,
        station(tmp_path / "guest", env=guests) as guest,
    ):
        for plane in ("community", "relay", "authority", "pipeline", "console", "concierge"):
            host.until_state(plane, "ready")
        guest.until_state("community", "ready")
        node = guest.command("community", "id").strip()
        link = host.command("community", "invite", node, "--name", "guest").strip()
        guest.command("community", "join", link)
        asyncio.run(work_for(minutes, host, guest, folder))
        host.child.terminate()
        assert host.child.wait() == 0
        host.child.assert_gone()
