"""The fold of a community on Spark, stage by stage, by the functions that a node runs.

Stage (a) summarises each author's chain, (b) settles membership on the driver, (c) and (d) judge
content in parallel. The state at head has the same bytes as a node's.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain as chained
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from accord.community.rules.chains import (
    MAX_GAP,
    MEMBERSHIP_TYPES,
    Chain,
    ChainLink,
    chain_of,
    reachable_lamport,
)
from accord.community.rules.content import Content
from accord.community.rules.event import Event, read_stored_event
from accord.community.rules.fold import (
    NAMING_TYPES,
    FoldBasis,
    assemble_state,
    fold_membership,
    judge_events,
    subject,
)
from accord.community.rules.state import (
    MAX_STATE_BYTES,
    StateItem,
    digest_of_state,
    state_items,
    state_object,
)
from accord.community.rules.verdicts import ACCEPTED, VERDICTS, Verdict
from accord.kernel import canonical
from accord.pipeline.tables.table import F, Row, columns, in_batches, map_partitions, rows_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


CHAINS: Final = columns(
    "community_id STRING, author STRING, head_seq BIGINT, head_hash STRING, head_lamport BIGINT, "
    "seen_seq BIGINT, fork_seq BIGINT, fork_first STRING, fork_second STRING, cut_seq BIGINT, "
    "cut_rule STRING"
)
"""A chain, see `community.rules.chains.Chain`; the events of a fork by their digests."""


def reaches(events: "DataFrame") -> dict[str, int]:
    """The greatest lamport of each community that is not quarantined.

    Within a span as wide as the widest gap nothing is quarantined, so the ends of spans suffice.
    """
    span = F.expr(f"lamport DIV {MAX_GAP}").alias("span")
    ends = (
        events.groupBy("community_id", span)
        .agg(F.min("lamport"), F.max("lamport"))
        .drop("span")
        .collect()
    )
    return {
        community_id: reachable_lamport(chained.from_iterable(row[1:] for row in rows))
        for community_id, rows in groupby(sorted(map(tuple, ends)), key=itemgetter(0))
    }


def chains(events: "DataFrame", reached: Mapping[str, int]) -> "DataFrame":
    """The chain of every author, one row each."""

    def sum_up(rows: Iterator[Row]) -> Iterator[Row]:
        for (community_id, author), links in groupby(rows, key=itemgetter(0, 1)):
            found = chain_of(map(_link, links), reached[community_id])
            if found.seen_seq:
                yield (community_id, author, *_row(found))

    links = (
        events.select("community_id", "author", "author_seq", "digest", "prev", "lamport")
        .repartition("community_id", "author")
        .sortWithinPartitions(
            "community_id", "author", F.asc_nulls_first("author_seq"), F.asc("digest")
        )
    )
    return map_partitions(links, sum_up, CHAINS)


def chain_from(row: Row) -> Chain:
    """A chain from its columns, without community and author."""
    head_seq, head_hash, head_lamport, seen_seq, at, first, second, cut_seq, cut_rule = row
    fork = None if at is None else (at, bytes.fromhex(first), bytes.fromhex(second))
    cut = None if cut_seq is None else (cut_seq, VERDICTS[cut_rule])
    return Chain(head_seq, head_hash, head_lamport, seen_seq, fork, cut)


def _link(row: Row) -> ChainLink:
    _, author, author_seq, digest, prev, lamport = row
    return ChainLink(author, author_seq, bytes.fromhex(digest), prev, lamport)


def _row(chain: Chain) -> Row:
    at, first, second = chain.fork or (None, b"", b"")
    cut_seq, cut = chain.cut or (None, None)
    return (
        chain.head_seq,
        chain.head_hash,
        chain.head_lamport,
        chain.seen_seq,
        at,
        first.hex() or None,
        second.hex() or None,
        cut_seq,
        None if cut is None else cut.rule,
    )


_EVENT: Final = '{"event":'
_REDACTED: Final = ',"redacted":{'


def event_of(body: str, digest: str) -> Event:
    """The event of a checked record; of a redacted one, the members that the fold reads."""
    if body.startswith(_EVENT):
        # Canonical text whose last member is the redaction, which holds no user text.
        body = body[len(_EVENT) : body.rindex(_REDACTED)]
    return read_stored_event(body, bytes.fromhex(digest))


Grounds: TypeAlias = Mapping[str, FoldBasis]
"""The basis of the fold by community."""

TIMELINE: Final = columns(
    "community_id STRING, lamport BIGINT, event_id STRING, digest STRING, author STRING, "
    "event_type STRING, at STRING, status STRING, rule STRING, reason STRING, node_id STRING, "
    "level STRING, policy STRING, body STRING"
)
"""A membership event, its verdict, and the level or policy that it set."""

_QUARANTINED: Final = VERDICTS["lamport.gap"]


def membership_rows(events: "DataFrame") -> "pa.Table":
    """Community, digest and body of every membership event."""
    ours = events.where(events.event_type.isin(*MEMBERSHIP_TYPES))
    return ours.select("community_id", "digest", "body").toArrow()


def grounds(reached: Mapping[str, int], chains: "DataFrame", membership: "pa.Table") -> Grounds:
    """The basis on which the content of each community is judged."""
    of_author: dict[str, dict[str, Chain]] = {community_id: {} for community_id in reached}
    members: dict[str, list[Event]] = {community_id: [] for community_id in reached}
    for community_id, author, *chain in rows_of(chains.select(*CHAINS).toArrow()):
        of_author[community_id][author] = chain_from(tuple(chain))
    for community_id, digest, body in rows_of(membership):
        members[community_id].append(event_of(body, digest))
    return {
        community_id: fold_membership(
            community_id,
            of_author[community_id],
            reached[community_id],
            sorted(members[community_id], key=lambda event: event.position),
        )
        for community_id in reached
    }


def timeline(on: Iterable[FoldBasis], membership: "pa.Table") -> Iterator[Row]:
    """Every membership event in order, with its verdict."""
    bodies = {digest: body for _, digest, body in rows_of(membership)}
    for each in on:
        for event in each.membership:
            outcome = each.roster.outcomes.get(event.digest)
            verdict = _QUARANTINED if outcome is None else outcome.verdict
            is_about = outcome is not None and outcome.node is not None
            policy = None if outcome is None else outcome.policy
            yield (
                event.community_id,
                event.lamport,
                event.event_id,
                event.digest.hex(),
                event.author,
                event.event_type,
                event.wall_clock,
                verdict.status.value,
                verdict.rule,
                verdict.reason,
                outcome.node if outcome is not None else None,
                outcome.level.text if outcome is not None and is_about else None,
                None if policy is None else canonical.encode(dict(policy)).decode(),
                bodies[event.digest.hex()],
            )


def frame_of(on: FoldBasis) -> str:
    """The state of membership and chains, without content, as JSON."""
    return canonical.encode(state_object(on.state(Content()))).decode()


_PLACED: Final = columns(
    "community_id STRING, lamport BIGINT, event_id STRING, digest STRING, body STRING"
)
_NAMED: Final = {**_PLACED, **columns("subject_kind STRING, subject STRING, rule STRING")}
_ORDER: Final = ("community_id", "lamport", "event_id", "digest")

_VERDICT: Final = columns(
    "community_id STRING, lamport BIGINT, event_id STRING, digest STRING, author STRING, "
    "author_seq BIGINT, event_type STRING, at STRING, subject_kind STRING, subject STRING, "
    "status STRING, rule STRING, reason STRING, said STRING"
)
_ITEM: Final = columns("section STRING, key STRING, second STRING, item STRING")
VERDICT_COLUMNS: Final = tuple(_VERDICT)
PARTS: Final = {**_VERDICT, **_ITEM}
"""A row is the verdict on an event or an item of the state.

`said` is what a market event says of its post; an item's columns are those of `StateItem`.
"""


def parts(events: "DataFrame", on: Grounds) -> "DataFrame":
    """Every event's verdict, membership events included, and the state's items from content."""
    judging = {community_id: replace(each, membership=()) for community_id, each in on.items()}

    def name(rows: Iterator[Row]) -> Iterator[Row]:
        return _named(judging, rows)

    def conclude(rows: Iterator[Row]) -> Iterator[Row]:
        return _concluded(judging, rows)

    is_naming = F.col("event_type").isin(*NAMING_TYPES)
    group = F.when(is_naming, F.concat("event_type", "author")).otherwise(F.col("digest"))
    first = events.repartition("community_id", group).select(*_PLACED)
    named = map_partitions(first.sortWithinPartitions(*_ORDER), name, _NAMED)
    second = named.repartition("community_id", "subject_kind", "subject")
    return map_partitions(second.sortWithinPartitions(*_ORDER), conclude, PARTS)


def _named(on: Grounds, rows: Iterator[Row]) -> Iterator[Row]:
    """The first round: events that name something new are judged by author."""
    for community_id, of_community in groupby(rows, key=itemgetter(0)):
        content = Content()
        for batch in in_batches(of_community):
            events = [event_of(body, digest) for *_, digest, body in batch]
            naming = [event for event in events if event.event_type in NAMING_TYPES]
            verdicts = _judged(on[community_id], content, naming)
            for row, event in zip(batch, events, strict=True):
                verdict = verdicts.get(event.digest, ACCEPTED)
                yield (*row, *subject(event), None if verdict is ACCEPTED else verdict.rule)


def _concluded(on: Grounds, rows: Iterator[Row]) -> Iterator[Row]:
    """The second round: events that passed are judged together with their subject."""
    for community_id, of_community in groupby(rows, key=itemgetter(0)):
        content = Content()
        for batch in in_batches(of_community):
            events = [event_of(row[4], row[3]) for row in batch]
            passed = [event for row, event in zip(batch, events, strict=True) if row[-1] is None]
            verdicts = _judged(on[community_id], content, passed)
            for row, event in zip(batch, events, strict=True):
                *_, kind, about, rule = row
                verdict = verdicts[event.digest] if rule is None else VERDICTS[rule]
                yield _verdict_row(event, kind, about, verdict)
        for item in state_items(content):
            yield _item_row(community_id, item)


def _judged(on: FoldBasis, content: Content, events: list[Event]) -> dict[bytes, Verdict]:
    verdicts: dict[bytes, Verdict] = {}

    def note(event: Event, verdict: Verdict) -> None:
        verdicts[event.digest] = verdict

    judge_events(on, content, events, note, content.head)
    return verdicts


def _verdict_row(event: Event, kind: str, about: str, verdict: Verdict) -> Row:
    return (
        event.community_id,
        event.lamport,
        event.event_id,
        event.digest.hex(),
        event.author,
        event.author_seq,
        event.event_type,
        event.wall_clock,
        kind,
        about,
        verdict.status.value,
        verdict.rule,
        verdict.reason,
        _said(event) if kind == "post" else None,
        *_NO_ITEM,
    )


def _said(event: Event) -> str:
    """What a market event says about a post: the post, a change, or the reason of its end."""
    data = event.data
    said = {"fields": data.get("fields", data), "reason": data.get("reason")}
    return canonical.encode(said).decode()


def _item_row(community_id: str, item: StateItem) -> Row:
    written = canonical.encode(item.value).decode()
    return (community_id, *_NO_VERDICT, item.section, item.key, item.second, written)


_NO_ITEM: Final = (None,) * len(_ITEM)
_NO_VERDICT: Final = (None,) * (len(_VERDICT) - 1)


STATES: Final = columns(
    "community_id STRING, name STRING, lamport BIGINT, digest STRING, size_bytes BIGINT, "
    "state BINARY"
)
"""The canonical bytes of a state, and the digest by which anchors agree about it."""


def complete_state(
    frame: str, head: Mapping[str, Any] | None, counts: Mapping[str, int]
) -> dict[str, Any]:
    """A state without its items, from the frame, the head and the counts of content."""
    members: dict[str, Any] = canonical.decode(frame, max_bytes=MAX_STATE_BYTES)
    members["head"] = None if head is None else dict(head)
    members["counts"]["content"] |= counts
    return members


def states(items: "DataFrame", frames: Mapping[str, dict[str, Any]]) -> "DataFrame":
    """One state for each community, which has at least one row, its section possibly null.

    `frames` are by community, see `complete_state`.
    """

    def write(rows: Iterator[Row]) -> Iterator[Row]:
        for community_id, of_community in groupby(rows, key=itemgetter(0)):
            frame = frames[community_id]
            found = ((row[1], row[2].encode()) for row in of_community if row[1] is not None)
            state = assemble_state(frame, found)
            lamport = -1 if frame["head"] is None else frame["head"]["lamport"]
            yield community_id, frame["name"], lamport, digest_of_state(state), len(state), state

    ordered = (
        items.repartition("community_id")
        .sortWithinPartitions("community_id", "section", "key", "second")
        .select("community_id", "section", "item")
    )
    return map_partitions(ordered, write, STATES)
