"""Arrays of one length, put together item by item.

Needed where items must differ from each other, and where several arrays are wanted.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from accord.kernel import canonical

if TYPE_CHECKING:
    from accord.contracts.containment.arrays import Arrays, Counts, Sort

MAX_PICKED: Final = 2000
"""Items of an array, and ways to choose them, when they are chosen one by one."""

_Option: TypeAlias = "tuple[Any, bytes, Sort]"


class Pick:
    """Arrays of one length, item by item from what is supplied.

    Attributes:
        exact: Nothing was left out, so that finding no array means that there is none.
    """

    def __init__(self, arrays: "Arrays", length: int, want: int) -> None:
        self._arrays = arrays
        self._length = length
        self._unique = arrays.shape.unique is True
        self._alone = want == 1
        self._ask = max(length, want)
        self.exact = True
        self._options: list[list[_Option]] = []

    def arrays(self) -> Iterator[list[Any]]:
        """Every array that can be put together."""
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
