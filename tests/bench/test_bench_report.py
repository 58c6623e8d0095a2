"""The benchmarks page: made of what was measured, and honest about what was not."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from bench.__main__ import PARTS
from bench.figure import Figure
from bench.report import page
from bench.report.__main__ import QUICK
from bench.report.machine import Machine, here
from bench.report.measuring import Measured, keep, kept, measure

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
MACHINE = Machine("A processor", 2, 8.0, "Linux 6", "3.11", {"orjson": "3"})
FIGURES = (
    Figure("RPC, 1 caller", "calls/s", 30, 100, "bare", 0.5),
    Figure("quick", "calls/s", 90, 100, "bare", 0.5),
    Figure("surprise", "calls/s", 1, 100, "bare", 0.5),
    Figure("small", "ms", 2, 1, "bare", None, 10, "asked"),
    Figure("large", "ms", 4, 1, "bare", None, 1000, "asked"),
)
MEASURED = Measured(
    *("fabric_rpc", "python -m bench fabric_rpc", "2030-01-01 00:00 UTC", 3.0, 0.5, "abc"),
    *(MACHINE, "", FIGURES),
)


def report(target: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.report", *words, "--page", str(target)]
    return subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)


def test_a_part_is_measured_drawn_and_told_and_not_measured_twice(tmp_path: Path) -> None:
    target = tmp_path / "figures.md"
    done = report(target, "relay_gate")
    assert done.returncode == 0, done.stderr
    assert "[1/1] relay_gate: done after" in done.stderr
    told = json.loads((tmp_path / "figures" / "raw" / "relay_gate.json").read_text())
    assert Machine(**told["machine"]) == here()
    text = target.read_text()
    assert "figures as ratios of their baselines, from" in text
    assert "](figures/relay_gate.svg)" in text
    assert "`python -m bench relay_gate`" in text
    for figure in told["figures"]:
        assert f"| {figure['name']} | " in text
    assert (tmp_path / "figures" / "relay_gate.svg").read_text().startswith("<svg")
    if told["commit"]:
        again = report(target, "relay_gate")
        assert "measured at" in again.stderr
    assert target.read_text() == text


def test_a_part_that_does_not_exist_is_a_misuse(tmp_path: Path) -> None:
    done = report(tmp_path / "figures.md", "nothing")
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "no part 'nothing'" in done.stderr


def test_a_part_that_fails_keeps_its_last_words() -> None:
    found = measure("nothing", MACHINE, "", 60, print)
    assert "no part 'nothing'" in found.failed
    assert found.figures == ()


def test_a_part_that_takes_too_long_is_ended() -> None:
    found = measure("relay_gate", MACHINE, "", 0.01, print)
    assert found.failed.startswith("ended after 0.01 seconds")


def test_what_was_kept_is_read_back(tmp_path: Path) -> None:
    keep(MEASURED, tmp_path)
    assert kept("fabric_rpc", tmp_path) == MEASURED
    assert kept("kernel", tmp_path) is None


def test_missed_goals_stand_with_what_their_part_says_of_them(tmp_path: Path) -> None:
    target = tmp_path / "page.md"
    assert page.write([MEASURED], target) == ["fabric_rpc: surprise"]
    text = target.read_text()
    assert "| RPC, 1 caller | 30 | 100 | calls/s | 0.3 | 0.5, **missed** | bare |" in text
    assert "| quick | 90 | 100 | calls/s | 0.9 | 0.5, reached | bare |" in text
    assert f"**RPC, 1 caller.** {page.explained('fabric_rpc')['RPC']}" in text
    assert "**surprise.** Missed, and nobody has explained it yet." in text
    assert "ms from size 10 to 1,000: asked" in text
    assert "](page/fabric_rpc-growth.svg)" in text


def test_a_failed_run_is_shown_as_failed_with_what_it_had(tmp_path: Path) -> None:
    failed = replace(MEASURED, failed="Traceback\nRuntimeError: no", figures=FIGURES[:1])
    page.write([failed], tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "**This run failed.**" in text
    assert "RuntimeError: no" in text
    assert "| RPC, 1 caller |" in text


def test_the_same_figures_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        page.write([MEASURED], tmp_path / name / "page.md")
    files = [sorted((tmp_path / name).rglob("*.*")) for name in ("one", "two")]
    assert [each.read_bytes() for each in files[0]] == [each.read_bytes() for each in files[1]]


@pytest.mark.parametrize("part", PARTS)
def test_every_part_says_what_it_measures_and_can_explain_itself(part: str) -> None:
    assert all(len(text) > 80 for text in page.explained(part).values())
    assert page.said(part)


def test_the_page_in_the_docs_is_made_of_what_was_kept(tmp_path: Path) -> None:
    folder = ROOT / "docs" / "benchmarks" / "raw"
    found = [each for part in PARTS if (each := kept(part, folder)) is not None]
    assert found
    page.write(found, tmp_path / "benchmarks.md")
    assert (tmp_path / "benchmarks.md").read_text() == (ROOT / "docs/benchmarks.md").read_text()


def test_the_quick_parts_are_parts() -> None:
    assert set(QUICK) <= set(PARTS)
