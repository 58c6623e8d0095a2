"""The previous version of Accord: its code out of the history, and its stations as processes."""

import io
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import httpx
import pytest

from accord.testing.processes import Child, python_child

ROOT = Path(__file__).parents[2]
STORY = str(Path(__file__).with_name("station_story.py"))

VERSION = "0.1.0"
TAG = "v0.1.0"
COMMIT = "ce008a6"
"""Where the tag is, for a clone that has no tags."""

_ENVIRONMENT = {
    "ACCORD_STATION__PORT": "0",
    "ACCORD_COMMUNITY__PORT": "0",
    "ACCORD_COMMUNITY__FOUND": "Home",
    "ACCORD_AUTHORITY__ENABLED": "true",
    "ACCORD_AUTHORITY__NATS_PORT": "0",
    "ACCORD_BRIDGE__ENABLED": "false",
    "ACCORD_CONCIERGE__ENABLED": "false",
    "ACCORD_PIPELINE__EXPORT_SECONDS": "0",
    # Version 0.1.0 waits up to 10 seconds for NATS to confirm that it listens no more, which is as
    # long as a plane may take; once in some dozens of ends on a busy machine it was cut off there.
    "ACCORD_STATION__DRAIN_SECONDS": "40",
}


@dataclass(frozen=True)
class Code:
    """One version's code, and how it is run."""

    source: Path

    @property
    def env(self) -> dict[str, str]:
        return {**_ENVIRONMENT, "PYTHONPATH": str(self.source)}

    @contextmanager
    def up(self, home: Path) -> Iterator[tuple[Child, str]]:
        """A station of this version with every plane; it ends cleanly with the block."""
        words = ("-m", "accord.cli", "up", "--home", str(home), "--json")
        with python_child(*words, env=self.env) as child:
            address = json.loads(child.read_line(within=120))["address"]
            with httpx.Client(base_url=address, timeout=20) as http:
                deadline = time.monotonic() + 120
                while (answer := http.get("/readyz")).status_code != 200:
                    assert time.monotonic() < deadline, answer.text
                    time.sleep(0.05)
            yield child, address
            child.terminate()
            status = child.wait()
            assert status == 0, _last_words(status, home)

    def tell(self, home: Path, address: str, *verbs: str) -> list[Any]:
        """What `station_story` tells when this version runs it, for each verb."""
        with python_child(STORY, str(home), address, *verbs, env=self.env) as child:
            said = [json.loads(child.read_line(within=300)) for _ in verbs]
            assert child.wait() == 0
        return said


def _last_words(status: int, home: Path) -> str:
    """How a station ended, and what it logged of its end: a plane that failed says so there."""
    logged = (home / "logs" / "station.log").read_text().splitlines()
    stops = ("planes drain", "stopping all planes")  # as earlier versions log it, and as we do
    begun = max((n for n, line in enumerate(logged) if any(s in line for s in stops)), default=0)
    failed = [line for line in logged[:begun] if '"level": "error"' in line]
    return "\n".join([f"the station ended with {status}; it logged:", *failed, *logged[begun:]])


NOW = Code(ROOT / "src")


def previous(folder: Path) -> Code:
    """The previous version's code, taken out of the history into a folder; skips without one."""
    for name in (TAG, COMMIT):
        found = subprocess.run(
            ["git", "-C", str(ROOT), "archive", "--format=zip", name, "src"],
            capture_output=True,
            check=False,
        )
        if found.returncode == 0:
            with ZipFile(io.BytesIO(found.stdout)) as packed:
                packed.extractall(folder)
            return Code(folder / "src")
    pytest.skip(f"the history of this checkout does not reach back to {TAG}")
