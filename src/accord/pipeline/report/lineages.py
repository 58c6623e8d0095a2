"""The compatibility matrix of the report: one lineage, the one with the most digests."""

from collections.abc import Sequence
from typing import Any, Final

from accord.pipeline.definitions.tables import Tables
from accord.pipeline.report.charts import Matrix

MOST_DIGESTS: Final = 16


def compatibility_of(
    tables: Tables,
) -> tuple[str, Matrix | None, Sequence[str], Sequence[Sequence[Any]]]:
    """A sentence, the matrix, and its rows as a table."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    pairs = tables.gold("contracts_compatibility").where("relation = 'replacement'")
    longest = (
        pairs.groupBy("contract_id")
        .agg(F.count_distinct("old").alias("n"))
        .orderBy(F.desc("n"), "contract_id")
        .first()
    )
    if longest is None:
        return "No contract has more than one digest yet.", None, (), ()
    name = longest.contract_id
    known = (
        tables.gold("contracts_manifests")
        .where(F.col("contract_id") == name)
        .orderBy(F.desc("at"), "digest")
        .limit(MOST_DIGESTS)
        .collect()[::-1]
    )
    digests = [row.digest for row in known]
    rows = pairs.where((F.col("contract_id") == name) & F.col("old").isin(digests)).collect()
    words = {(row.old, row.new): _word(row) for row in rows}
    cells = [[words.get((old, new)) for new in digests] for old in digests]
    table = [
        (row.old[:8], row.new[:8], words[row.old, row.new], row.rule, row.pointer, row.message)
        for row in sorted(rows, key=lambda row: (row.old, row.new))
        if row.new in digests
    ]
    said = f"{name} in {longest.n} digests, the oldest first: may a new one follow an old one?"
    columns = ("old", "new", "verdict", "rule", "where", "why")
    return said, Matrix([each[:8] for each in digests], cells), columns, table


def _word(row: Any) -> str:
    if row.breaking:
        return "breaking"
    if row.unproven:
        return "unproven"
    return "migration" if row.classification == "migration" else "compatible"
