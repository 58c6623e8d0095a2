"""What every test shares: where known answers lie, and that nothing skips unnoticed."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest

ROOT = Path(__file__).parent.parent
VECTORS = Path(os.environ.get("ACCORD_VECTORS") or ROOT.parent / "shared" / "vectors")
ALLOWED_SKIPS = Path(__file__).parent / "allowed_skips.txt"

# A station of a test belongs nowhere, and has no authority or concierge, unless the test says so.
for name, value in {
    "ACCORD_COMMUNITY__FOUND": "",
    "ACCORD_AUTHORITY__ENABLED": "false",
    "ACCORD_CONCIERGE__ENABLED": "false",
}.items():
    os.environ.setdefault(name, value)

hypothesis.settings.register_profile("accord", deadline=None, print_blob=True, max_examples=40)
hypothesis.settings.register_profile("long", deadline=None, print_blob=True, max_examples=300)
hypothesis.settings.load_profile("long" if "--long" in sys.argv else "accord")

skips = pytest.StashKey[list[tuple[str, str]]]()


@pytest.fixture(scope="session")
def vectors() -> Callable[[str], Any]:
    """Read a file of known answers by its path below the vectors folder."""

    def read(name: str) -> Any:
        if not VECTORS.is_dir():
            pytest.skip(f"no known answers at {VECTORS}; set ACCORD_VECTORS")
        return json.loads((VECTORS / name).read_bytes())

    return read


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only-allowed-skips",
        action="store_true",
        help="fail when a test skips that tests/allowed_skips.txt does not name",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[skips] = []
    config.pluginmanager.register(_Skips(config))


class _Skips:
    """Hears the report of every test, also of those that another process ran."""

    def __init__(self, config: pytest.Config) -> None:
        self._seen = config.stash[skips]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple):
            self._seen.append((report.nodeid, str(report.longrepr[2])))


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        raise pytest.UsageError(f"{report.nodeid} skips as a whole; let its tests skip one by one")


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> Any:
    yield
    for nodeid, reason in config.stash[skips]:
        mark = "allowed" if _is_allowed(nodeid) else "NOT ALLOWED"
        terminalreporter.write_line(f"skip ({mark}): {nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--only-allowed-skips") and not all(
        _is_allowed(nodeid) for nodeid, _ in session.config.stash[skips]
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _is_allowed(nodeid: str) -> bool:
    lines = ALLOWED_SKIPS.read_text().splitlines()
    allowed = {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}
    return nodeid.partition("[")[0] in allowed
