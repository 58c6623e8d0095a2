"""Killed at any moment: the next run comes to the same tables, and no reader saw a half."""

import contextlib
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.pipeline.folders import bring_up, contents, history

from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout
from accord.pipeline.generate import land, slices
from accord.pipeline.landing import Landing
from accord.pipeline.runs import published
from accord.pipeline.tables import GOLD
from accord.testing.processes import Child, python_child

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = Path(__file__).with_name("run_process.py")
PLACE = {"PYTHONPATH": str(Path(__file__).parents[3])}
STEPS = ("bronze", "checked", "silver", "accounting", "quarantine", "community_parts", "traffic")
VICTIMS = ("driver", "jvm", "both")


class Reader(threading.Thread):
    """Looks at what is published, over and over, and notes every version that is not whole."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(daemon=True)
        self._layout = layout
        self._over = threading.Event()
        self.seen: set[str] = set()
        self.halves: list[str] = []

    def run(self) -> None:
        while not self._over.wait(0.002):
            self._look()
        self._look()

    def _look(self) -> None:
        try:
            version = published(self._layout)
        except PipelineError as error:
            self.halves.append(str(error))
            return
        if version is not None and version.name not in self.seen:
            self.seen.add(version.name)
            for table in GOLD:
                files = version.files(table.name)
                if not files or not all(each.exists() for each in files):
                    self.halves.append(f"{version.name}/{table.name}")

    def end(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def polled(layout: Layout) -> Iterator[Reader]:
    reader = Reader(layout)
    reader.start()
    try:
        yield reader
    finally:
        reader.end()


def kill_at(child: Child, step: str, wait: float, victim: str) -> None:
    """Kill a run a moment after it has begun a step."""
    jvm = int(child.read_line(within=120).removeprefix("jvm "))
    while child.read_line(within=120) != step:
        pass
    threading.Event().wait(wait)
    if victim in ("jvm", "both"):
        with contextlib.suppress(ProcessLookupError):  # it had done its work
            os.kill(jvm, signal.SIGKILL)
    if victim == "jvm":
        last = ""
        while not last.startswith(("error: ", "done ")):
            last = child.read_line(within=60)
        assert "Spark's JVM has ended (killed by SIGKILL)" in last or last.startswith("done ")
        child.wait(within=60)
    else:
        child.kill()
    child.assert_gone(within=60)


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 2), pytest.param(2, 20, marks=pytest.mark.long)], ids=["2", "20"]
)
@pytest.mark.timeout(3600)
def test_a_run_that_was_killed_anywhere_is_finished_by_the_next(
    spark: "SparkSession", tmp_path: Path, seed: int, kills: int
) -> None:
    chance = random.Random(seed)
    killed, quiet = Layout(tmp_path / "killed"), Layout(tmp_path / "quiet")
    land(Landing(quiet.landing), history().portions())
    bring_up(quiet, spark, GOLD)
    batches = slices(list(history().portions()), kills, seed)
    with polled(killed) as reader:
        for turn, batch in enumerate(batches):
            land(Landing(killed.landing), batch)
            with python_child(str(PROGRAM), str(killed.root), env=PLACE) as child:
                step = chance.choice(STEPS)
                kill_at(child, step, chance.random(), VICTIMS[turn % 3])
        outcome = bring_up(killed, spark, GOLD)
    assert all(account.balances for account in outcome.accounts)
    assert reader.seen
    assert reader.halves == []
    assert contents(killed, spark) == contents(quiet, spark)
