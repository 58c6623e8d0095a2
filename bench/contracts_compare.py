"""Comparing contracts beside reading the newer one's text with the standard library."""

import copy
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from accord.contracts import compare
from accord.contracts.compatibility import proofs
from bench.contracts import manifest
from bench.figure import Figure

SIZES = {"3 KB": 3_000, "30 KB": 30_000, "400 KB": 400_000}
GOAL_MS = 5.0
EXPLAINED: Final = {
    "compare 30 KB, a tenth needs a new member": "Six payloads break, and each gets a proof with a "
    "witness that the validator has checked; nothing is remembered from the comparison before. "
    "Reading both contracts and judging all else takes 2.3 ms of processor time, the proofs 3.4 "
    "ms: 0.5 ms each for making claims of both schemas, searching and checking the witness, and "
    "once 0.4 ms for the shortest text of the pattern that they share. An answer without a proof "
    "would be faster, and could be wrong. Contracts that stay compatible take 1.5 and 2.3 ms."
}
_ROUNDS = 40


def run() -> Iterator[Figure]:
    """Measure every part."""
    yield from compare_figures()


def compare_figures() -> Iterator[Figure]:
    """Comparisons a second at the median, nothing remembered from the one before.

    The goal of the 30 KB rows is 5 ms; it is given as the ratio that this is of the baseline.
    """
    for label, size in SIZES.items():
        old = manifest(size)
        for change, new in _changes(old):
            text = json.dumps(new)
            ours = _median(partial(_compare, old, new))
            base = _median(partial(json.loads, text))
            goal = base * 1000 / GOAL_MS if label == "30 KB" else None
            yield Figure(
                f"compare {label}, {change}",
                "calls/s",
                1 / ours,
                1 / base,
                "json.loads of one of them",
                None if goal is None else round(goal, 3),
            )


def _changes(old: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "equal", copy.deepcopy(old)
    every_tenth = list(old["schemas"])[::10]
    new = copy.deepcopy(old)
    for name in every_tenth:
        new["schemas"][name]["properties"]["added"] = {"type": "string"}
    yield "a tenth has a new member", new
    new = copy.deepcopy(old)
    for name in every_tenth:
        new["schemas"][name]["required"].append("added")
        new["schemas"][name]["properties"]["added"] = {"type": "string"}
    yield "a tenth needs a new member", new


def _compare(old: dict[str, Any], new: dict[str, Any]) -> None:
    proofs.clear_proof_cache()
    compare(old, new)


def _median(call: Callable[[], object]) -> float:
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
