"""Whether a process that works for long leaks: samples of it, and a pure judgement.

Memory is judged by the median of the slopes between all samples; what is counted (files, sockets,
tasks) must come back to what it was.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

import psutil

_TASKS = re.compile(r"^accord_tasks (\S+)$", re.MULTILINE)
# The connections of a store are opened when they are first needed, and kept.
_STORE_FILES = (".db", ".db-wal", ".db-shm")


@dataclass(frozen=True, slots=True)
class Sample:
    """A process at one moment.

    Attributes:
        at: When, in seconds.
        memory: Bytes that are resident.
        files: Open descriptors, but for those of stores.
        sockets: Those of them that are connections or listen.
        children: Processes that it has started.
        tasks: Tasks on its loop.
    """

    at: float
    memory: int
    files: int
    sockets: int
    children: int
    tasks: int


COUNTED = ("files", "sockets", "children", "tasks")


def sample(at: float, process: psutil.Process, metrics: str) -> Sample:
    """Look at a station from outside, and at what it tells of its inside.

    Args:
        at: When.
        process: It.
        metrics: What it answers at `/metrics`.
    """
    stores = sum(each.path.endswith(_STORE_FILES) for each in process.open_files())
    found = _TASKS.search(metrics)
    return Sample(
        at,
        process.memory_info().rss,
        process.num_fds() - stores,
        len(process.net_connections()),
        len(process.children(recursive=True)),
        int(float(found[1])) if found else 0,
    )


def growth(samples: Sequence[Sample]) -> float:
    """By how many bytes memory grew from the first sample to the last, less its noise."""
    slopes = [
        (later.memory - earlier.memory) / (later.at - earlier.at)
        for earlier, later in combinations(samples, 2)
        if later.at > earlier.at
    ]
    return median(slopes) * (samples[-1].at - samples[0].at) if slopes else 0.0


def leaks(
    samples: Sequence[Sample], before: Sample, after: Sample, *, allowed_bytes: int
) -> Iterator[str]:
    """Say everything that has leaked, each as a sentence.

    Args:
        samples: Of the time under load, warm already.
        before: The process at rest, warm already.
        after: The process at rest again.
        allowed_bytes: By how much memory may grow meanwhile: with what it is given to keep.
    """
    grown = growth(samples)
    if grown > allowed_bytes:
        minutes = (samples[-1].at - samples[0].at) / 60
        yield f"memory grew by {grown / 1e6:.1f} MB in {minutes:.1f} minutes"
    for name in COUNTED:
        was, now = getattr(before, name), getattr(after, name)
        if now > was:
            yield f"there are {now} {name} where there were {was}"
