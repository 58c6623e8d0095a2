"""`accord top`, and the status line of `accord up` on a terminal."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from accord.testing.processes import python_child

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]

ALONE = {
    "ACCORD_AUTHORITY__ENABLED": "false",
    "ACCORD_RELAY__ENABLED": "false",
    "ACCORD_PIPELINE__EXPORT_SECONDS": "0",
}


def test_top_reads_a_running_station_and_says_when_there_is_none(
    tmp_path: Path, accord: Run
) -> None:
    home = str(tmp_path / "home")
    with python_child(
        "-m", "accord.cli", "up", "--home", home, "--port", "0", "--json", env=ALONE
    ) as child:
        child.read_line()
        asked = ["top", "--home", home, "--interval", "0.2"]
        result = accord(*asked, "--times", "2", "--json")
        readings = [json.loads(line) for line in result.stdout.splitlines()]
        text = accord(*asked).stdout
        child.terminate()
        assert child.wait() == 0
    assert len(readings) == 2
    assert {each["name"] for each in readings[0]["planes"]} >= {"community", "console"}
    memory = {each["name"]: each["value"] for each in readings[1]["figures"]}["memory"]
    assert memory > 10_000_000
    assert "calls in progress" in text
    alone = accord(*asked)
    assert alone.returncode == 1
    assert "start it with `accord up" in alone.stderr


def on_a_terminal(arguments: list[str], until: bytes) -> tuple[bytes, int]:
    """Run a command on a terminal and interrupt it once it printed `until`."""
    child, terminal = pty.fork()
    if not child:
        os.execve(sys.executable, [sys.executable, *arguments], {**os.environ, **ALONE})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 160, 0, 0))
    printed, deadline, interrupted = b"", time.monotonic() + 60, False
    try:
        while time.monotonic() < deadline:
            if not select.select([terminal], [], [], 0.1)[0]:
                continue
            try:
                part = os.read(terminal, 1 << 16)
            except OSError:
                break
            printed += part
            if until in printed and not interrupted:
                os.kill(child, signal.SIGINT)
                interrupted = True
    finally:
        if not interrupted:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(terminal)
    return printed, os.waitstatus_to_exitcode(status)


def test_on_a_terminal_up_shows_a_status_line_and_no_log_lines(tmp_path: Path) -> None:
    home = tmp_path / "home"
    up = ["-m", "accord.cli", "up", "--home", str(home), "--port", "0"]
    printed, code = on_a_terminal(up, b"Three things to try")
    assert code == 0
    text = printed.decode()
    assert "\u25cf community" in text
    assert "station is up" not in text
    # The log file has everything all the same.
    assert "station is up" in (home / "logs" / "station.log").read_text()


def test_a_log_format_in_the_settings_brings_the_lines_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORD_LOG__FORMAT", "json")
    up = ["-m", "accord.cli", "up", "--home", str(tmp_path / "home"), "--port", "0"]
    printed, code = on_a_terminal(up, b"Three things to try")
    assert code == 0
    assert '"event": "station is up"' in printed.decode()
