"""Child processes that are killed: nothing printed is lost, nothing started is left."""

import textwrap
from pathlib import Path

import psutil
import pytest

from accord.testing import HarnessError
from accord.testing.processes import family, python_child, survivors

COUNTING = """
import itertools
for number in itertools.count():
    print(number)
"""
WITH_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid)
time.sleep(600)
"""


def test_a_child_is_killed_at_a_line_and_what_it_printed_before_is_kept() -> None:
    with python_child("-c", COUNTING) as child:
        read = [child.read_line() for _ in range(100)]
        read += child.kill()
        child.assert_gone()
    assert [int(line) for line in read] == list(range(len(read)))
    assert not psutil.pid_exists(child.pid)


def test_a_torn_last_line_is_not_taken_for_a_line() -> None:
    code = "import sys, time; sys.stdout.write('whole\\nwhole\\ntorn'); time.sleep(600)"
    with python_child("-c", code) as child:
        assert child.read_line() == "whole"
        assert child.kill() == ["whole"]


def test_a_script_and_its_environment_reach_the_child(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(sys.argv[1], os.environ['COLOUR']); sys.exit(3)")
    with python_child(str(script), "argument", env={"COLOUR": "green"}) as child:
        assert child.read_line() == "argument green"
        assert child.wait() == 3
        child.assert_gone()


def test_a_child_can_be_asked_to_end() -> None:
    code = textwrap.dedent("""
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        print("ready")
        time.sleep(600)
    """)
    with python_child("-c", code) as child:
        child.read_line()
        child.terminate()
        assert child.wait() == 7


def test_an_orphan_is_found_and_ends_with_the_block() -> None:
    with python_child("-c", WITH_CHILD) as child:
        orphan = psutil.Process(int(child.read_line()))
        child.kill()
        assert orphan.is_running()
        with pytest.raises(AssertionError, match=str(orphan.pid)):
            child.assert_gone(within=0)
    assert not survivors([orphan], within=0)


def test_a_child_ends_with_its_block_even_when_the_test_fails() -> None:
    started: list[psutil.Process] = []

    def failing_test() -> None:
        with python_child("-c", WITH_CHILD) as child:
            child.read_line()
            started.extend(family(child.pid))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()
    assert len(started) == 2
    assert not survivors(started, within=0)


def test_a_child_that_fails_shows_its_standard_error() -> None:
    with (
        python_child("-c", "raise SystemExit('out of luck')") as child,
        pytest.raises(HarnessError, match=r"ended its output.*\n *out of luck"),
    ):
        child.read_line()


def test_a_child_that_stays_silent_or_does_not_end_is_reported() -> None:
    with python_child("-c", "import time; time.sleep(600)") as child:
        with pytest.raises(HarnessError, match="printed no line within"):
            child.read_line(within=0.05)
        with pytest.raises(HarnessError, match="did not end within"):
            child.wait(within=0.05)
