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

from accord.cli.top import Figure, Reading, Samples, figures, format_figure
from accord.testing.processes import python_child

Run = Callable[..., "subprocess.CompletedProcess[str]"]

ALONE = {
    "ACCORD_AUTHORITY__ENABLED": "false",
    "ACCORD_RELAY__ENABLED": "false",
    "ACCORD_PIPELINE__EXPORT_SECONDS": "0",
}


def reading(at: float, **values: float) -> Reading:
    return Reading(at, {name: {(("x", "y"),): value} for name, value in values.items()})


def named(shown: list[Figure], name: str) -> float:
    [found] = [each.value for each in shown if each.name == name]
    return found


def test_a_rate_is_what_a_counter_grew_by_in_a_second() -> None:
    shown = figures(
        reading(10, accord_relay_events_total=100), reading(14, accord_relay_events_total=120)
    )
    assert named(shown, "messages received") == 5


def test_a_counter_that_was_restarted_counts_from_zero() -> None:
    shown = figures(
        reading(10, accord_relay_events_total=100), reading(14, accord_relay_events_total=8)
    )
    assert named(shown, "messages received") == 2


def test_what_the_station_does_not_show_is_left_out() -> None:
    shown = figures(reading(0), reading(1, accord_bus_in_hand=3))
    assert [(each.name, each.value) for each in shown] == [("calls in progress", 3)]


def test_labels_choose_the_series_that_are_added() -> None:
    tokens: dict[tuple[tuple[str, str], ...], float] = {
        (("direction", "out"), ("model", "a")): 4.0,
        (("direction", "out"), ("model", "b")): 6.0,
        (("direction", "in"), ("model", "a")): 90.0,
    }
    samples: Samples = {"accord_llm_tokens_total": tokens}
    shown = figures(Reading(0, {}), Reading(2, samples))
    assert named(shown, "tokens generated") == 5


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "/s", "0/s"),
        (2.25, "/s", "2.2/s"),
        (12_345.6, "", "12,346"),
        (512, "bytes", "512 B"),
        (5 * 1024**2, "bytes", "5.0 MiB"),
        (3000 * 1024**3, "bytes", "3000.0 GiB"),
        (0.256, "cores", "26 %"),
    ],
)
def test_a_figure_is_short(value: float, unit: str, text: str) -> None:
    assert format_figure(Figure("p", "n", value, unit)) == text


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
