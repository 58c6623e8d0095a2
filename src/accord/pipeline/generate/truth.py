"""The truth about a generated history: what every stream must come to, and every planted fault.

Owns the form of `truth.json`. It is told by whoever lands a record, and reads nothing back.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from accord.pipeline.generate.faults import KINDS, Fate

VERSION: Final = 1


class Planted(NamedTuple):
    """A planted record, by its place in the landing.

    Attributes:
        digest: As the checked layer has it (hex); None where the record is never accepted.
    """

    source: str
    seq: int
    id: str
    digest: str | None


@dataclass(slots=True)
class Terms:
    """The terms of a stream's account."""

    landed: int = 0
    accepted: int = 0
    quarantined: int = 0
    duplicates: int = 0


@dataclass(slots=True)
class Truth:
    """What is true of a history; whole once its last record has been taken.

    Attributes:
        events: How many events of the community were asked for.
        seed: From which all of it follows.
        communities: The ids of the communities; the faults are in the first.
        streams: The terms of each stream.
        planted: Every planted record by kind and stream.
    """

    events: int
    seed: int
    communities: list[str] = field(default_factory=list)
    streams: dict[str, Terms] = field(default_factory=lambda: defaultdict(Terms))
    planted: dict[tuple[str, str], list[Planted]] = field(default_factory=lambda: defaultdict(list))

    def landed(self, stream: str, kind: str | None, record: Planted | None) -> None:
        """A record has landed; `kind` and `record` tell of the fault that it is, if it is one."""
        terms = self.streams[stream]
        terms.landed += 1
        fate = Fate.STANDS if kind is None else KINDS[kind].fate
        if fate is Fate.QUARANTINED:
            terms.quarantined += 1
        elif fate is Fate.DUPLICATE:
            terms.duplicates += 1
        else:
            terms.accepted += 1
        if kind is not None and record is not None:
            self.planted[kind, stream].append(record)

    def of(self, *fates: Fate, stream: str | None = None) -> dict[str, str | None]:
        """The rule of every planted record of these fates, by its digest or else its id."""
        return {
            each.digest or each.id: KINDS[kind].rule
            for (kind, where), records in self.planted.items()
            if KINDS[kind].fate in fates and stream in (None, where)
            for each in records
        }

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "version": VERSION,
            "events": self.events,
            "seed": self.seed,
            "communities": self.communities,
            "streams": {
                stream: {name: getattr(terms, name) for name in Terms.__slots__}
                for stream, terms in sorted(self.streams.items())
            },
            "faults": [
                {
                    "kind": kind,
                    "stream": stream,
                    "fate": KINDS[kind].fate.value,
                    "rule": KINDS[kind].rule,
                    "sentence": KINDS[kind].sentence,
                    "count": len(records),
                    "records": [each._asdict() for each in records],
                }
                for (kind, stream), records in sorted(self.planted.items())
            ],
        }
