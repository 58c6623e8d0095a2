"""Which documents a question is asked of, by what is known about them.

Pure. A filter is a JSON object; a document has to fit every member of it:

- `language`: its language, where `de` fits `de-AT`, too;
- `min_x`, `max_x` with a number: its metadata has a number `x` that is not less, or not more;
- any other `x`: its metadata has that very `x`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Filter: TypeAlias = Mapping[str, Any]

_LANGUAGE: Final = "language"


class Columns:
    """What is known of many documents, one column for each thing.

    A column keeps each value once, so that a filter looks at values and not at documents.

    Args:
        languages: Their languages, where they are known.
        metadata: What else is known of each.
    """

    def __init__(
        self, languages: Sequence[str | None], metadata: Sequence[Mapping[str, Any]]
    ) -> None:
        self._languages = languages
        self._metadata = metadata
        self._names = {name for each in metadata for name in each} | {_LANGUAGE}
        self._columns: dict[str, tuple[list[Any], NDArray[np.int64]]] = {}

    def fitting(self, wanted: Filter) -> NDArray[np.bool_]:
        """Which documents fit a filter."""
        mask = np.ones(len(self._metadata), np.bool_)
        for key, value in wanted.items():
            name, test = _test(key, value)
            if name not in self._names:
                return np.zeros_like(mask)
            values, codes = self._column(name)
            mask &= np.array([test(each) for each in values], np.bool_)[codes]
        return mask

    def _column(self, name: str) -> tuple[list[Any], NDArray[np.int64]]:
        """The different values of a column, and which of them each document has."""
        known = self._columns.get(name)
        if known is None:
            held = (
                self._languages
                if name == _LANGUAGE
                else [each.get(name) for each in self._metadata]
            )
            # `1 == True` is none of JSON's truths.
            places: dict[tuple[bool, Any], int] = {}
            codes = [
                places.setdefault((isinstance(each, bool), each), len(places)) for each in held
            ]
            known = [each for _, each in places], np.array(codes, np.int64)
            self._columns[name] = known
        return known


def _test(key: str, value: Any) -> tuple[str, Callable[[Any], bool]]:
    """Which column a member of a filter looks at, and what it wants there."""
    if key == _LANGUAGE:
        asked = str(value).lower()
        return key, lambda held: f"{held or ''}-".lower().startswith(f"{asked}-")
    if key.startswith("min_") and _is_number(value):
        return key[4:], lambda held: _is_number(held) and bool(held >= value)
    if key.startswith("max_") and _is_number(value):
        return key[4:], lambda held: _is_number(held) and bool(held <= value)
    return key, lambda held: held == value and isinstance(held, bool) == isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
