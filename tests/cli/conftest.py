import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def accord(tmp_path: Path) -> Run:
    """Run `accord` with a home of its own that does not exist yet."""

    def run(
        *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "accord.cli", *arguments],
            input=stdin,
            env={**os.environ, "ACCORD_HOME": str(tmp_path / "home"), **(env or {})},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
