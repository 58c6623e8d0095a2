"""Gold community from events in memory, as a run would build it."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.fakes.histories import HistoryWriter, hostile, realistic

from accord.community.rules import Event, FoldResult, Verdict, fold_events
from accord.pipeline.rules import COMMUNITY_EVENTS, redact
from accord.pipeline.tables import COMMUNITY_TABLES, SILVER, GivenTables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


STAGES = (
    "communities", "author_chains", "membership_timeline", "community_frames", "community_parts",
    "state",
)  # fmt: skip
"""What the state is made of, and no more."""


def silver_row(event: Event, body: str | None = None) -> dict[str, Any]:
    """An event as a checked record."""
    return {
        "stream": COMMUNITY_EVENTS,
        "seq": 0,
        "id": f"{event.event_id}:{event.digest.hex()}",
        "recorded_at": 0,
        "source": "here",
        "body": event.encode().decode() if body is None else body,
        "segment": "a segment",
        "digest": event.digest.hex(),
        "event": {
            "community_id": event.community_id,
            "lamport": event.lamport,
            "event_id": event.event_id,
            "author": event.author,
            "author_seq": event.author_seq,
            "prev": event.prev,
            "event_type": event.event_type,
        },
    }


@dataclass(frozen=True)
class Gold:
    """Tables that were built and written."""

    spark: "SparkSession"
    folder: Path

    def table(self, name: str) -> "DataFrame":
        return self.spark.read.parquet(str(self.folder / name))

    def rows(self, name: str, where: str = "true") -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in self.table(name).where(where).collect()]

    def states(self) -> dict[str, bytes]:
        return {row["community_id"]: bytes(row["state"]) for row in self.rows("state")}


Build = Callable[..., Gold]


@pytest.fixture(scope="session")
def build(spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Build the tables, or only some, from events or from rows of silver."""

    def built(
        events: Iterable[Event | dict[str, Any]], *, only: Iterable[str] | None = None
    ) -> Gold:
        rows = [each if isinstance(each, dict) else silver_row(each) for each in events]
        folder = tmp_path_factory.mktemp("gold")
        silver = spark.createDataFrame(rows, SILVER)
        silver.write.parquet(str(folder / "silver"))
        read = {COMMUNITY_EVENTS: spark.read.parquet(str(folder / "silver"))}
        golds: dict[str, DataFrame] = {}
        for table in COMMUNITY_TABLES:
            if only is None or table.name in only:
                given = GivenTables(spark, read, golds=golds)
                table.build(given).write.parquet(str(folder / table.name))
                golds[table.name] = spark.read.parquet(str(folder / table.name))
        return Gold(spark, folder)

    return built


@dataclass(frozen=True)
class World:
    """Logs by community, what their nodes come to, and what Spark came to from all together."""

    logs: Mapping[str, list[Event]]
    folds: Mapping[str, FoldResult]
    gold: Gold

    def each(self) -> Iterator[tuple[Event, Verdict]]:
        for log, events in self.logs.items():
            for event in events:
                yield event, self.folds[log].verdicts[event.digest]


@pytest.fixture(scope="session")
def world(build: Build) -> World:
    """Hostile logs, an honest one, one with clear chat and one never founded, built once."""
    logs = dict(hostile(random.Random(seed), 40 + 25 * seed) for seed in range(8))
    log, events = realistic(9000, seed=2, members=40)
    logs[log] = list(events)
    for scribe in (chatting(), unfounded()):
        logs[scribe.community_id] = scribe.events
    rows = [
        silver_row(event, redact(COMMUNITY_EVENTS, event.encode().decode()))
        for events in logs.values()
        for event in events
    ]
    random.Random(1).shuffle(rows)
    folds = {log: fold_events(events, log) for log, events in logs.items()}
    return World(logs, folds, build(rows))


def chatting() -> HistoryWriter:
    """A log in which messages are in clear text, one with a text to trip over."""
    scribe = HistoryWriter("chat", signed=True)
    founder, friend = scribe.pen("founder"), scribe.pen("friend")
    scribe.found(founder)
    scribe.admit(founder, friend)
    message = scribe.say(founder, friend)
    read = {"target_event_id": message.event_id, "read_at": "2026-01-01T00:00:00Z"}
    scribe.write(friend, "chat.message.read", read)
    tripping = 'Good morning. {"event":{},"redacted":{"digest":"","rule":"chat.clear"}}'
    said = {"client_id": "c", "recipient": founder.id, "body": tripping}
    scribe.write(friend, "chat.message.sent", said)
    return scribe


def unfounded() -> HistoryWriter:
    """A log whose founding never came."""
    scribe = HistoryWriter("nobody")
    scribe.post(scribe.pen("early"))
    return scribe
