"""`whatif contract`: replays recorded payloads of the surfaces that a proposed contract changes.

The result also has the static verdict of `contracts.compare`. Payloads that a service would newly
write are not in history; only the static verdict covers them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from accord.contracts import CompatibilityReport, compare, digest
from accord.kernel import canonical
from accord.pipeline.errors import PipelineError
from accord.pipeline.rules import streams
from accord.pipeline.rules.proposals import CallOutcome, ProposedContract, witness, written_by
from accord.pipeline.tables.table import F, Tables, columns, flat_map
from accord.pipeline.text import SampleRecord, count, format_table, percentage, shorten

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_MOST_WITNESSES: Final = 5


@dataclass(frozen=True, slots=True)
class SurfaceReplay:
    """The outcomes of the recorded payloads of one part of one surface."""

    kind: str
    surface: str
    part: str
    kept: int = 0
    failed: int = 0
    gone: int = 0
    unrecorded: int = 0  # calls whose payload was not recorded, by policy
    untouched: int = 0  # calls under contracts with the same schema for this payload

    @property
    def name(self) -> str:
        """The name for people."""
        return f"{self.kind} {self.surface} {self.part}"

    @property
    def failing(self) -> int:
        """Calls that would have failed."""
        return self.failed + self.gone

    @property
    def replayed(self) -> int:
        """Calls whose outcome is known."""
        return self.kept + self.failing


@dataclass(frozen=True, slots=True)
class CallFailure:
    """Calls that would have failed with the same surface, caller and rule."""

    kind: str
    surface: str
    part: str
    service: str
    caller: str
    caller_contract: str | None
    rule: str
    pointer: str | None
    message: str
    calls: int
    # The first and the last of them, with their payloads if these are short.
    samples: tuple[SampleRecord, ...]

    @property
    def writer(self) -> str:
        """Who wrote the payload and would have to change: `caller` or `service`."""
        return written_by(self.part)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "samples"}
        samples = [each.to_dict() for each in self.samples]
        return {**plain, "writer": self.writer, "samples": samples}


@dataclass(frozen=True, slots=True)
class ContractWhatIf:
    """The result of replaying recorded calls against a proposed contract."""

    contract_id: str
    proposed: str
    # The digest of the static comparison; by default the last one accepted or offered.
    against: str | None
    static: CompatibilityReport | None  # its verdict; None if history has no such contract
    surfaces: tuple[SurfaceReplay, ...]  # every part of every surface that was called
    # Groups of failing calls, the largest first, at most `MOST_GROUPS`.
    failures: tuple[CallFailure, ...]
    callers: int  # the number of distinct callers with a failing call

    @property
    def calls(self) -> int:
        """All recorded calls of the contract."""
        return self.replayed + sum(each.unrecorded + each.untouched for each in self.surfaces)

    @property
    def replayed(self) -> int:
        """Calls that the proposal affects and whose outcome is known."""
        return sum(each.replayed for each in self.surfaces)

    @property
    def failing(self) -> int:
        """Calls that would have failed."""
        return sum(each.failing for each in self.surfaces)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "contract_id": self.contract_id,
            "proposed": self.proposed,
            "against": self.against,
            "static": None if self.static is None else self.static.to_dict(),
            "calls": self.calls,
            "replayed": self.replayed,
            "failing": self.failing,
            "callers": self.callers,
            "surfaces": [
                {name: getattr(each, name) for name in each.__slots__} for each in self.surfaces
            ],
            "failures": [each.to_dict() for each in self.failures],
        }

    def text(self) -> str:
        """As text for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"If {self.contract_id} were {shorten(self.proposed, 12)}"
        yield ""
        if not self.calls:
            yield "No call of this contract was recorded, so history has nothing to say."
        elif not self.replayed:
            yield f"It touches none of the {count(self.calls, 'recorded payload')}."
        elif not self.failing:
            yield f"All {count(self.replayed, 'payload')} that it touches would have passed."
        else:
            of = f"{count(self.failing, 'call')} of {self.replayed:,} that it touches"
            who = count(self.callers, "caller")
            yield f"{of} would have failed ({percentage(self.failing, self.replayed)}), of {who}."
        touched = [each for each in self.surfaces if each.replayed or each.unrecorded]
        if touched:
            yield from ("", "Surfaces")
            yield from format_table(
                ("surface", "passed", "failed", "gone", "not recorded"),
                [(s.name, s.kept, s.failed, s.gone, s.unrecorded) for s in touched],
            )
        if self.failures:
            yield from ("", "Who would have failed")
            yield from format_table(
                ("caller", "surface", "to change", "calls", "why"),
                [
                    (
                        each.caller,
                        f"{each.surface} {each.part}",
                        each.writer,
                        each.calls,
                        f"{each.pointer or ''} {each.message}".strip(),
                    )
                    for each in self.failures
                ],
            )
            yield from ("", "Witnesses")
            for each in self.failures[:_MOST_WITNESSES]:
                yield f"  {each.samples[0]}, {each.caller}"
                yield f"    {each.samples[0].excerpt}"
        yield ""
        if self.static is None:
            yield "There is no earlier contract of this lineage to compare with."
        else:
            yield f"The static verdict, against {shorten(self.against or '', 12)}:"
            yield from (f"  {line}" for line in self.static.text().splitlines())


MOST_GROUPS: Final = 1000
"""The most groups of failures by surface, caller and rule."""

_JUDGED: Final = columns(
    "kind STRING, surface STRING, part STRING, service STRING, caller STRING, "
    "caller_contract STRING, fate STRING, rule STRING, pointer STRING, message STRING, at BIGINT, "
    "id STRING, payload STRING"
)
_SURFACE: Final = ("kind", "surface", "part")
_ALIKE: Final = (*_SURFACE, "service", "caller", "caller_contract", "fate", "rule", "pointer")
_FAILING: Final = (CallOutcome.FAILED.value, CallOutcome.GONE.value)


def whatif_contract(tables: Tables, manifest: Any, against: str | None = None) -> ContractWhatIf:
    """Replay every recorded call of a contract against a proposed manifest of it.

    `against` is the digest to compare with, by default the one accepted or offered last. Raises
    ContractError, with the findings, if the proposal is not a valid manifest, and PipelineError if
    the digest to compare with is not in history.
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
    proposal = ProposedContract(canonical.encode(manifest), recorded)
    groups = _groups(tables, identity, proposal).cache()
    try:
        failing = groups.where(F.col("fate").isin(*_FAILING))
        callers = failing.select("caller").distinct().count()
        return ContractWhatIf(
            identity, proposed, base, static, _surfaces(groups), _failures(failing), callers
        )
    finally:
        groups.unpersist()


def _recorded(tables: Tables, identity: str, proposed: str) -> tuple[dict[str, bytes], str | None]:
    """Every manifest of a contract by digest, and the other digest that was taken up last."""
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


def _groups(tables: Tables, identity: str, proposal: ProposedContract) -> "DataFrame":
    """Calls with the same outcome, counted, with the first and the last of them."""

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
            witness(call["payload"]) if is_failing else None,
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


def _surfaces(groups: "DataFrame") -> tuple[SurfaceReplay, ...]:
    rows = groups.groupBy(*_SURFACE, "fate").sum("calls").orderBy(*_SURFACE, "fate").collect()
    found: dict[tuple[str, str, str], dict[str, int]] = {}
    for kind, surface, part, fate, calls in rows:
        found.setdefault((kind, surface, part), {})[fate] = calls
    fates = [each.value for each in CallOutcome]
    return tuple(
        SurfaceReplay(*place, *(counted.get(fate, 0) for fate in fates))
        for place, counted in found.items()
    )


def _failures(failing: "DataFrame") -> tuple[CallFailure, ...]:
    rows = failing.orderBy(F.desc("calls"), *_ALIKE).limit(MOST_GROUPS).collect()
    return tuple(
        CallFailure(
            **{name: row[name] for name in CallFailure.__slots__ if name != "samples"},
            samples=tuple(
                SampleRecord(*each) for each in dict.fromkeys((row["first"], row["last"]))
            ),
        )
        for row in rows
    )
