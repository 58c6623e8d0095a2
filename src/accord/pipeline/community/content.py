"""Stages (c) and (d): content, judged in parallel by the grounds of stage (b).

Two rounds, as `fold.parts` explains; each is a shuffle that keeps groups together, a sort into
total order, and `fold.folding.run` over every partition. Nothing comes to the driver.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Final

from accord.community.envelope import Event
from accord.community.fold import ACCEPTED, VERDICTS, Verdict
from accord.community.fold.content import Content
from accord.community.fold.folding import Ground, run
from accord.community.fold.parts import NAMING, subject
from accord.community.fold.state import Item, items
from accord.kernel import canonical
from accord.pipeline.community.landed import event_of
from accord.pipeline.community.membership import Grounds
from accord.pipeline.rows import Columns, Row, in_batches, map_partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PLACED: Final[Columns] = {
    "community_id": "STRING",
    "lamport": "BIGINT",
    "event_id": "STRING",
    "digest": "STRING",
    "body": "STRING",
}
_NAMED: Final[Columns] = {
    **_PLACED,
    "subject_kind": "STRING",
    "subject": "STRING",
    "rule": "STRING",
}
_ORDER: Final = ("community_id", "lamport", "event_id", "digest")

_VERDICT: Final[Columns] = {
    "community_id": "STRING",
    "lamport": "BIGINT",
    "event_id": "STRING",
    "digest": "STRING",
    "author": "STRING",
    "author_seq": "BIGINT",
    "event_type": "STRING",
    "at": "STRING",
    "subject_kind": "STRING",
    "subject": "STRING",
    "status": "STRING",
    "rule": "STRING",
    "reason": "STRING",
    "said": "STRING",
}
_ITEM: Final[Columns] = {
    "section": "STRING",
    "key": "STRING",
    "second": "STRING",
    "item": "STRING",
}
VERDICT_COLUMNS: Final = tuple(_VERDICT)
PARTS: Final[Columns] = {**_VERDICT, **_ITEM}
"""Of every event its verdict, and of the state every item: a row has one or the other.

`said` is what a market event says of its post; an item's columns are those of `fold.state.Item`.
"""


def parts(events: "DataFrame", on: Grounds) -> "DataFrame":
    """Every event's verdict, membership events included, and all that content comes to."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    judging = {community_id: replace(each, membership=()) for community_id, each in on.items()}

    def name(rows: Iterator[Row]) -> Iterator[Row]:
        return _named(judging, rows)

    def conclude(rows: Iterator[Row]) -> Iterator[Row]:
        return _concluded(judging, rows)

    is_naming = F.col("event_type").isin(*NAMING)
    group = F.when(is_naming, F.concat("event_type", "author")).otherwise(F.col("digest"))
    first = events.repartition("community_id", group).select(*_PLACED)
    named = map_partitions(first.sortWithinPartitions(*_ORDER), name, _NAMED)
    second = named.repartition("community_id", "subject_kind", "subject")
    return map_partitions(second.sortWithinPartitions(*_ORDER), conclude, PARTS)


def _named(on: Grounds, rows: Iterator[Row]) -> Iterator[Row]:
    """The first round: what names something new is judged beside its author's others."""
    for community_id, of_community in groupby(rows, key=itemgetter(0)):
        content = Content()
        for batch in in_batches(of_community):
            events = [event_of(body, digest) for *_, digest, body in batch]
            naming = [event for event in events if event.event_type in NAMING]
            verdicts = _judged(on[community_id], content, naming)
            for row, event in zip(batch, events, strict=True):
                verdict = verdicts.get(event.digest, ACCEPTED)
                yield (*row, *subject(event), None if verdict is ACCEPTED else verdict.rule)


def _concluded(on: Grounds, rows: Iterator[Row]) -> Iterator[Row]:
    """The second round: whatever has not fallen is judged beside what it is about."""
    for community_id, of_community in groupby(rows, key=itemgetter(0)):
        content = Content()
        for batch in in_batches(of_community):
            events = [event_of(row[4], row[3]) for row in batch]
            standing = [event for row, event in zip(batch, events, strict=True) if row[-1] is None]
            verdicts = _judged(on[community_id], content, standing)
            for row, event in zip(batch, events, strict=True):
                *_, kind, about, rule = row
                verdict = verdicts[event.digest] if rule is None else VERDICTS[rule]
                yield _verdict_row(event, kind, about, verdict)
        for item in items(content):
            yield _item_row(community_id, item)


def _judged(on: Ground, content: Content, events: list[Event]) -> dict[bytes, Verdict]:
    verdicts: dict[bytes, Verdict] = {}

    def note(event: Event, verdict: Verdict) -> None:
        verdicts[event.digest] = verdict

    run(on, content, events, note, content.head)
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
    """What an event says of a post: the post itself, what changes in it, or why it ends."""
    data = event.data
    said = {"fields": data.get("fields", data), "reason": data.get("reason")}
    return canonical.encode(said).decode()


def _item_row(community_id: str, item: Item) -> Row:
    written = canonical.encode(item.value).decode()
    return (community_id, *_NO_VERDICT, item.section, item.key, item.second, written)


_NO_ITEM: Final = (None,) * len(_ITEM)
_NO_VERDICT: Final = (None,) * (len(_VERDICT) - 1)
