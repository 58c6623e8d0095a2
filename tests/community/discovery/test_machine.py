"""Nodes of one user on one machine know of each other's ports, and of nobody else's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from accord.community.peers import announced, announced_ports
from accord.testing.processes import python_child

LISTENING = """
import sys, time
from accord.community.peers import announced
with announced(7123):
    print("up", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path / "accord-nodes"


def test_a_port_is_known_for_as_long_as_a_node_listens(folder: Path) -> None:
    assert announced_ports() == frozenset()
    with announced(7080), announced(7082):
        assert announced_ports() == {7080, 7082}
        with announced(7080):  # at another address of this machine
            assert announced_ports() == {7080, 7082}
    assert announced_ports() == frozenset()
    assert list(folder.iterdir()) == []


def test_a_node_of_another_process_is_known_until_it_is_killed(folder: Path) -> None:
    with python_child("-c", LISTENING) as child:
        assert child.read_line(within=60) == "up"
        assert announced_ports() == {7123}
        child.kill()
        assert (folder / "7123").exists()
        assert announced_ports() == frozenset()
        assert not (folder / "7123").exists()


def test_a_file_that_nobody_holds_or_that_is_no_port_says_nothing(folder: Path) -> None:
    with announced(7080):
        (folder / "7081").touch()
        (folder / "name").touch()
        (folder / "7083").symlink_to(folder / "7080")
        assert announced_ports() == {7080}


def test_a_folder_that_others_may_write_to_is_not_believed(folder: Path) -> None:
    with announced(7080):
        folder.chmod(0o777)
        assert announced_ports() == frozenset()
        folder.chmod(0o700)
        assert announced_ports() == {7080}


def test_a_node_starts_where_the_folder_cannot_be_had(folder: Path) -> None:
    folder.write_text("a file")
    with announced(7080):
        assert announced_ports() == frozenset()


def test_without_a_folder_of_the_session_the_temporary_one_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    program = (
        "from accord.community.peers import announced, announced_ports\n"
        "with announced(7080): print(sorted(announced_ports()))"
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[7080]"
    assert (tmp_path / f"accord-nodes-{os.getuid()}").is_dir()
