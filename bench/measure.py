"""Timing two things against each other on a noisy machine."""

import time
from collections.abc import Callable

_BATCH_SECONDS = 0.004
_ROUNDS = 25


def rates(ours: Callable[[], object], baseline: Callable[[], object]) -> tuple[float, float]:
    """Calls per second of both, taken in turns so that noise meets both alike.

    The best batch of each counts: interference only ever slows a batch down.
    """
    counts = (_calibrate(ours), _calibrate(baseline))
    best = [float("inf"), float("inf")]
    for _ in range(_ROUNDS):
        for index, call in enumerate((ours, baseline)):
            best[index] = min(best[index], _batch(call, counts[index]) / counts[index])
    return 1 / best[0], 1 / best[1]


def _calibrate(call: Callable[[], object]) -> int:
    call()  # the first one builds what all others share
    count = 1
    while (elapsed := _batch(call, count)) < _BATCH_SECONDS:
        count = max(count * 2, int(count * _BATCH_SECONDS / max(elapsed, 1e-9)))
    return count


def _batch(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - start
