"""Gold tables of the relay: the outcome of every event that a platform delivered, and why.

Verdicts are the gate's own, read from its records.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.rules import streams
from accord.pipeline.tables.table import Append, F, Full, GoldTable, Tables, columns, day, flat_map

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from accord.relay.rules.decision_records import DecisionRecord
    from accord.relay.rules.verdicts import GateVerdict


_OUTBOUND: Final = (
    "tenant STRING, instance STRING, platform STRING, op STRING, chat_id STRING, rule STRING, "
    "success BOOLEAN"
)


def relay_timelines(tables: Tables) -> "DataFrame":
    """The steps of each session in order: message received, acknowledged or dead, reply sent.

    A session is an agent's part in one chat. `gap_ms` is the time since the step before.
    """
    from pyspark.sql import Window

    rows = tables.gold("relay_deliveries")
    session_key = ["tenant", "instance", "platform", "chat_id"]
    heard = rows.select(
        *session_key,
        F.coalesce("received_at", "queued_at").alias("at"),
        F.lit("heard").alias("step"),
        F.col("relevance").alias("detail"),
        "event",
        F.lit(0).alias("turn"),
    )
    ended = rows.where(F.col("outcome") != "waiting").select(
        *session_key,
        F.col("ended_at").alias("at"),
        F.col("outcome").alias("step"),
        F.col("reason").alias("detail"),
        "event",
        F.lit(1).alias("turn"),
    )
    replies = (
        tables.silver(streams.RELAY_OUTBOUND)
        .select("id", "recorded_at", F.from_json("body", _OUTBOUND).alias("action"))
        .select(
            *(f"action.{name}" for name in session_key),
            F.col("recorded_at").alias("at"),
            F.when(F.col("action.success"), "said").otherwise("failed").alias("step"),
            F.concat_ws(" ", "action.op", "action.rule").alias("detail"),
            F.col("id").alias("event"),
            F.lit(2).alias("turn"),
        )
    )
    session = Window.partitionBy(*session_key).orderBy("at", "turn", "event")
    return (
        heard.unionByName(ended)
        .unionByName(replies)
        .withColumn("position", F.row_number().over(session).cast("BIGINT"))
        .withColumn("gap_ms", F.try_subtract("at", F.lag("at").over(session)))
        .drop("turn")
    )


def relay_latency(tables: Tables) -> "DataFrame":
    """The time until events were acknowledged, by day, platform and agent."""
    shares = F.percentile("latency_ms", F.array(*map(F.lit, (0.5, 0.9, 0.99))))
    return (
        tables.gold("relay_deliveries")
        .where("latency_ms IS NOT NULL")
        .groupBy(day("received_at").alias("day"), "platform", "instance")
        .agg(F.count("*").alias("acked"), shares.alias("at"), F.max("latency_ms").alias("max_ms"))
        .select(
            *("day", "platform", "instance", "acked"),
            *(F.col("at")[place].alias(f"p{share}_ms") for place, share in enumerate((50, 90, 99))),
            "max_ms",
        )
    )


def _unlinked(tables: Tables) -> "DataFrame":
    """What was only counted of people who are not linked, with the hour and the deciding rule."""
    from accord.relay.rules.verdicts import GATE_RULES

    sentences = [F.lit(text) for rule in GATE_RULES.values() for text in (rule.rule, rule.sentence)]
    return (
        tables.silver(streams.RELAY_UNLINKED)
        .select(F.from_json("body", _UNLINKED).alias("counted"))
        .select("counted.*")
        .withColumn("dropped_by", F.split("rule", r"\.")[0])
        .withColumn("reason", F.create_map(*sentences)[F.col("rule")])
    )


def relay_drops(tables: Tables) -> "DataFrame":
    """Events that did not reach an agent, by day, layer and reason: at the gate, and after it.

    Messages of people who are not linked, of whom nothing else is recorded, are among them.
    """
    names = ("platform", "tenant", "instance", "dropped_by", "rule", "reason")

    def dropped(rows: "DataFrame", at: str, drops: "Column") -> "DataFrame":
        return rows.select(day(at).alias("day"), *names, drops.cast("BIGINT").alias("drops"))

    one = F.lit(1)
    gate = tables.gold("relay_verdicts").where("NOT delivers")
    dead = (
        tables.gold("relay_deliveries")
        .where("outcome = 'dead'")
        .withColumns({"dropped_by": F.lit("delivery"), "rule": F.lit("delivery.dead")})
    )
    return (
        dropped(gate, "decided_at", one)
        .unionByName(dropped(dead, "ended_at", one))
        .unionByName(dropped(_unlinked(tables), "hour", F.col("messages")))
        .groupBy("day", *names)
        .agg(F.sum("drops").alias("drops"))
    )


def relay_wakes(tables: Tables) -> "DataFrame":
    """By day and agent, how many events could wake the agent, and how many could not.

    `wakes` counts events that arrived while nothing else waited: only those can wake a sleeping
    agent. `joined` arrived while something waited already, `spared` were addressed to the agent and
    stopped by the gate. Both would have cost a wake, had every event been pushed.
    """
    from pyspark.sql import Window

    earlier = (
        Window.partitionBy("instance")
        .orderBy("queued_at", "number")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    # A row that still waits keeps its queue from being empty for ever.
    busy_until = F.max(F.coalesce("ended_at", F.lit(2**62))).over(earlier)
    queued = (
        tables.gold("relay_deliveries")
        .withColumn("wakes", F.coalesce(busy_until < F.col("queued_at"), F.lit(True)))
        .select(
            day("queued_at").alias("day"),
            "instance",
            F.col("wakes").cast("BIGINT").alias("wakes"),
            (~F.col("wakes")).cast("BIGINT").alias("joined"),
            F.lit(0).cast("BIGINT").alias("spared"),
        )
    )
    stopped = (
        tables.gold("relay_verdicts")
        .where("instance IS NOT NULL AND NOT delivers")
        .select(
            day("decided_at").alias("day"),
            "instance",
            *(F.lit(0).cast("BIGINT").alias(name) for name in ("wakes", "joined")),
            F.lit(1).cast("BIGINT").alias("spared"),
        )
    )
    strangers = (
        _unlinked(tables)
        .where("instance IS NOT NULL")
        .select(
            day("hour").alias("day"),
            "instance",
            *(F.lit(0).cast("BIGINT").alias(name) for name in ("wakes", "joined")),
            F.col("messages").alias("spared"),
        )
    )
    counted = [F.sum(name).alias(name) for name in ("wakes", "joined", "spared")]
    everything = queued.unionByName(stopped).unionByName(strangers)
    return everything.groupBy("day", "instance").agg(*counted)


UNREADABLE_DECISION: Final = "record.unreadable"
"""The rule of decisions that the gate cannot read."""

_VERDICTS: Final = columns(
    "event STRING, decided_at BIGINT, platform STRING, scope_id STRING, chat_id STRING, "
    "author STRING, is_dm BOOLEAN, tenant STRING, instance STRING, delivers BOOLEAN, link STRING, "
    "origin STRING, routing STRING, candidates STRING, authority STRING, visibility STRING, "
    "relevance STRING, dropped_by STRING, rule STRING, reason STRING"
)

_AGAIN: Final = "event STRING, instance STRING"
_DELIVERY: Final = (
    "pending ARRAY<ARRAY<STRING>>, acked ARRAY<ARRAY<STRING>>, dead ARRAY<ARRAY<STRING>>, "
    "reason STRING"
)
_UNLINKED: Final = (
    "hour BIGINT, platform STRING, tenant STRING, instance STRING, rule STRING, messages BIGINT"
)
_INBOUND: Final = "kind STRING, thread_id STRING, user_id STRING, chat_type STRING"


def relay_verdicts(tables: Tables) -> "DataFrame":
    """The verdict of each layer of the gate: one row for each candidate of an event, at least one.

    `instance` is null where a layer decided for all candidates. `dropped_by` names the first layer
    that refused, `rule` and `reason` say why. Of an event that was parked for an instance, the
    latest decision counts.
    """
    decisions = tables.silver(streams.RELAY_DECISIONS).select("id", "recorded_at", "body")
    return latest_rows(decisions, _read_decision, _VERDICTS, "event")


def latest_rows(
    decisions: "DataFrame",
    read: Callable[[dict[str, Any]], Iterator[tuple[Any, ...]]],
    schema: Mapping[str, str],
    event: str,
) -> "DataFrame":
    """Rows of decisions, without those that a later decision about the same instance replaced.

    `event` is the column with the event's id; there is also one `instance`. Few events are ever
    decided again, so the joins are with small tables.
    """
    about = F.get_json_object("body", "$.again")
    is_again = _is_again()
    again = decisions.where(is_again)
    newest = (
        again.select("id", "recorded_at", F.from_json(about, _AGAIN).alias("again"))
        .groupBy(F.col("again.event").alias("of"), F.col("again.instance").alias("for"))
        .agg(F.max_by("id", F.struct("recorded_at", "id")).alias("newest"))
    )
    is_replaced = (F.col(event) == F.col("of")) & (F.col("instance") == F.col("for"))
    first = flat_map(decisions.where(~is_again), read, schema)
    last = again.join(newest, F.col("id") == F.col("newest"), "left_semi")
    return first.join(newest, is_replaced, "left_anti").unionByName(flat_map(last, read, schema))


def _is_again() -> "Column":
    """Whether a decision about a parked event was made again for one instance."""
    # The first condition spares most records the second.
    return F.col("body").contains('"again"') & F.get_json_object("body", "$.again").isNotNull()


def relay_deliveries(tables: Tables) -> "DataFrame":
    """Every row of every agent's queue, with its outcome and the verdicts that admitted it.

    `latency_ms` is the time from the platform's delivery of the event to the acknowledgement. An
    event that was delivered again from the dead letters has a row for each time.
    """
    deliveries = tables.silver(streams.RELAY_DELIVERIES).select(
        "recorded_at", F.from_json("body", _DELIVERY).alias("delivery")
    )
    inbound = tables.silver(streams.RELAY_INBOUND).select(
        F.col("id").alias("event"),
        F.col("recorded_at").alias("received_at"),
        F.from_json("body", _INBOUND).alias("about"),
    )
    verdicts = tables.gold("relay_verdicts").where("delivers").drop("dropped_by", "rule", "reason")
    ended_at = F.when(F.col("outcome") == "acked", F.col("ended_at"))
    return (
        _with_outcome(deliveries)
        .join(inbound, "event", "left")
        .join(verdicts, ["event", "instance"], "left")
        .withColumn("latency_ms", F.try_subtract(ended_at, F.coalesce("received_at", "queued_at")))
        .select(
            *("instance", "number", "event", "tenant", "platform", "scope_id", "chat_id"),
            "about.thread_id",
            F.col("about.kind").alias("kind"),
            *("author", "is_dm"),
            *("link", "origin", "routing", "candidates", "authority", "visibility", "relevance"),
            *("received_at", "queued_at", "ended_at", "outcome"),
            F.col("why").alias("reason"),
            "latency_ms",
        )
    )


def _with_outcome(deliveries: "DataFrame") -> "DataFrame":
    """Each queued row with the range of rows that ended it, if any.

    The range of a row is the last one that begins at or before it: each row ends once, so ranges do
    not overlap and need not be expanded.
    """
    from pyspark.sql import Window

    entry, ended = F.col("entry"), F.col("ended")

    def number(place: int) -> "Column":
        # JSON may spell a whole number 7.0 or 7e0.
        return entry[place].try_cast("DECIMAL(38,6)").try_cast("BIGINT")

    queued = deliveries.select("recorded_at", F.explode("delivery.pending").alias("entry")).select(
        entry[0].alias("instance"),
        number(1).alias("number"),
        F.lit(1).alias("turn"),
        entry[2].alias("event"),
        F.col("recorded_at").alias("queued_at"),
        F.lit(None)
        .cast("STRUCT<last: BIGINT, outcome: STRING, why: STRING, at: BIGINT>")
        .alias("ended"),
    )
    ends = [
        deliveries.select(
            "recorded_at", F.explode(f"delivery.{outcome}").alias("entry"), "delivery.reason"
        ).select(
            entry[0].alias("instance"),
            number(1).alias("number"),
            F.lit(0).alias("turn"),
            F.lit(None).cast("STRING").alias("event"),
            F.lit(None).cast("BIGINT").alias("queued_at"),
            F.struct(
                number(2).alias("last"),
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
    from accord.relay.rules.decision_records import from_record

    try:
        recorded = from_record(canonical.decode(row["body"]))
    except AccordError as error:
        unknown = (None,) * 7
        why = (UNREADABLE_DECISION, UNREADABLE_DECISION, error.what)
        yield row["id"], row["recorded_at"], *unknown, False, *unknown, *why
        return
    yield from verdict_rows(row["id"], row["recorded_at"], recorded)


def verdict_rows(name: str, at: int, recorded: "DecisionRecord") -> Iterator[tuple[Any, ...]]:
    """A decision as rows of `relay_verdicts`; one that was made again is about one instance."""
    from accord.relay.rules.verdicts import NO_CANDIDATE

    event, decision, again = recorded.event, recorded.decision, recorded.again
    name = name if again is None else again.event
    place = (event.platform, event.scope_id, event.chat_id, event.author, event.is_dm)
    common = decision.verdicts
    rules = tuple(each.rule for each in common)
    candidates = decision.candidates
    if again is not None:
        candidates = tuple(each for each in candidates if each.instance == again.instance)
        if not candidates:
            why = _first_no((*common, NO_CANDIDATE))
            who = (decision.tenant, again.instance, False)
            yield (name, at, *place, *who, *rules, None, None, None, *why)
            return
    if not candidates:
        why = _first_no(common)
        yield (name, at, *place, decision.tenant, None, False, *rules, None, None, None, *why)
    for each in candidates:
        layers = (each.authority.rule, each.visibility.rule, each.relevance.rule)
        why = _first_no(each.verdicts)
        who = (decision.tenant, each.instance, each.delivers)
        yield (name, at, *place, *who, *rules, *layers, *why)


def _first_no(verdicts: "tuple[GateVerdict, ...]") -> tuple[str | None, str | None, str | None]:
    for each in verdicts:
        if not each.passed:
            return each.layer.value, each.rule, each.sentence
    return None, None, None


def _has_again(tables: Tables) -> bool:
    """Whether a decision was ever made again, which replaces rows of any age."""
    again = tables.silver(streams.RELAY_DECISIONS).where(_is_again())
    return not again.limit(1).isEmpty()


_QUEUES: Final = Full("a range of acknowledged rows ends rows of any age, in every agent's queue")

RELAY_TABLES: Final = (
    GoldTable("relay_verdicts", relay_verdicts, (streams.RELAY_DECISIONS,), Append(_has_again)),
    GoldTable(
        "relay_deliveries",
        relay_deliveries,
        (streams.RELAY_DELIVERIES, streams.RELAY_INBOUND, "relay_verdicts"),
        _QUEUES,
    ),
    GoldTable(
        "relay_timelines",
        relay_timelines,
        ("relay_deliveries", streams.RELAY_OUTBOUND),
        Full("the place of a step counts the steps before it, and a late one comes anywhere"),
    ),
    GoldTable(
        "relay_latency",
        relay_latency,
        ("relay_deliveries",),
        Full("an exact percentile needs every delivery of its group"),
    ),
    GoldTable(
        "relay_drops",
        relay_drops,
        ("relay_verdicts", "relay_deliveries", streams.RELAY_UNLINKED),
        Full("deliveries end, and verdicts are replaced, at any age"),
    ),
    GoldTable(
        "relay_wakes",
        relay_wakes,
        ("relay_verdicts", "relay_deliveries", streams.RELAY_UNLINKED),
        Full("whether a row could wake an agent depends on all rows before it"),
    ),
)
"""The tables of the relay, in the order of their dependencies."""
