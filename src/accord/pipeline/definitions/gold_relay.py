"""Gold relay: what became of every event that a platform handed in, and why.

One function per table. What the gate said comes from the gate's own records; nothing is decided
here. Times are milliseconds since the epoch, days are in UTC.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline import streams
from accord.pipeline.definitions.gold_relay_sums import (
    relay_drops,
    relay_latency,
    relay_timelines,
    relay_wakes,
)
from accord.pipeline.definitions.table import Table
from accord.pipeline.definitions.tables import Tables
from accord.pipeline.rows import Columns, flat_map

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from accord.relay.gate import Recorded, Verdict

UNREADABLE: Final = "record.unreadable"
"""In place of a verdict where the gate cannot read its own record."""

_VERDICTS: Final[Columns] = {
    "event": "STRING",
    "decided_at": "BIGINT",
    "platform": "STRING",
    "scope_id": "STRING",
    "chat_id": "STRING",
    "author": "STRING",
    "is_dm": "BOOLEAN",
    "tenant": "STRING",
    "instance": "STRING",
    "delivers": "BOOLEAN",
    "link": "STRING",
    "origin": "STRING",
    "routing": "STRING",
    "candidates": "STRING",
    "authority": "STRING",
    "visibility": "STRING",
    "relevance": "STRING",
    "dropped_by": "STRING",
    "rule": "STRING",
    "reason": "STRING",
}

_DELIVERY: Final = (
    "pending ARRAY<ARRAY<STRING>>, acked ARRAY<ARRAY<STRING>>, dead ARRAY<ARRAY<STRING>>, "
    "reason STRING"
)
_INBOUND: Final = "kind STRING, thread_id STRING, user_id STRING, chat_type STRING"


def relay_verdicts(tables: Tables) -> "DataFrame":
    """What each layer of the gate said: of every event, one row for each candidate, at least one.

    Where a layer spoke for everybody there is no `instance`. `dropped_by` names the first layer
    that said no, `rule` and `reason` what it said.
    """
    decisions = tables.silver(streams.RELAY_DECISIONS).select("id", "recorded_at", "body")
    return flat_map(decisions, _read_decision, _VERDICTS)


def relay_deliveries(tables: Tables) -> "DataFrame":
    """Every row of every agent's queue, with its end and the verdicts that let it in.

    `latency_ms` goes from the moment the platform handed the event in to its acknowledgement. An
    event that was delivered again from the dead letters has a row for each time.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    told = tables.silver(streams.RELAY_DELIVERIES).select(
        "recorded_at", F.from_json("body", _DELIVERY).alias("told")
    )
    inbound = tables.silver(streams.RELAY_INBOUND).select(
        F.col("id").alias("event"),
        F.col("recorded_at").alias("received_at"),
        F.from_json("body", _INBOUND).alias("about"),
    )
    verdicts = tables.gold("relay_verdicts").where("delivers").drop("dropped_by", "rule", "reason")
    ended_at = F.when(F.col("outcome") == "acked", F.col("ended_at"))
    return (
        _with_outcome(told)
        .join(inbound, "event", "left")
        .join(verdicts, ["event", "instance"], "left")
        .withColumn("latency_ms", F.try_subtract(ended_at, F.coalesce("received_at", "queued_at")))
        .select(
            "instance",
            "number",
            "event",
            "tenant",
            "platform",
            "scope_id",
            "chat_id",
            "about.thread_id",
            F.col("about.kind").alias("kind"),
            "author",
            "is_dm",
            *("link", "origin", "routing", "candidates", "authority", "visibility", "relevance"),
            "received_at",
            "queued_at",
            "ended_at",
            "outcome",
            F.col("why").alias("reason"),
            "latency_ms",
        )
    )


def _with_outcome(told: "DataFrame") -> "DataFrame":
    """Each row that was queued, with the range of rows that ended it, if one did.

    A range is looked up as the last one that begins at or before a row: each row ends once, so
    ranges do not overlap, and none is spread out, however long it claims to be.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    entry, ended = F.col("entry"), F.col("ended")
    queued = told.select("recorded_at", F.explode("told.pending").alias("entry")).select(
        entry[0].alias("instance"),
        entry[1].cast("BIGINT").alias("number"),
        F.lit(1).alias("turn"),
        entry[2].alias("event"),
        F.col("recorded_at").alias("queued_at"),
        F.lit(None)
        .cast("STRUCT<last: BIGINT, outcome: STRING, why: STRING, at: BIGINT>")
        .alias("ended"),
    )
    ends = [
        told.select(
            "recorded_at", F.explode(f"told.{outcome}").alias("entry"), "told.reason"
        ).select(
            entry[0].alias("instance"),
            entry[1].cast("BIGINT").alias("number"),
            F.lit(0).alias("turn"),
            F.lit(None).cast("STRING").alias("event"),
            F.lit(None).cast("BIGINT").alias("queued_at"),
            F.struct(
                entry[2].cast("BIGINT").alias("last"),
                F.lit(outcome).alias("outcome"),
                F.when(F.lit(outcome == "dead"), F.col("reason")).alias("why"),
                F.col("recorded_at").alias("at"),
            ).alias("ended"),
        )
        for outcome in ("acked", "dead")
    ]
    queue = Window.partitionBy("instance").orderBy("number", "turn")
    until_here = queue.rowsBetween(Window.unboundedPreceding, 0)
    is_ended = ended["last"] >= F.col("number")
    return (
        queued.unionByName(ends[0])
        .unionByName(ends[1])
        .withColumn("ended", F.last("ended", ignorenulls=True).over(until_here))
        .where("turn = 1")
        .select(
            "instance",
            "number",
            "event",
            "queued_at",
            F.when(is_ended, ended["outcome"]).otherwise("waiting").alias("outcome"),
            F.when(is_ended, ended["why"]).alias("why"),
            F.when(is_ended, ended["at"]).alias("ended_at"),
        )
    )


def _read_decision(row: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    from accord.kernel import canonical
    from accord.kernel.errors import AccordError
    from accord.relay.gate import from_record

    try:
        recorded = from_record(canonical.decode(row["body"]))
    except AccordError as error:
        unknown = (None,) * 7
        why = (UNREADABLE, UNREADABLE, error.what)
        yield row["id"], row["recorded_at"], *unknown, False, *unknown, *why
        return
    yield from verdict_rows(row["id"], row["recorded_at"], recorded)


def verdict_rows(name: str, at: int, recorded: "Recorded") -> Iterator[tuple[Any, ...]]:
    """A decision as rows of `relay_verdicts`."""
    event, decision = recorded.event, recorded.decision
    place = (event.platform, event.scope_id, event.chat_id, event.author, event.is_dm)
    common = decision.verdicts
    rules = tuple(each.rule for each in common)
    if not decision.candidates:
        why = _first_no(common)
        yield (name, at, *place, decision.tenant, None, False, *rules, None, None, None, *why)
    for each in decision.candidates:
        said = (each.authority.rule, each.visibility.rule, each.relevance.rule)
        why = _first_no(each.verdicts)
        who = (decision.tenant, each.instance, each.delivers)
        yield (name, at, *place, *who, *rules, *said, *why)


def _first_no(verdicts: "tuple[Verdict, ...]") -> tuple[str | None, str | None, str | None]:
    for each in verdicts:
        if not each.passed:
            return each.layer.value, each.rule, each.sentence
    return None, None, None


TABLES: Final = (
    Table("relay_verdicts", relay_verdicts, (streams.RELAY_DECISIONS,)),
    Table(
        "relay_deliveries",
        relay_deliveries,
        (streams.RELAY_DELIVERIES, streams.RELAY_INBOUND, "relay_verdicts"),
    ),
    Table("relay_timelines", relay_timelines, ("relay_deliveries", streams.RELAY_OUTBOUND)),
    Table("relay_latency", relay_latency, ("relay_deliveries",)),
    Table("relay_drops", relay_drops, ("relay_verdicts", "relay_deliveries")),
    Table("relay_wakes", relay_wakes, ("relay_verdicts", "relay_deliveries")),
)
"""The tables of the relay, in the order of their dependencies."""
