"""A whole generated history: every stream, from one seed, in memory or as it is made.

Owns how large each stream is and which chance it has. The same arguments give the same records.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from random import Random
from typing import Final

from blake3 import blake3

from accord.pipeline.errors import PipelineError
from accord.pipeline.generate import bus, contracts, misdeeds, stories
from accord.pipeline.generate.arrivals import Arrivals, Draft, Portion, Store
from accord.pipeline.generate.chronicle import key_of
from accord.pipeline.generate.community import Story, life, size_of
from accord.pipeline.generate.faults import Plan, check_plan, planned
from accord.pipeline.generate.relay import Traffic
from accord.pipeline.generate.truth import Truth
from accord.pipeline.generate.village import Village
from accord.pipeline.streams import (
    BUS_CALLS,
    COMMUNITY_EVENTS,
    CONTRACTS_CALLS,
    CONTRACTS_HISTORY,
    RELAY_DECISIONS,
    RELAY_DELIVERIES,
    RELAY_INBOUND,
    RELAY_OUTBOUND,
    STREAMS,
)
from accord.storage import Entry

LEAST: Final = 400
"""How many events a history has at least: fewer have no room for what happens in it."""

ROWS: Final = 20_000
"""How many records a segment has, unless it is said."""

MAIN: Final = "Elm Street"
SECOND: Final = "Mill Lane"

_RELAY: Final = (RELAY_INBOUND, RELAY_DECISIONS, RELAY_DELIVERIES, RELAY_OUTBOUND)

_STORIES: Final[Mapping[str, Story]] = {
    "backdated": stories.backdated,
    "mutual.loser": stories.mutual,
    "equivocation": stories.equivocation,
    "gap.lamport": stories.far_ahead,
    "forged.signature": stories.forged_signature,
    "forged.shadow": stories.forged_shadow,
    "forged.cosigner": stories.forged_cosigner,
    "broken.form": stories.broken_form,
    "broken.data": stories.broken_data,
    "broken.redacted": stories.broken_redacted,
    **{f"refused.{rule}": misdeeds.misdeed(rule) for rule in misdeeds.RULES},
}


class Generated:
    """A history that is made while it is read, once.

    Args:
        events: How many events of the community stand in it, about; the other streams are in
            proportion.
        seed: From which all of it follows.
        faults: How often each kind of fault is planted; by default `planned(events)`, and `{}`
            for an honest history.
        streams: Which streams are made; what is in one does not depend on the others.
        rows: How many records are given at once.

    Attributes:
        truth: What is true of it; whole once everything was read.

    Raises:
        PipelineError: There cannot be such a history.
    """

    def __init__(
        self,
        events: int,
        seed: int,
        *,
        faults: Plan | None = None,
        streams: Collection[str] = STREAMS,
        rows: int = ROWS,
    ) -> None:
        if events < LEAST:
            raise PipelineError(
                f"a history of {events} events is too short", mend=f"ask for {LEAST} at least"
            )
        if unknown := sorted(set(streams) - set(STREAMS)):
            raise PipelineError(f"there is no stream {unknown[0]!r}")
        if rows < 1:
            raise PipelineError("a segment has at least one record")
        self.truth = Truth(events, seed)
        self._events = events
        self._seed = seed
        self._plan = planned(events) if faults is None else dict(faults)
        check_plan(self._plan)
        self._streams = streams
        self._rows = rows
        self._villages = [
            Village(seed, name, self._chance(f"village {name}")) for name in (MAIN, SECOND)
        ]
        self.truth.communities = [each.chronicle.community_id for each in self._villages]

    @property
    def size(self) -> int:
        """About how many records there will be."""
        sizes = {stream: self._count(stream) for stream in self._streams}
        return sum(sizes.values())

    def portions(self) -> Iterator[Portion]:
        """Every record, in the order of landing, as segments of one stream and store."""
        for stream, make in self._makers().items():
            if stream in self._streams:
                arrivals = self._arrivals(stream)
                for draft in make():
                    yield from arrivals.take(draft)
                yield from arrivals.close()
        yield from self._relay()

    def records(self) -> list[Entry]:
        """Every record, in memory."""
        return [entry for portion in self.portions() for entry in portion.entries]

    def _makers(self) -> Mapping[str, Callable[[], Iterator[Draft]]]:
        return {
            CONTRACTS_HISTORY: lambda: iter(self._history()),
            CONTRACTS_CALLS: lambda: contracts.calls(
                self._count(CONTRACTS_CALLS), self._plan, self._chance("contracts")
            ),
            COMMUNITY_EVENTS: self._community,
            BUS_CALLS: lambda: bus.calls(
                self._count(BUS_CALLS),
                self.truth.communities[0],
                self._callers(),
                self._chance("bus"),
            ),
        }

    def _history(self) -> list[Draft]:
        return contracts.history(self._plan, self._chance("history"))

    def _community(self) -> Iterator[Draft]:
        chance = self._chance("stories")
        turns = [
            (chance.randrange(self._events // 10, self._events), kind)
            for kind in _STORIES
            for _ in range(self._plan.get(kind, 0))
        ]
        told = [(turn, _STORIES[kind]) for turn, kind in sorted(turns)]
        main, second = self._villages
        yield from life(main, self._events, told)
        yield from life(second, self._events // 20)

    def _relay(self) -> Iterator[Portion]:
        wanted = {each: self._arrivals(each) for each in _RELAY if each in self._streams}
        if wanted:
            traffic = Traffic(self._chance("relay"))
            for stream, draft in traffic.run(self._count(RELAY_INBOUND)):
                if stream in wanted:
                    yield from wanted[stream].take(draft)
        for arrivals in wanted.values():
            yield from arrivals.close()

    def _arrivals(self, stream: str) -> Arrivals:
        return Arrivals(
            stream,
            self._stores(stream),
            plan=self._plan,
            count=self._count(stream),
            rows=self._rows,
            chance=self._chance(f"arrivals {stream}"),
            truth=self.truth,
        )

    def _count(self, stream: str) -> int:
        """How many honest records a stream has at least."""
        if stream == COMMUNITY_EVENTS:
            return self._events + self._events // 20
        if stream == CONTRACTS_HISTORY:
            return sum(draft.kind is None for draft in self._history())
        shares = {RELAY_DELIVERIES: 6, RELAY_OUTBOUND: 12}
        return self._events // shares.get(stream, 4)

    def _callers(self) -> list[str]:
        names = ["founder", *(f"member {number}" for number in range(1, size_of(self._events)))]
        return [key_of(self._seed, MAIN, name).id for name in names]

    def _stores(self, stream: str) -> tuple[Store, Store]:
        plane = stream.partition(".")[0]
        found = [key_of(self._seed, "device", plane, each).id for each in ("first", "second")]
        first, second = (
            Store(f"{plane}-{blake3(each.encode()).hexdigest()[:8]}", each) for each in found
        )
        return first, second

    def _chance(self, name: str) -> Random:
        return Random(f"{self._seed}/{name}")  # noqa: S311 - a seed must give it again
