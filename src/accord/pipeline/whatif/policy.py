"""`whatif policy`: the gate over history, with a proposed policy in place of the one that was.

Every recorded decision is read back with the facts that it was made from, the policy is put in
their place, and `gate.decide` decides again. Nothing but the policy differs.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from accord.kernel import canonical
from accord.kernel.errors import AccordError
from accord.pipeline import streams
from accord.pipeline.definitions.tables import Tables
from accord.pipeline.rows import Columns, flat_map
from accord.pipeline.whatif.forms import Sample
from accord.pipeline.whatif.policy_outcome import Changed, PolicyWhatIf
from accord.pipeline.whatif.proposals import ProposedPolicy
from accord.relay.gate import Candidate, Decision, Recorded, Seat, Verdict, decide, from_record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_GROUPS: Final = 10_000
"""Of changes that are alike, told apart by agent, chat and rules: those that move most messages."""

DELIVERED: Final = "delivered"
DROPPED: Final = "dropped"
UNREADABLE: Final = "unreadable"
DRIFTED: Final = "drifted"

_JUDGED: Final[Columns] = {
    "tenant": "STRING",
    "instance": "STRING",
    "platform": "STRING",
    "scope_id": "STRING",
    "chat_id": "STRING",
    "before": "STRING",
    "after": "STRING",
    "layer": "STRING",
    "rule_before": "STRING",
    "rule_after": "STRING",
    "reason": "STRING",
    "at": "BIGINT",
    "id": "STRING",
}
_ALIKE: Final = tuple(name for name in _JUDGED if name not in ("at", "id"))


class Fate(NamedTuple):
    """What becomes of an event for one instance, with the verdict that settles it."""

    delivers: bool
    verdict: Verdict

    @property
    def word(self) -> str:
        """For tables."""
        return DELIVERED if self.delivers else DROPPED


def replayed(recorded: Recorded, policy: ProposedPolicy) -> Decision:
    """What the gate would have decided."""
    event, tenant = recorded.event, recorded.decision.tenant
    if tenant is None:
        return decide(event, recorded.facts)
    seats = [Seat(tenant, each.instance, event.platform) for each in recorded.decision.candidates]
    return decide(event, policy.applied(recorded.facts, seats))


def whatif_policy(tables: Tables, policy: ProposedPolicy) -> PolicyWhatIf:
    """Decide again about every event that was ever taken, by the proposed policy."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    groups = _groups(tables, policy).cache()
    try:
        moved = groups.where(
            F.col("before").isin(DELIVERED, DROPPED) & (F.col("before") != F.col("after"))
        )
        totals = {
            (row.before, row.after): row.messages
            for row in groups.groupBy("before", "after")
            .agg(F.sum("messages").alias("messages"))
            .collect()
        }
        rows = moved.orderBy(F.desc("messages"), *_ALIKE).limit(MOST_GROUPS).collect()
        return PolicyWhatIf(
            newly_delivered=totals.get((DROPPED, DELIVERED), 0),
            newly_dropped=totals.get((DELIVERED, DROPPED), 0),
            still_delivered=totals.get((DELIVERED, DELIVERED), 0),
            still_dropped=totals.get((DROPPED, DROPPED), 0),
            unreadable=totals.get((UNREADABLE, UNREADABLE), 0),
            drifted=sum(of for (before, _), of in totals.items() if before == DRIFTED),
            groups=moved.count(),
            changes=tuple(map(_changed, rows)),
        )
    finally:
        groups.unpersist()


def _groups(tables: Tables, policy: ProposedPolicy) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812

    def judge(row: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        try:
            recorded = from_record(canonical.decode(row["body"]))
        except AccordError as error:
            unknown = (None,) * 5
            why = (UNREADABLE, UNREADABLE, None, None, None, error.what)
            yield *unknown, *why, row["recorded_at"], row["id"]
            return
        for change in _fates(recorded, policy):
            yield *change, row["recorded_at"], row["id"]

    decisions = tables.silver(streams.RELAY_DECISIONS).select("id", "recorded_at", "body")
    sample = F.struct("at", "id")
    return (
        flat_map(decisions, judge, _JUDGED)
        .groupBy(*_ALIKE)
        .agg(
            F.count("*").alias("messages"),
            F.min(sample).alias("first"),
            F.max(sample).alias("last"),
        )
    )


def _fates(recorded: Recorded, policy: ProposedPolicy) -> Iterator[tuple[Any, ...]]:
    """Of each instance that was considered: what became of the event, and what would have."""
    event, decision = recorded.event, recorded.decision
    place = (event.platform, event.scope_id, event.chat_id)
    # A record that this gate would not repeat shows a change of the gate, not of the policy.
    drifted = decide(event, recorded.facts) != decision
    after = {each.instance: _fate(each) for each in replayed(recorded, policy).candidates}
    for candidate in decision.candidates:
        before, then = _fate(candidate), after.get(candidate.instance)
        if then is None or drifted:
            yield decision.tenant, candidate.instance, *place, DRIFTED, DRIFTED, *(None,) * 4
            continue
        yield (
            decision.tenant,
            candidate.instance,
            *place,
            before.word,
            then.word,
            (before if then.delivers else then).verdict.layer.value,
            before.verdict.rule,
            then.verdict.rule,
            then.verdict.sentence,
        )


def _fate(candidate: Candidate) -> Fate:
    """The first "no" settles it; where there is none, the last "yes"."""
    refusal = next((each for each in candidate.verdicts if not each.passed), None)
    return Fate(refusal is None, refusal or candidate.relevance)


def _changed(row: Any) -> Changed:
    return Changed(
        row.tenant,
        row.instance,
        row.platform,
        row.scope_id,
        row.chat_id,
        row.after == DELIVERED,
        row.layer,
        row.rule_before,
        row.rule_after,
        row.reason,
        row.messages,
        tuple(Sample(*each) for each in dict.fromkeys((row["first"], row["last"]))),
    )
