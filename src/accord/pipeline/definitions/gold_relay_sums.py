"""Gold relay, what its rows come to: timelines, latencies, drops, wakes.

One function per table, over `relay_verdicts` and `relay_deliveries`; `gold_relay` has the list.
"""

from typing import TYPE_CHECKING, Final

from accord.pipeline import streams
from accord.pipeline.definitions.tables import Tables
from accord.pipeline.definitions.times import day

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OUTBOUND: Final = (
    "tenant STRING, instance STRING, platform STRING, op STRING, chat_id STRING, rule STRING, "
    "success BOOLEAN"
)


def relay_timelines(tables: Tables) -> "DataFrame":
    """What happened in each session, in order: heard, acknowledged or dead, said.

    A session is an agent's part in one chat. `gap_ms` is the time since the step before.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    rows = tables.gold("relay_deliveries")
    seat = ["tenant", "instance", "platform", "chat_id"]
    heard = rows.select(
        *seat,
        F.coalesce("received_at", "queued_at").alias("at"),
        F.lit("heard").alias("step"),
        F.col("relevance").alias("detail"),
        "event",
        F.lit(0).alias("turn"),
    )
    ended = rows.where(F.col("outcome") != "waiting").select(
        *seat,
        F.col("ended_at").alias("at"),
        F.col("outcome").alias("step"),
        F.col("reason").alias("detail"),
        "event",
        F.lit(1).alias("turn"),
    )
    said = (
        tables.silver(streams.RELAY_OUTBOUND)
        .select("id", "recorded_at", F.from_json("body", _OUTBOUND).alias("action"))
        .select(
            *(f"action.{name}" for name in seat),
            F.col("recorded_at").alias("at"),
            F.when(F.col("action.success"), "said").otherwise("failed").alias("step"),
            F.concat_ws(" ", "action.op", "action.rule").alias("detail"),
            F.col("id").alias("event"),
            F.lit(2).alias("turn"),
        )
    )
    session = Window.partitionBy(*seat).orderBy("at", "turn", "event")
    return (
        heard.unionByName(ended)
        .unionByName(said)
        .withColumn("position", F.row_number().over(session).cast("BIGINT"))
        .withColumn("gap_ms", F.try_subtract("at", F.lag("at").over(session)))
        .drop("turn")
    )


def relay_latency(tables: Tables) -> "DataFrame":
    """How long events took to be acknowledged, by day, platform and agent."""
    from pyspark.sql import functions as F  # noqa: N812

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


def relay_drops(tables: Tables) -> "DataFrame":
    """What did not reach an agent, by day, layer and reason: at the gate, and after it."""
    from pyspark.sql import functions as F  # noqa: N812

    gate = (
        tables.gold("relay_verdicts")
        .where("NOT delivers")
        .groupBy(
            day("decided_at").alias("day"),
            "platform",
            "tenant",
            "instance",
            "dropped_by",
            "rule",
            "reason",
        )
        .agg(F.count("*").alias("drops"))
    )
    dead = (
        tables.gold("relay_deliveries")
        .where("outcome = 'dead'")
        .groupBy(
            day("ended_at").alias("day"),
            "platform",
            "tenant",
            "instance",
            F.lit("delivery").alias("dropped_by"),
            F.lit("delivery.dead").alias("rule"),
            "reason",
        )
        .agg(F.count("*").alias("drops"))
    )
    return gate.unionByName(dead)


def relay_wakes(tables: Tables) -> "DataFrame":
    """What each agent was woken for by day at most, and what it could sleep through.

    `wakes` counts events that came while nothing else waited: only those can wake a sleeping agent.
    `joined` came while something waited already, `spared` were about the agent and stopped by the
    gate. Both would have cost a wake of their own, had every event been pushed.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    earlier = (
        Window.partitionBy("instance")
        .orderBy("queued_at", "number")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    # Whatever still waits keeps its queue from ever being empty again.
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
    counted = [F.sum(name).alias(name) for name in ("wakes", "joined", "spared")]
    return queued.unionByName(stopped).groupBy("day", "instance").agg(*counted)
