"""What is to be done about what the other side said; the same for both sides."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from math import ceil, log
from typing import Final

from accord.community.reconcile.index import END, START
from accord.community.reconcile.message import Mode, Range
from accord.community.reconcile.salted import Salted

LEAF: Final = 12
"""A range of so many items is listed, not split."""

_AIM: Final = 8
_FIRST_PARTS: Final = 16
_WIDEST: Final = 128
_NARROWEST: Final = 4
_SPLITS: Final = 256


class Do(Enum):
    """What is to be done about a range."""

    PROBE = "send the fingerprint"
    LIST = "list the items"
    SETTLE = "they listed theirs: send what they lack, want what we lack"
    SEND = "send what they want"
    WANT = "want what we lack"


@dataclass(frozen=True, slots=True)
class Task:
    """Something to do about a range, with the short ids that it is about."""

    lower: bytes
    upper: bytes
    do: Do
    ids: tuple[bytes, ...] = ()


def first_tasks(salted: Salted) -> Iterator[Task]:
    """How a session begins: few ranges, so that equal logs say little."""
    count = salted.rank(END)
    if count <= LEAF:
        yield Task(START, END, Do.LIST)
    else:
        parts = min(_FIRST_PARTS, ceil(count / _AIM))
        yield from _split(salted, START, END, (0, count), parts)


def tasks_from(salted: Salted, ranges: Iterable[Range]) -> Iterator[Task]:
    """What is to be done about what the other side said."""
    relevant: list[tuple[Range, int, int]] = []
    differing = stop = 0
    for each in ranges:
        start, stop = stop, salted.rank(each.upper)
        if each.mode is Mode.FINGERPRINT:
            if each.fingerprint == salted.fingerprint(start, stop):
                continue
            differing += 1
        if each.mode is not Mode.SETTLED:
            relevant.append((each, start, stop))
    widest = max(_NARROWEST, min(_WIDEST, _SPLITS // max(differing, 1)))
    for (lower, upper, mode, _, ids), start, stop in relevant:
        if mode is not Mode.FINGERPRINT:
            yield Task(lower, upper, Do.SETTLE if mode is Mode.ITEMS else Do.SEND, ids)
        elif stop - start <= LEAF:
            yield Task(lower, upper, Do.LIST)
        else:
            parts = _parts(stop - start, widest)
            yield from _split(salted, lower, upper, (start, stop), parts)


def _parts(count: int, widest: int) -> int:
    """Into how many parts to cut a range.

    Few steps are better than many, and even steps are the cheapest: the number is the one that
    comes down to a short list in as few steps as `widest` allows.
    """
    lists = max(count / _AIM, 2)
    steps = ceil(log(lists, widest))
    parts: float = lists ** (1 / steps)
    return ceil(parts)


def _split(
    salted: Salted, lower: bytes, upper: bytes, ranks: tuple[int, int], parts: int
) -> Iterator[Task]:
    start, count = ranks[0], ranks[1] - ranks[0]
    for part in range(1, parts):
        bound = salted.separator(start + count * part // parts, count // parts // 4)
        yield Task(lower, bound, Do.PROBE)
        lower = bound
    yield Task(lower, upper, Do.PROBE)
