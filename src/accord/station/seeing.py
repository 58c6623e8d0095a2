"""Looks at this machine and hands what it saw to the rules of `station.conditions`.

Owns what is looked at, and how. It changes nothing that stays: the one file that it writes, to see
how the disk does, is gone when it returns.
"""

import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import accord
from accord.capabilities import models
from accord.capabilities.settings import ModelsSettings
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError
from accord.station import conditions
from accord.station.conditions import Check, Probe, Times
from accord.station.home import Home

_SPARK = ("pyspark", "pyarrow", "pandas", "fsspec")


def probe(folder: Path) -> Probe:
    """Write a small file to the folder, bring it to the disk, and remove it."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".accord-probe-") as file:
        file.write(b"accord")
        file.flush()
        now = time.time()
        before = time.monotonic()
        os.fsync(file.fileno())
        took = time.monotonic() - before
        skew = os.fstat(file.fileno()).st_mtime - now
    return Probe(filesystem(folder), free(folder), took, skew)


def free(folder: Path) -> int:
    """Bytes that this user may still write there."""
    return shutil.disk_usage(folder).free


def filesystem(folder: Path) -> str:
    """The kind of filesystem that a folder is on; empty where the system does not tell."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        return ""
    resolved = folder.resolve()
    covering = [(len(at), kind) for _, at, kind, *_ in mounts if resolved.is_relative_to(at)]
    # The longest mount point counts, and of two at one place the later one.
    return max(covering, key=lambda found: found[0])[1] if covering else ""


def times(home: Home, clock: Clock, *, skew: float = 0.0, step: float = 0.0) -> Times:
    """How the clock stands to what is dated on this machine."""
    now = clock.now()
    age = now - Path(accord.__file__).stat().st_mtime
    return Times(age, now - max(_dates(home), default=now), skew, step)


def languages(settings: ModelsSettings) -> Iterator[Check]:
    """The models that the settings want to run in this process."""
    folder = models.weights_folder(settings.weights)
    if settings.embedded and not settings.servers:
        trouble: AccordError | None = None
        try:
            models.library("xllamacpp")
            models.language_models(folder)
        except AccordError as error:
            trouble = error
        loss = "questions are answered with passages alone, by no words of a model"
        yield conditions.model("language model", loss, trouble)
    trouble = None
    try:
        models.library("onnxruntime")
        models.embedding_model(folder)
    except AccordError as error:
        trouble = error
    yield conditions.model("embedding model", "searches go by words, not by meaning", trouble)


def spark() -> Check:
    """The pipeline's libraries."""
    return conditions.spark([name for name in _SPARK if importlib.util.find_spec(name) is None])


def _dates(home: Home) -> Iterator[float]:
    """When each store was last written."""
    for file in home.stores.glob("*.db*"):
        with suppress(FileNotFoundError):  # a journal file that has just been let go of
            yield file.stat().st_mtime
