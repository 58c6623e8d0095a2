"""`whatif contract`: every recorded payload of the surfaces that a proposed contract changes.

Runs `calls.Proposal` over the recorded calls of the contract and puts the outcome beside the static
verdict of `contracts.compare`. History shows what callers and services did write; what a service
would newly write is not in it, and only the static verdict speaks of that.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from accord.contracts import compare, digest
from accord.kernel import canonical
from accord.pipeline import streams
from accord.pipeline.definitions.tables import Tables
from accord.pipeline.errors import PipelineError
from accord.pipeline.rows import Columns, flat_map
from accord.pipeline.whatif.calls import Fate, Proposal, shown
from accord.pipeline.whatif.contract_outcome import ContractWhatIf, Failure, Surface
from accord.pipeline.whatif.forms import Sample

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_GROUPS: Final = 1000
"""Of failures that are alike, told apart by surface, caller and rule: those that hit most calls."""

_JUDGED: Final[Columns] = {
    "kind": "STRING",
    "surface": "STRING",
    "part": "STRING",
    "service": "STRING",
    "caller": "STRING",
    "caller_contract": "STRING",
    "fate": "STRING",
    "rule": "STRING",
    "pointer": "STRING",
    "message": "STRING",
    "at": "BIGINT",
    "id": "STRING",
    "payload": "STRING",
}
_SURFACE: Final = ("kind", "surface", "part")
_ALIKE: Final = (*_SURFACE, "service", "caller", "caller_contract", "fate", "rule", "pointer")
_FAILING: Final = (Fate.FAILED.value, Fate.GONE.value)


def whatif_contract(tables: Tables, manifest: Any, against: str | None = None) -> ContractWhatIf:
    """Replay every recorded call of a contract against a proposed manifest of it.

    Args:
        tables: Where history is.
        manifest: The proposal.
        against: The digest to compare with; by default the one accepted or offered last.

    Raises:
        ContractError: The proposal is not a valid manifest; it carries the findings.
        PipelineError: History does not know the digest to compare with.
    """
    proposed = digest(manifest)
    identity: str = manifest["id"]
    recorded, latest = _recorded(tables, identity, proposed)
    base = against or latest
    if against is not None and against not in recorded:
        raise PipelineError(
            f"no contract {against} of {identity} was ever presented",
            mend="see the table contracts_manifests",
        )
    static = compare(canonical.decode(recorded[base]), manifest) if base else None
    proposal = Proposal(canonical.encode(manifest), recorded)
    groups = _groups(tables, identity, proposal).cache()
    try:
        return ContractWhatIf(
            identity,
            proposed,
            base,
            static,
            _surfaces(groups),
            _failures(groups),
            _callers(groups),
        )
    finally:
        groups.unpersist()


def _recorded(tables: Tables, identity: str, proposed: str) -> tuple[dict[str, bytes], str | None]:
    """Every manifest of a contract by digest, and the other digest that was taken up last."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    known = tables.gold("contracts_manifests").where(F.col("contract_id") == identity)
    recorded = {row.digest: row.manifest.encode() for row in known.collect()}
    taken_up = F.col("kind").isin("accepted", "offered")
    last = (
        tables.gold("contracts_history")
        .where(F.col("contract_id") == identity)
        .where(F.col("digest").isin([each for each in recorded if each != proposed]))
        .orderBy(F.desc(taken_up), F.desc("at_ms"), F.desc("recorded_at"), F.desc("seq"))
        .limit(1)
        .collect()
    )
    return recorded, last[0].digest if last else None


def _groups(tables: Tables, identity: str, proposal: Proposal) -> "DataFrame":
    """Calls that fare alike, counted, with the first and the last of them."""
    from pyspark.sql import functions as F  # noqa: N812

    def judge(row: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        call = canonical.decode(row["body"])
        judged = proposal.judge(call)
        caller = call["caller"]
        is_failing = judged.fate.value in _FAILING and "payload" in call
        yield (
            *(call[name] for name in _SURFACE),
            call["service"],
            caller.get("deployment") or caller.get("session"),
            caller["contract_id"],
            judged.fate.value,
            judged.rule,
            judged.pointer,
            judged.message,
            row["recorded_at"],
            row["id"],
            shown(call["payload"]) if is_failing else None,
        )

    calls = tables.silver(streams.CONTRACTS_CALLS).where(
        F.get_json_object("body", "$.contract_id") == identity
    )
    sample = F.struct("at", "id", "payload")
    return (
        flat_map(calls.select("id", "recorded_at", "body"), judge, _JUDGED)
        .groupBy(*_ALIKE)
        .agg(
            F.count("*").alias("calls"),
            F.min("message").alias("message"),
            F.min(sample).alias("first"),
            F.max(sample).alias("last"),
        )
    )


def _surfaces(groups: "DataFrame") -> tuple[Surface, ...]:
    rows = groups.groupBy(*_SURFACE, "fate").sum("calls").orderBy(*_SURFACE, "fate").collect()
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for kind, surface, part, fate, calls in rows:
        found.setdefault((kind, surface, part), {})[fate] = calls
    fates = [each.value for each in Fate]
    return tuple(
        Surface(*place, *(counted.get(fate, 0) for fate in fates))
        for place, counted in found.items()
    )


def _failures(groups: "DataFrame") -> tuple[Failure, ...]:
    from pyspark.sql import functions as F  # noqa: N812

    rows = (
        groups.where(F.col("fate").isin(*_FAILING))
        .orderBy(F.desc("calls"), *_ALIKE)
        .limit(MOST_GROUPS)
        .collect()
    )
    return tuple(
        Failure(
            row.kind,
            row.surface,
            row.part,
            row.service,
            row.caller,
            row.caller_contract,
            row.rule,
            row.pointer,
            row.message,
            row.calls,
            tuple(Sample(*each) for each in dict.fromkeys((row["first"], row["last"]))),
        )
        for row in rows
    )


def _callers(groups: "DataFrame") -> int:
    from pyspark.sql import functions as F  # noqa: N812

    return groups.where(F.col("fate").isin(*_FAILING)).select("caller").distinct().count()
