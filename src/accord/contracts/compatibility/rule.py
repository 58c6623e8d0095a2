"""What a rule of comparison is."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from accord.contracts.compatibility.comparison import Comparison
from accord.contracts.compatibility.report import Category
from accord.contracts.compatibility.settings import Path
from accord.contracts.containment import ABSENT


class Found(NamedTuple):
    """One place at which a rule has something to say."""

    path: Path
    message: str
    witness: Any = ABSENT


Handler = Callable[[Comparison], Iterator[Found]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of change, and what it means.

    Attributes:
        id: Stable, and what a change names.
        category: What such a change means.
        purpose: One sentence for a person.
        handler: Yields the places where there is such a change.
    """

    id: str
    category: Category
    purpose: str
    handler: Handler
