"""`accord community`, run in this process against real nodes in temporary homes."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accord.cli import app
from accord.kernel.errors import AccordError

Accord = Callable[..., "Said"]
ONE_SIGNATURE = {"min_signatures_to_revoke": 1, "min_signatures_to_demote": 1}


@dataclass(frozen=True)
class Said:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        assert self.out.count("\n") == 1
        return json.loads(self.out)

    def refuses(self, *parts: str, code: int = 1) -> None:
        """Assert that it failed, with these words, and printed no result."""
        assert self.code == code, self
        assert self.out == ""
        for part in parts:
            assert part in self.err


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "alice"


def say(home: Path, *words: str, stdin: str | None = None) -> Said:
    result = CliRunner().invoke(app, ["community", *words, "--home", str(home)], input=stdin)
    if isinstance(result.exception, AccordError):
        return Said(1, result.stdout, f"error: {result.exception}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Said(result.exit_code, result.stdout, result.stderr)


@pytest.fixture
def accord(home: Path) -> Accord:
    """Run `accord community ...` in this process, on one home unless another is named."""

    def run(*words: str, at: Path = home, stdin: str | None = None) -> Said:
        return say(at, *words, stdin=stdin)

    return run


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    home = tmp_path_factory.mktemp("founded") / "home"
    policy = json.dumps(ONE_SIGNATURE)
    return home, say(home, "create", "Our street", "--policy", "-", "--json", stdin=policy).json


@pytest.fixture
def street(founded: tuple[Path, dict[str, Any]], home: Path) -> dict[str, Any]:
    """A community that one signature is enough for."""
    shutil.copytree(founded[0], home)
    return founded[1]
