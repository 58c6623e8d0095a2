"""Solves conjunctions about an array: items by position, counted items, length, uniqueness.

Items are classified by the counted claims they keep. A search over lengths and counts finds the
shortest array, exactly: positions after the last one that a claim names are all alike. If items
must be unique, or several arrays are wanted, items are chosen one by one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from accord.contracts.containment.budget import EMPTY, MAX_LENGTH, UNKNOWN, Supply
from accord.contracts.containment.formulas import (
    Claim,
    Count,
    EveryItem,
    Literal,
    Size,
    SomeItem,
    Unique,
    lower_end,
)
from accord.kernel import canonical

if TYPE_CHECKING:
    from accord.contracts.containment.solver import Solver


MAX_PICKED: Final = 2000
"""Items of an array, and ways to choose them, when they are chosen one by one."""

_Option: TypeAlias = "tuple[Any, bytes, Sort]"


class ArrayPicker:
    """Builds arrays of one length item by item; if `exact`, no array was left out."""

    def __init__(self, arrays: "Arrays", length: int, want: int) -> None:
        self._arrays = arrays
        self._length = length
        self._unique = arrays.shape.unique is True
        self._alone = want == 1
        self._ask = max(length, want)
        self.exact = True
        self._options: list[list[_Option]] = []

    def arrays(self) -> Iterator[list[Any]]:
        """Every array that can be built."""
        arrays, length = self._arrays, self._length
        if length > MAX_PICKED:
            self.exact = False
            return
        self._options = [self._supplied(p) for p in range(min(length, arrays.knee + 1))]
        items: list[Any] = []
        keys: list[bytes] = []
        counts = [(0,) * len(arrays.shape.counters)]
        nexts = [0]
        steps = 0
        while nexts:
            position = len(items)
            if position == length:
                if arrays.is_enough(counts[-1]):
                    yield list(items)
            elif (chosen := self._advance(position, nexts, keys, counts)) is not None:
                value, key, after = chosen
                items.append(value)
                keys.append(key)
                counts.append(after)
                follows = self._unique and self._alone and position >= arrays.knee
                nexts.append(nexts[-1] if follows else 0)
                continue
            steps += 1
            if steps > MAX_PICKED:
                arrays.solver.budget.doubt("too many ways to choose the items of an array")
                self.exact = False
                return
            nexts.pop()
            counts.pop()
            if items:
                items.pop()
                keys.pop()

    def _advance(
        self, position: int, nexts: list[int], keys: list[bytes], counts: "list[Counts]"
    ) -> "tuple[Any, bytes, Counts] | None":
        """The next item to try at this position, if there is one."""
        options = self._options[min(position, self._arrays.knee)]
        missing = self._length - position
        alike = self._unique and self._alone and position >= self._arrays.knee
        while nexts[-1] < len(options):
            if alike and len(options) - nexts[-1] < missing:
                return None  # positions that are alike are filled in the order of the options
            value, key, choice = options[nexts[-1]]
            nexts[-1] += 1
            self._arrays.solver.budget.spend(1, "items")
            if self._unique and key in keys:
                continue
            after = self._arrays.count(counts[-1], position, choice)
            if after is not None:
                return value, key, after
        return None

    def _supplied(self, position: int) -> list[_Option]:
        options = []
        for choice in self._arrays.sorts(position):
            found = self._arrays.solver.supply(choice.claims, self._ask)
            plenty = self._unique and self._alone and len(found.values) >= self._length
            self.exact = self.exact and (found.complete or plenty)
            options += [(value, canonical.encode(value), choice) for value in found.values]
        return options


MAX_COUNTED: Final = 6
"""How many counted claims are told apart at once."""

Claims: TypeAlias = frozenset[Claim]
Counts: TypeAlias = tuple[int, ...]
_State: TypeAlias = tuple[int, Counts]


@dataclass(frozen=True, slots=True)
class Counter:
    """From `start` on, between `low` and `high` items keep the claim."""

    claim: Claim
    start: int
    low: int
    high: int | None

    def add(self, count: int, position: int, *, kept: bool) -> int | None:
        """The count after an item, capped where more does not matter; None if it is too high."""
        if not kept or position < self.start:
            return count
        if self.high is None:
            return min(count + 1, self.low)
        return count + 1 if count < self.high else None


@dataclass(slots=True)
class ArrayShape:
    """The literals of a branch, combined."""

    low: int = 0
    high: int | None = None
    at: dict[int, set[Claim]] = field(default_factory=dict)
    since: list[tuple[int, Claim]] = field(default_factory=list)
    counters: list[Counter] = field(default_factory=list)
    unique: bool | None = None

    @property
    def knee(self) -> int:
        """The position from which on all positions are alike."""
        starts = [start for start, _ in self.since] + [c.start for c in self.counters]
        return max([0, *starts, *(position + 1 for position in self.at)])

    def claims(self, position: int) -> Claims:
        """The claims on the item at a position."""
        tail = (claim for start, claim in self.since if start <= position)
        return frozenset((*self.at.get(position, ()), *tail))


@dataclass(frozen=True, slots=True)
class Sort:
    """A class of items: the claims they keep, and which of those are counted."""

    claims: Claims
    kept: tuple[bool, ...]


def read_shape(literals: tuple[Literal, ...]) -> ArrayShape:
    """Combine the literals."""
    shape = ArrayShape()
    counters: dict[tuple[Claim, int], Counter] = {}

    def count(claim: Claim, start: int, low: int, high: int | None) -> None:
        old = counters.get((claim, start))
        if old is not None:
            low = max(low, old.low)
            high = lower_end(high, old.high)
        counters[claim, start] = Counter(claim, start, low, high)

    for literal in literals:
        match literal:
            case Size(low, high):
                shape.low = max(shape.low, low)
                shape.high = lower_end(shape.high, high)
            case EveryItem(claim, start, None):
                shape.since.append((start, claim))
            case EveryItem(claim, start, _):
                shape.at.setdefault(start, set()).add(claim)
            case SomeItem(claim, start, None):
                count(claim, start, 1, None)
            case SomeItem(claim, start, _):
                shape.at.setdefault(start, set()).add(claim)
                shape.low = max(shape.low, start + 1)
            case Count(claim, low, high):
                count(claim, 0, low, high)
            case Unique(holds):
                shape.unique = holds  # both at once have closed the branch
    shape.counters = list(counters.values())
    return shape


def supply(solver: "Solver", literals: tuple[Literal, ...], want: int) -> Supply:
    """Arrays that keep every literal."""
    shape = read_shape(literals)
    if shape.high is not None and shape.high < shape.low:
        return EMPTY
    if any(c.high is not None and c.high < c.low for c in shape.counters):
        return EMPTY
    if len(shape.counters) > MAX_COUNTED:
        solver.budget.doubt(f"more than {MAX_COUNTED} counted claims on one array")
        del shape.counters[MAX_COUNTED:]
        rest = Arrays(solver, shape).any()
        return rest if rest.is_empty else Supply(rest.values, complete=False)
    arrays = Arrays(solver, shape)
    if shape.unique is False:
        return arrays.with_equal_items()
    if shape.unique and any(map(arrays.lacks, shape.counters)):
        return EMPTY
    first = arrays.any()
    if shape.unique and not first.is_empty and not _are_distinct(first.values):
        first = arrays.chosen(1)
    return first if want == 1 or first.is_empty else arrays.chosen(want)


def _are_distinct(arrays: tuple[Any, ...]) -> bool:
    return all(len({canonical.encode(item) for item in items}) == len(items) for items in arrays)


class Arrays:
    """The arrays of one shape."""

    def __init__(self, solver: "Solver", shape: ArrayShape) -> None:
        self.solver = solver
        self.shape = shape
        self.knee = shape.knee
        self._choices: dict[Claims, list[Sort]] = {}

    def lacks(self, counter: Counter) -> bool:
        """Whether there are fewer different items than the counter requires."""
        found = self.solver.supply(frozenset((counter.claim,)), min(counter.low, MAX_PICKED))
        return found.complete and len(found.values) < counter.low

    def any(self, fixed: tuple[Sort, int, int] | None = None) -> Supply:
        """A shortest array; `fixed` puts the same item at two positions."""
        shape, spend = self.shape, self.solver.budget.spend
        low = shape.low if fixed is None else max(shape.low, fixed[2] + 1)
        alike = max(self.knee, low, 0 if fixed is None else fixed[2] + 1)
        start: _State = (0, (0,) * len(shape.counters))
        origin: dict[_State, tuple[_State, Sort]] = {}
        layer, length = [start], 0
        while layer:
            for state in layer:
                if length >= low and self.is_enough(state[1]):
                    return self._build(origin, state, length)
            if length == shape.high:
                return EMPTY
            if length >= MAX_LENGTH:
                self.solver.budget.doubt(f"arrays of more than {MAX_LENGTH} items")
                return UNKNOWN
            following: dict[_State, None] = {}
            choices = self.sorts(length)
            if fixed is not None and length in fixed[1:]:
                choices = [fixed[0]]
            for state in layer:
                spend(1 + len(choices), "arrays")
                for choice in choices:
                    counts = self.count(state[1], length, choice)
                    if counts is None:
                        continue
                    target = (min(length + 1, alike), counts)
                    if target not in origin and target != state:
                        # Below the knee a state names its length, so each is reached once.
                        origin[target] = (state, choice)
                        following[target] = None
            layer, length = list(following), length + 1
        return EMPTY

    def with_equal_items(self) -> Supply:
        """A shortest array in which two items are equal."""
        shape, unknown = self.shape, False
        last = self.knee + 2 if shape.high is None else min(self.knee + 2, shape.high)
        for second in range(1, last):
            for first in range(second):
                both = shape.claims(first) | shape.claims(second)
                for choice in self._sorts(both):
                    found = self.any((choice, first, second))
                    if found.values:
                        return Supply(found.values, complete=False)
                    unknown = unknown or not found.complete
        return UNKNOWN if unknown else EMPTY

    def chosen(self, want: int) -> Supply:
        """Several arrays, or one with unique items, item by item."""
        shape = self.shape
        last = max(shape.low, self.knee + sum(counter.low for counter in shape.counters))
        # A longer array of unique items stays one when an item that no count needs is left out,
        # so for a single array no greater length has to be tried.
        alone = want == 1
        last += 0 if alone else want
        capped = shape.high is not None and shape.high <= last
        if shape.high is not None:
            last = min(last, shape.high)
        found: dict[bytes, Any] = {}
        exact = capped or alone
        for length in range(shape.low, last + 1):
            pick = ArrayPicker(self, length, want)
            for array in pick.arrays():
                found.setdefault(canonical.encode(array), array)
                if len(found) >= want:
                    return Supply(tuple(found.values()), complete=False)
            exact = exact and pick.exact
        return Supply(tuple(found.values()), complete=exact)

    def sorts(self, position: int) -> list[Sort]:
        """The classes of items that are possible at a position."""
        return self._sorts(self.shape.claims(min(position, self.knee)))

    def _sorts(self, base: Claims) -> list[Sort]:
        if base not in self._choices:
            sorts = [Sort(base, ())]
            for counter in self.shape.counters:
                split = []
                for sort in sorts:
                    for kept in (False, True):
                        claims = sort.claims | {counter.claim if kept else -counter.claim}
                        if not self.solver.refutes(claims):
                            split.append(Sort(claims, (*sort.kept, kept)))
                sorts = split
            if not self.shape.counters and self.solver.refutes(base):
                sorts = []
            self._choices[base] = sorts
        return self._choices[base]

    def count(self, counts: Counts, position: int, choice: Sort) -> Counts | None:
        """The counts after an item of this class; None if one is too high."""
        after = []
        for counter, count, kept in zip(self.shape.counters, counts, choice.kept, strict=True):
            added = counter.add(count, position, kept=kept)
            if added is None:
                return None
            after.append(added)
        return tuple(after)

    def is_enough(self, counts: Counts) -> bool:
        """Whether every count is high enough."""
        pairs = zip(self.shape.counters, counts, strict=True)
        return all(count >= counter.low for counter, count in pairs)

    def _build(
        self, origin: dict[_State, tuple[_State, Sort]], state: _State, length: int
    ) -> Supply:
        items: list[Any] = []
        for _ in range(length):
            state, choice = origin[state]
            values = self.solver.supply(choice.claims, 1).values
            if not values:
                return UNKNOWN
            items.append(values[0])
        return Supply((items[::-1],), complete=length == self.shape.high == 0)
