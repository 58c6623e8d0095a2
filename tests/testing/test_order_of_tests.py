"""Workers begin with what takes long, and what is dear to start is started by one of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import ROOT, dealt


@dataclass(frozen=True)
class Item:
    path: Path
    number: int
    fixturenames: tuple[str, ...] = ()


def several(file: str, count: int, *fixtures: str) -> list[Any]:
    return [Item(ROOT / "tests" / file, number, fixtures) for number in range(count)]


def stretches(items: list[Any], workers: int) -> list[list[Any]]:
    """What `worksteal` gives each worker at first."""
    given, left = [], list(items)
    for number in range(workers):
        size = len(left) // (workers - number)
        given.append(left[:size])
        left = left[size:]
    return given


ITEMS = [
    *several("authority/quick.py", 30),
    *several("e2e/one.py", 3),
    *several("e2e/two.py", 2),
    *several("pipeline/tables.py", 5, "tmp_path", "spark"),
    *several("relay/quick.py", 40),
    *several("whatif/tables.py", 1, "spark"),
]


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_every_worker_begins_with_its_part_of_what_takes_long(workers: int) -> None:
    order: list[Any] = list(dealt(ITEMS, workers))
    assert sorted(map(str, order)) == sorted(map(str, ITEMS))
    first, *others = stretches(order, workers)
    assert [item for item in order if "spark" in item.fixturenames] == first[:6]
    files = [several("e2e/one.py", 3), several("e2e/two.py", 2)]
    for number, file in enumerate(files):
        share = others[number % len(others)]
        assert file == [item for item in share if item in file]
    quick = [item.path.name == "quick.py" for share in others for item in share]
    assert quick.index(True) >= 2
    for share in (first, *others):
        kinds = [item.path.name == "quick.py" for item in share]
        assert kinds == sorted(kinds), "something slow comes after something quick"


def test_one_worker_keeps_the_order() -> None:
    assert dealt(ITEMS, 1) == ITEMS
