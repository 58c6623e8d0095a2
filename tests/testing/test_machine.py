"""The two commands, and `.ci/run`: nothing comes from the machine by accident."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.conftest import ROOT

INSTALLED = ["requirements.lock", "assets.lock", "--editable ."]
# Of each plane, the file with tests on real servers that `make test` has.
PLANES = {
    "authority": "authority/test_nats_authority.py",
    "bridge": "bridge/test_bridge_plane.py",
    "community": "e2e/test_two_nodes.py",
    "concierge": "concierge/test_concierge_station.py",
    "console": "console/test_console_in_a_browser.py",
    "fabric": "fabric/test_fabric_real.py",
    "pipeline": "pipeline/test_what_a_station_wrote.py",
    "relay": "e2e/test_relay_station.py",
}


def program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


def test_ci_finds_programs_that_it_named_and_no_others(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    tools = tmp_path / "tools"
    for name in ("node", "caddy", "promtool", "psql", "chromium", "java"):
        program(tools / name, "exit 1\n")
    told = 'echo "$1 $HOME $JAVA_HOME" >>"$TOLD"; ls "$PATH" >"$TOLD.path"; ls -A "$HOME" >>"$TOLD"'
    program(tools / "make", told)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "JAVA_HOME": "/opt/java",
        "TOLD": str(tmp_path / "told"),
    }
    subprocess.run(["bash", tmp_path / ".ci" / "run"], env=environment, check=True)
    lines = (tmp_path / "told").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["check", "test", "test-all"]
    home = {tuple(line.split()[1:]) for line in lines}
    assert len(home) == 1
    assert home != {(os.environ.get("HOME"),)}
    found = set((tmp_path / "told.path").read_text().split())
    assert found >= {"python3", "make", "git", "sh", "ls", "cat"}
    assert not found & {each.name for each in tools.iterdir() if each.name != "make"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `make up` reads, and an environment whose programs only tell how they were called."""
    for name in ("Makefile", "pyproject.toml", *(each.name for each in ROOT.glob("*.lock"))):
        shutil.copy(ROOT / name, tmp_path / name)
    binaries = tmp_path / ".venv" / "bin"
    told = f'echo "${{0##*/}} $*" >>"{tmp_path}/told"\n'
    program(binaries / "python", told + 'case "$*" in *bootstrap.lock*) exit 1 ;; esac\n')
    program(binaries / "accord", told)
    return tmp_path


def make(folder: Path, goal: str) -> None:
    # Without what a `make` around these tests was told.
    outer = {"ARGS", "MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS"}
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    words = ["make", "-C", str(folder), goal]
    subprocess.run(words, env=environment, capture_output=True, check=True)


@pytest.mark.parametrize("installer", ["uv", "python"])
def test_make_up_installs_what_a_station_runs_on_by_uv_or_else_by_pip(
    checkout: Path, installer: str
) -> None:
    if installer == "uv":
        shutil.copy(checkout / ".venv" / "bin" / "accord", checkout / ".venv" / "bin" / "uv")
    for _ in range(2):  # the second time nothing is installed
        make(checkout, "up")
    told = (checkout / "told").read_text().splitlines()
    assert told.count("accord up") == 2
    installs = [line for line in told if " install " in line and "bootstrap" not in line]
    assert len(installs) == len(INSTALLED)
    for line, what in zip(installs, INSTALLED, strict=True):
        assert line.startswith(f"{installer} ")
        assert line.endswith(what)


def test_make_test_adds_what_tests_need(checkout: Path) -> None:
    make(checkout, "test")
    told = (checkout / "told").read_text()
    assert told.index(" requirements.lock") < told.index(" requirements-dev.lock")
    assert told.rstrip().endswith("--tier fast")


def test_the_quick_tests_have_every_plane_on_real_servers() -> None:
    for plane, name in PLANES.items():
        assert "mark.slow" not in (ROOT / "tests" / name).read_text(), plane
