"""What every test shares: where known answers lie, their order, that nothing skips unnoticed."""

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent
VECTORS = Path(os.environ.get("ACCORD_VECTORS") or ROOT.parent / "shared" / "vectors")
ALLOWED_SKIPS = Path(__file__).parent / "allowed_skips.txt"

# Hundreds of tests start a station or a command as a process: it reads what another has compiled.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Programs that run for seconds are done before a compiler has made anything quicker.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
gc.set_threshold(50_000)

# A station of a test belongs nowhere, and has no authority or concierge, unless the test says so.
for name, value in {
    "ACCORD_COMMUNITY__FOUND": "",
    "ACCORD_AUTHORITY__ENABLED": "false",
    "ACCORD_CONCIERGE__ENABLED": "false",
}.items():
    os.environ.setdefault(name, value)

hypothesis.settings.register_profile("accord", deadline=None, print_blob=True, max_examples=40)
hypothesis.settings.register_profile("long", deadline=None, print_blob=True, max_examples=300)

DEAR = {"spark": 0, "bare": 0, "synapse": 1}
"""Fixtures that take long to start, and the number of the worker that has all their tests."""
SLOW = ("concierge", "docs", "e2e", "examples", "faults", "pipeline", "telemetry", "upgrade")
"""Folders with tests that take many seconds."""

skips = pytest.StashKey[list[tuple[str, str]]]()


@pytest.fixture(scope="session")
def vectors() -> Callable[[str], Any]:
    """Read a file of known answers by its path below the vectors folder."""

    def read(name: str) -> Any:
        if not VECTORS.is_dir():
            pytest.skip(f"no known answers at {VECTORS}; set ACCORD_VECTORS")
        return json.loads((VECTORS / name).read_bytes())

    return read


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    """A session on two cores of this machine: one JVM for all tests that a process runs."""
    from tests.pipeline.folders import BRISK

    from accord.pipeline.session import open_session

    folder = tmp_path_factory.mktemp("pipeline-session")
    with open_session(folder, "local[2]", conf=BRISK) as session:
        yield session


@pytest.fixture(scope="session")
def npm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the lock of the TypeScript client names, in pytest's own cache."""
    from filelock import FileLock

    from accord.testing import HarnessError, nodejs

    package = ROOT / "packages/typescript"
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    home = cache.mkdir("accord-typescript") if cache else tmp_path_factory.mktemp("typescript")
    try:
        with FileLock(home.with_suffix(".lock")):
            return nodejs.install_packages(
                (package / "package.json").read_bytes(),
                home,
                lock=(package / "package-lock.json").read_bytes(),
            )
    except HarnessError as error:
        pytest.skip(f"no compiler: {error}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--only-allowed-skips",
        action="store_true",
        help="fail when a test skips that tests/allowed_skips.txt does not name",
    )
    parser.addoption(
        "--tier",
        choices=("fast", "slow", "all"),
        default="all",
        help="run only the tests that are marked slow, or only the others",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (tier := config.getoption("--tier")) != "all":
        chosen = [i for i in items if (i.get_closest_marker("slow") is None) == (tier == "fast")]
        config.hook.pytest_deselected(items=[i for i in items if i not in chosen])
        items[:] = chosen
    given: dict[str, int] = getattr(config, "workerinput", {})
    items[:] = dealt(items, given.get("workercount", 1))


def dealt(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """The order in which every worker begins with what takes long, and ends with what does not.

    `worksteal` gives each worker an equal stretch of the tests, and whoever has done theirs takes
    from the end of another's.
    """
    if workers == 1:
        return list(items)
    first: list[list[pytest.Item]] = [[] for _ in range(workers)]
    slow, rest = [], []
    for item in items:
        if dear := DEAR.keys() & getattr(item, "fixturenames", ()):
            first[min(DEAR[name] for name in dear)].append(item)
        elif item.path.relative_to(ROOT).parts[1] in SLOW:
            slow.append(item)
        else:
            rest.append(item)
    # The tests of a file share what it sets up. The first worker has Spark, which is enough.
    for number, (_, file) in enumerate(groupby(slow, key=lambda item: item.path)):
        first[1 + number % (workers - 1)].extend(file)
    order: list[pytest.Item] = []
    for number, share in enumerate(first):
        more = max(0, (len(items) - len(order)) // (workers - number) - len(share))
        order += share + rest[:more]
        rest = rest[more:]
    return order


def pytest_configure(config: pytest.Config) -> None:
    # By the option and not by `sys.argv`, which workers of xdist do not share.
    hypothesis.settings.load_profile("long" if config.getoption("--long") else "accord")
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
