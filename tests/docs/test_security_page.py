"""The security page names tests that exist, and the lock is what it says."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)))
_ROW = re.compile(r"^\| (?!threat|asset|---)(.+) \|$", re.MULTILINE)


def test_every_test_that_the_page_names_exists() -> None:
    assert len(NAMED) > 80
    missing = [f"{file}::{name}" for file, name in NAMED if name not in _tests(ROOT / file)]
    assert not missing


def test_every_threat_is_stopped_by_something_that_a_test_shows() -> None:
    borders = PAGE.partition("## The borders")[2].partition("## What is not protected")[0]
    rows = [row.split(" | ") for row in _ROW.findall(borders)]
    assert len(rows) > 50
    for threat, stopped, shown in rows:
        assert stopped, threat
        assert re.fullmatch(r"(`tests/[\w/]+\.py::test_\w+`(, )?)+", shown), threat


def test_the_short_page_and_the_long_one_lead_to_each_other() -> None:
    assert "(docs/security.md)" in (ROOT / "SECURITY.md").read_text()
    assert "(../SECURITY.md)" in PAGE


@pytest.mark.parametrize(
    "lock", ["requirements.lock", "requirements-dev.lock", "assets.lock", "bootstrap.lock"]
)
def test_everything_that_is_installed_has_its_hash_in_the_lock(lock: str) -> None:
    entries = re.split(r"^(?=[\w.-]+==)", (ROOT / lock).read_text(), flags=re.MULTILINE)
    named = [entry for entry in entries if re.match(r"[\w.-]+==", entry)]
    assert named
    assert all("--hash=sha256:" in entry for entry in named)
    makefile = (ROOT / "Makefile").read_text()
    installs = re.findall(r".*--requirement \S+\.lock", makefile)
    assert any(lock in each for each in installs)
    assert all("--require-hashes" in each for each in installs)


def _tests(file: Path) -> set[str]:
    if not file.exists():
        return set()
    defined = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, defined)}
