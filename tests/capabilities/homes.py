"""A home with a community, and the commands of one noun on it, run in this process."""

import json
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from accord.capabilities.file import Blobs
from accord.cli import app as everything
from accord.kernel.errors import AccordError


class Home:
    """A home, and the commands on it."""

    def __init__(self, home: Path, noun: typer.Typer = everything) -> None:
        self.home = home
        self._noun = noun

    def __call__(self, *words: str, app: typer.Typer | None = None) -> Any:
        result = CliRunner().invoke(app or self._noun, [*words, "--home", str(self.home)])
        if isinstance(result.exception, AccordError):
            return f"error: {result.exception}"
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        if result.exit_code:
            return f"error: {result.stderr}"
        return json.loads(result.stdout) if "--json" in words else result.stdout

    @property
    def blobs(self) -> Blobs:
        return Blobs(self.home / "blobs")
