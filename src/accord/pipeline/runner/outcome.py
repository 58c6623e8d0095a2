"""What a run came to, as it is told to people, programs and later runs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from accord.pipeline.definitions.accounting import Account


@dataclass(frozen=True, slots=True)
class Spoilt:
    """A segment that is not what its name tells, and was left out as a whole."""

    stream: str
    segment: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did.

    Attributes:
        version: The version of gold that stands now; None where none was ever published.
        published: Whether this run published it.
        admitted: How many segments were new.
        spoilt: The segments that were left out.
        accounts: What became of every record that ever landed, by stream.
        rows: Records that went through each layer in this run.
        seconds: How long each stage took.
        built: The gold tables that were built; the others were carried over.
    """

    version: str | None
    published: bool
    admitted: int = 0
    spoilt: Sequence[Spoilt] = ()
    accounts: Sequence[Account] = ()
    rows: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    built: Sequence[str] = ()

    def payload(self) -> dict[str, Any]:
        """The outcome as JSON."""
        return asdict(self)
