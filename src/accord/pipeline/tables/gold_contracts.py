"""Gold tables of contracts: their history, usage, payload shapes and compatibility.

Compatibility is computed by `contracts.compare` on the executors. Payload values are never stored,
only their structure.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.rules import streams
from accord.pipeline.tables.table import (
    Append,
    F,
    Full,
    GoldTable,
    Merge,
    Tables,
    Touched,
    columns,
    flat_map,
    moment,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


MOST_DIGESTS: Final = 24
"""How many digests of a contract are compared; the cost grows with the square."""

_HISTORY: Final = (
    "kind STRING, at STRING, deployment STRING, contract_id STRING, digest STRING, by STRING, "
    "classification STRING, previous STRING"
)
_CALL: Final = (
    "at STRING, contract_id STRING, digest STRING, kind STRING, surface STRING, part STRING, "
    "service STRING, caller STRUCT<deployment: STRING, session: STRING, contract_id: STRING, "
    "digest: STRING>, outcome STRING, error STRING, ms BIGINT"
)
_MANIFEST: Final = columns("contract_id STRING, digest STRING, at BIGINT, manifest STRING")
_SHAPE: Final = columns(
    "contract_id STRING, digest STRING, kind STRING, surface STRING, part STRING, shape STRING, "
    "at BIGINT"
)
_COMPATIBILITY: Final = columns(
    "contract_id STRING, old STRING, new STRING, relation STRING, compatible BOOLEAN, "
    "classification STRING, breaking BIGINT, unproven BIGINT, migration BIGINT, rule STRING, "
    "pointer STRING, message STRING"
)


def contracts_history(tables: Tables) -> "DataFrame":
    """Every step in the history of every contract on every deployment."""
    history = tables.silver(streams.CONTRACTS_HISTORY)
    return history.select(F.from_json("body", _HISTORY).alias("step"), "seq", "recorded_at").select(
        "step.*", moment("step.at").alias("at_ms"), "recorded_at", "seq"
    )


def contracts_catalog(tables: Tables) -> "DataFrame":
    """The catalog over time: which deployment offered which digest, from when until when.

    `until` is null while it is offered; `ended_by` says whether it was withdrawn or expired. A
    deployment may offer several digests of a contract at once.
    """
    from pyspark.sql import Window

    steps = tables.gold("contracts_history").where("kind IN ('offered', 'withdrawn', 'expired')")
    life = Window.partitionBy("deployment", "contract_id", "digest").orderBy(
        "at_ms", "recorded_at", "seq"
    )
    # A repeated offer continues the first one.
    turns = steps.withColumn("before", F.lag("kind", 1, "").over(life)).where(
        "NOT (kind = 'offered' AND before = 'offered')"
    )
    return (
        turns.withColumn("until", F.lead("at_ms").over(life))
        .withColumn("ended_by", F.lead("kind").over(life))
        .where("kind = 'offered'")
        .select(
            "deployment",
            "contract_id",
            "digest",
            F.col("at_ms").alias("since"),
            "until",
            "ended_by",
            "by",
        )
    )


def contracts_manifests(tables: Tables) -> "DataFrame":
    """Every presented contract once, as canonical JSON; `at` is the first time."""
    history = tables.silver(streams.CONTRACTS_HISTORY).select("recorded_at", "body")
    return _merge_manifests(flat_map(history, _read_manifest, _MANIFEST))


def contracts_usage(tables: Tables) -> "DataFrame":
    """Calls by day, caller, service and surface, with their outcomes."""
    calls = tables.silver(streams.CONTRACTS_CALLS).select(F.from_json("body", _CALL).alias("call"))
    return calls.groupBy(
        F.to_date(F.try_to_timestamp("call.at")).alias("day"),
        *(F.col(f"call.{each}").alias(each) for each in ("contract_id", "digest", "kind")),
        *(F.col(f"call.{each}").alias(each) for each in ("surface", "part", "service")),
        F.coalesce("call.caller.deployment", "call.caller.session").alias("caller"),
        F.col("call.caller.contract_id").alias("caller_contract"),
        F.col("call.caller.digest").alias("caller_digest"),
    ).agg(
        F.count("*").alias("calls"),
        F.count_if(F.col("call.outcome") == "error").alias("errors"),
        F.percentile("call.ms", F.lit(0.5)).alias("p50_ms"),
        F.percentile("call.ms", F.lit(0.99)).alias("p99_ms"),
    )


def contracts_shapes(tables: Tables) -> "DataFrame":
    """The shapes of payloads that were seen on each surface, how often, and when.

    A shape is the structure of a payload without its values. Members that the surface's schema does
    not name are written `*`: where a payload is a map, its keys are values too.
    """
    from accord.pipeline.rules.checks import read_shape

    calls = tables.silver(streams.CONTRACTS_CALLS).select("recorded_at", "body")
    known = calls.select(
        "recorded_at", "body", F.get_json_object("body", "$.digest").alias("digest")
    ).join(tables.gold("contracts_manifests").select("digest", "manifest"), "digest")
    return (
        flat_map(known, read_shape, _SHAPE)
        .groupBy(*(name for name in _SHAPE if name != "at"))
        .agg(
            F.count("*").alias("seen"),
            F.min("at").alias("first_at"),
            F.max("at").alias("last_at"),
        )
    )


def contracts_compatibility(tables: Tables) -> "DataFrame":
    """The compatibility of every pair of digests of a contract, as successor and side by side.

    Of a contract with many digests the newest `MOST_DIGESTS` are compared.
    """
    from pyspark.sql import Window

    newest = Window.partitionBy("contract_id").orderBy(F.desc("at"), "digest")
    known = (
        tables.gold("contracts_manifests")
        .withColumn("place", F.row_number().over(newest))
        .where(F.col("place") <= MOST_DIGESTS)
        .select("contract_id", "digest", "manifest")
    )
    old = known.select("contract_id", *(F.col(c).alias(f"old_{c}") for c in ("digest", "manifest")))
    new = known.select("contract_id", *(F.col(c).alias(f"new_{c}") for c in ("digest", "manifest")))
    pairs = old.join(new, "contract_id").where("old_digest <> new_digest")
    # A proof may take a second where a row takes a microsecond, so pairs are spread out.
    spread = pairs.repartition("old_digest", "new_digest")
    return flat_map(spread, _compare, _COMPATIBILITY)


def _read_manifest(row: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    from accord.kernel import canonical

    step = canonical.decode(row["body"])
    if step["manifest"] is not None:
        text = canonical.encode(step["manifest"]).decode()
        yield step["contract_id"], step["digest"], row["recorded_at"], text


def _compare(row: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    from accord.contracts import compare
    from accord.contracts.compatibility import Relation
    from accord.kernel import canonical

    old, new = canonical.decode(row["old_manifest"]), canonical.decode(row["new_manifest"])
    relations: tuple[Relation, ...] = ("replacement", "coexistence")
    for relation in relations:
        report = compare(old, new, relation)
        found = [each.category for each in report.findings]
        first = report.findings[0] if report.findings else None
        yield (
            row["contract_id"],
            row["old_digest"],
            row["new_digest"],
            relation,
            report.compatible,
            report.classification,
            *(found.count(category) for category in ("breaking", "unproven", "migration")),
            *((first.rule, first.pointer, first.message) if first else (None, None, None)),
        )


def _merge_manifests(rows: "DataFrame") -> "DataFrame":
    return rows.groupBy("contract_id", "digest").agg(
        F.min("at").alias("at"), F.min("manifest").alias("manifest")
    )


def _merge_shapes(rows: "DataFrame") -> "DataFrame":
    return rows.groupBy(*(name for name in _SHAPE if name != "at")).agg(
        F.sum("seen").alias("seen"),
        F.min("first_at").alias("first_at"),
        F.max("last_at").alias("last_at"),
    )


_OF_CONTRACT: Final = Touched(
    streams.CONTRACTS_HISTORY, "contract_id", "get_json_object(body, '$.contract_id')"
)

CONTRACT_TABLES: Final = (
    GoldTable("contracts_history", contracts_history, (streams.CONTRACTS_HISTORY,), Append()),
    GoldTable("contracts_catalog", contracts_catalog, ("contracts_history",), _OF_CONTRACT),
    GoldTable(
        "contracts_manifests",
        contracts_manifests,
        (streams.CONTRACTS_HISTORY,),
        Merge(_merge_manifests),
    ),
    GoldTable(
        "contracts_usage",
        contracts_usage,
        (streams.CONTRACTS_CALLS,),
        Full("an exact percentile needs every call of its group, and a late call is of any day"),
    ),
    GoldTable(
        "contracts_shapes",
        contracts_shapes,
        (streams.CONTRACTS_CALLS, "contracts_manifests"),
        Merge(_merge_shapes),
    ),
    GoldTable(
        "contracts_compatibility", contracts_compatibility, ("contracts_manifests",), _OF_CONTRACT
    ),
)
"""The tables of contracts, in the order of their dependencies."""
