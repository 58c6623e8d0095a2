"""A generated history: every stream from one seed, in slices or landed in a folder.

The same arguments give the same records. The ground truth is written last, so a folder that has one
holds a complete history.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, Final

from blake3 import blake3

from accord.kernel import canonical
from accord.kernel.files import write_private
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout
from accord.pipeline.generate import community, community_faults, contracts
from accord.pipeline.generate.community import (
    REVOKED,
    GeneratedCommunity,
    Story,
    community_events,
    derive_key,
    size_of,
)
from accord.pipeline.generate.records import (
    Arrivals,
    FaultPlan,
    GroundTruth,
    RecordDraft,
    RecordSource,
    SegmentRecords,
    check_plan,
    plan_faults,
)
from accord.pipeline.generate.relay import RelayTraffic, unlinked_counts
from accord.pipeline.landing import Landing, pack
from accord.pipeline.rules.streams import (
    BUS_CALLS,
    COMMUNITY_EVENTS,
    CONTRACTS_CALLS,
    CONTRACTS_HISTORY,
    RELAY_DECISIONS,
    RELAY_DELIVERIES,
    RELAY_INBOUND,
    RELAY_OUTBOUND,
    RELAY_UNLINKED,
    STREAMS,
)
from accord.storage import JournalEntry

LEAST_EVENTS: Final = 400
"""The least number of events that a history needs."""

SEGMENT_ROWS: Final = 20_000
"""The default number of records of a segment."""

MAIN: Final = "Elm Street"
SECOND: Final = "Mill Lane"

_RELAY: Final = (RELAY_INBOUND, RELAY_DECISIONS, RELAY_DELIVERIES, RELAY_OUTBOUND)

_STORIES: Final[Mapping[str, Story]] = {
    "backdated": community_faults.backdated,
    "mutual.loser": community_faults.mutual_revocation,
    "equivocation": community_faults.equivocation,
    "gap.lamport": community_faults.far_ahead,
    "forged.signature": community_faults.forged_signature,
    "forged.shadow": community_faults.forged_shadow,
    "forged.cosigner": community_faults.forged_cosigner,
    "broken.form": community_faults.broken_form,
    "broken.data": community_faults.broken_data,
    "broken.redacted": community_faults.broken_redacted,
    **{
        f"refused.{rule}": community_faults.refused_event(rule)
        for rule in community_faults.REFUSED_RULES
    },
}


class GeneratedHistory:
    """A history that is generated while it is read, once.

    `events` is the approximate number of valid community events; other streams are in proportion,
    and do not depend on each other. `faults` says how often each kind is planted, by default
    `plan_faults(events)`. A portion has at most `rows` records. `truth` is complete when everything
    was read.
    """

    def __init__(
        self,
        events: int,
        seed: int,
        *,
        faults: FaultPlan | None = None,
        streams: Collection[str] = STREAMS,
        rows: int = SEGMENT_ROWS,
    ) -> None:
        if events < LEAST_EVENTS:
            raise PipelineError(
                f"a history of {events} events is too short",
                mend=f"ask for {LEAST_EVENTS} at least",
            )
        if unknown := sorted(set(streams) - set(STREAMS)):
            raise PipelineError(f"there is no stream {unknown[0]!r}")
        if rows < 1:
            raise PipelineError("a segment has at least one record")
        self.truth = GroundTruth(events, seed)
        self._events = events
        self._seed = seed
        self._plan = plan_faults(events) if faults is None else dict(faults)
        check_plan(self._plan)
        self._streams = streams
        self._rows = rows
        self._communities = [
            GeneratedCommunity(seed, name, self._chance(f"village {name}"))
            for name in (MAIN, SECOND)
        ]
        self.truth.communities = [each.writer.community_id for each in self._communities]

    @property
    def size(self) -> int:
        """The approximate number of records."""
        sizes = {stream: self._count(stream) for stream in self._streams}
        return sum(sizes.values())

    def portions(self) -> Iterator[SegmentRecords]:
        """Every record, in the order of landing, as segments of one stream and store."""
        for stream, make in self._makers().items():
            if stream in self._streams:
                arrivals = self._arrivals(stream)
                for draft in make():
                    yield from arrivals.take(draft)
                yield from arrivals.close()
        yield from self._relay()

    def records(self) -> list[JournalEntry]:
        """Every record, in memory."""
        return [entry for portion in self.portions() for entry in portion.entries]

    def _makers(self) -> Mapping[str, Callable[[], Iterator[RecordDraft]]]:
        return {
            CONTRACTS_HISTORY: lambda: iter(self._history()),
            CONTRACTS_CALLS: lambda: contracts.contract_calls(
                self._count(CONTRACTS_CALLS), self._plan, self._chance("contracts")
            ),
            COMMUNITY_EVENTS: self._community,
            BUS_CALLS: lambda: community.bus_calls(
                self._count(BUS_CALLS),
                self.truth.communities[0],
                self._callers(),
                self._chance("bus"),
            ),
            RELAY_UNLINKED: lambda: unlinked_counts(
                self._count(RELAY_UNLINKED), self._chance("unlinked")
            ),
        }

    def _history(self) -> list[RecordDraft]:
        return contracts.contract_history(self._plan, self._chance("history"))

    def _community(self) -> Iterator[RecordDraft]:
        chance = self._chance("stories")
        turns = [
            (chance.randrange(self._events // 10, self._events), kind)
            for kind in _STORIES
            for _ in range(self._plan.get(kind, 0))
        ]
        stories = [(turn, _STORIES[kind]) for turn, kind in sorted(turns)]
        main, second = self._communities
        yield from community_events(main, self._events, stories)
        yield from community_events(second, self._events // 20)

    def _relay(self) -> Iterator[SegmentRecords]:
        wanted = {each: self._arrivals(each) for each in _RELAY if each in self._streams}
        if wanted:
            traffic = RelayTraffic(self._chance("relay"))
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
        """The least number of honest records of a stream."""
        if stream == COMMUNITY_EVENTS:
            return self._events + self._events // 20
        if stream == CONTRACTS_HISTORY:
            return sum(draft.kind is None for draft in self._history())
        shares = {RELAY_DELIVERIES: 6, RELAY_OUTBOUND: 12}
        return self._events // shares.get(stream, 4)

    def _callers(self) -> list[str]:
        names = ["founder", *(f"member {number}" for number in range(1, size_of(self._events)))]
        return [derive_key(self._seed, MAIN, name).id for name in names]

    def _stores(self, stream: str) -> tuple[RecordSource, RecordSource]:
        plane = stream.partition(".")[0]
        found = [derive_key(self._seed, "device", plane, each).id for each in ("first", "second")]
        first, second = (
            RecordSource(f"{plane}-{blake3(each.encode()).hexdigest()[:8]}", each) for each in found
        )
        return first, second

    def _chance(self, name: str) -> Random:
        return Random(f"{self._seed}/{name}")  # noqa: S311 - a seed must give it again


TRUTH_FILE: Final = "truth.json"
"""The file's name in a pipeline's folder."""


def land(landing: Landing, portions: Iterable[SegmentRecords]) -> int:
    """Land each portion as a segment, and return the number of records; raises as `Landing.put`."""
    landed = 0
    for portion in portions:
        landing.put(*pack(portion.store.name, portion.entries))
        landed += len(portion.entries)
    return landed


def generate(
    folder: Path,
    *,
    events: int,
    seed: int,
    faults: FaultPlan | None = None,
    streams: Collection[str] = STREAMS,
    rows: int = SEGMENT_ROWS,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> GroundTruth:
    """Generate a history into the landing of a pipeline's folder, and `truth.json` beside it.

    See `GeneratedHistory`; `progress` is called with the landed and the approximate total records.
    Raises PipelineError if an argument is out of range, something has landed there already, or the
    folder cannot be written.
    """
    made = GeneratedHistory(events, seed, faults=faults, streams=streams, rows=rows)
    landing, truth = Landing(Layout(folder).landing), folder / TRUTH_FILE
    if truth.exists() or any(landing.landed().values()):
        raise PipelineError(
            "something has landed there already",
            where=str(folder),
            mend="give a new folder",
        )
    done, total = 0, made.size
    for portion in made.portions():
        done += land(landing, [portion])
        progress(min(done, total), total)
    try:
        write_private(truth, canonical.encode(made.truth.to_dict()) + b"\n")
    except OSError as error:
        raise PipelineError(
            f"the truth cannot be written ({error.strerror})",
            where=str(truth),
            mend="choose a place that can be written and has space",
        ) from error
    return made.truth


_LATE: Final = 0.03


def slices(portions: Iterable[SegmentRecords], count: int, seed: int) -> list[list[SegmentRecords]]:
    """Split a history into `count` batches that land one after another.

    Every record is in one of them, with a new number; so the ground truth identifies it by id and
    digest only.
    """
    if count < 1:
        raise PipelineError("a history is split into one slice at least")
    records = [(each.store, entry) for each in portions for entry in each.entries]
    sizes = Counter(entry.stream for _, entry in records)
    passed: Counter[str] = Counter()
    chance = Random(f"{seed}/slices")  # noqa: S311 - a seed must give it again
    links: set[tuple[Any, Any]] = set()
    batches: list[list[tuple[RecordSource, JournalEntry]]] = [[] for _ in range(count)]
    for store, entry in records:
        stream = entry.stream
        turn = passed[stream] * count // sizes[stream]
        passed[stream] += 1
        if stream == CONTRACTS_HISTORY:
            turn = 0
        elif chance.random() < _LATE or (stream == COMMUNITY_EVENTS and _is_hard(entry, links)):
            turn = chance.randrange(min(turn + 1, count - 1), count)
        batches[turn].append((store, entry))
    return _numbered(batches)


def _is_hard(entry: JournalEntry, links: set[tuple[Any, Any]]) -> bool:
    try:
        value = canonical.decode(entry.body)
    except canonical.CanonicalError:
        return False
    event = value.get("event", value) if isinstance(value, dict) else None
    if not isinstance(event, dict):
        return False
    link = (str(event.get("author")), str(event.get("author_seq")))
    is_second = link in links
    links.add(link)
    return is_second or event.get("event_type") == REVOKED


def _numbered(batches: list[list[tuple[RecordSource, JournalEntry]]]) -> list[list[SegmentRecords]]:
    heads: Counter[tuple[str, RecordSource]] = Counter()
    made = []
    for batch in batches:
        portions: dict[tuple[str, RecordSource], list[JournalEntry]] = defaultdict(list)
        for store, entry in batch:
            key = entry.stream, store
            heads[key] += 1
            portions[key].append(replace(entry, seq=heads[key]))
        made.append([SegmentRecords(*key, entries) for key, entries in portions.items()])
    return made
