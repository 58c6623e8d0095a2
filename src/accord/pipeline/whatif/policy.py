"""`whatif policy`: the gate over history, with a proposed policy in place of the recorded one."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from accord.kernel import canonical
from accord.kernel.errors import AccordError
from accord.pipeline.rules import streams
from accord.pipeline.rules.proposals import ProposedPolicy
from accord.pipeline.tables.gold_relay import latest_rows
from accord.pipeline.tables.table import F, Tables, columns
from accord.pipeline.text import SampleRecord, count, format_table, percentage
from accord.relay.rules.decision_records import DecisionRecord, from_record
from accord.relay.rules.gate import Candidate, Decision, PolicyKey, decide
from accord.relay.rules.verdicts import GateVerdict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class DeliveryChange:
    """Messages of one chat that one agent would newly receive, or not, for the same reason."""

    tenant: str | None
    instance: str
    platform: str
    scope_id: str | None
    chat_id: str
    delivered: bool  # whether it would newly receive them
    layer: str  # the layer of the gate that makes the difference
    rule_before: str
    rule_after: str
    reason: str  # the sentence of `rule_after`
    messages: int
    samples: tuple[SampleRecord, ...]  # the first and the last of the messages

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "samples"}
        return {**plain, "samples": [each.to_dict() for each in self.samples]}


@dataclass(frozen=True, slots=True)
class PolicyWhatIf:
    """The changes by a proposed policy; every number counts messages per agent."""

    newly_delivered: int
    newly_dropped: int
    still_delivered: int
    still_dropped: int
    unreadable: int  # records that the gate cannot read
    # Decisions that today's gate would not repeat even without the policy; they are not in the
    # other numbers.
    drifted: int
    groups: int  # how many kinds of change there are
    changes: tuple[DeliveryChange, ...]  # the largest of them, at most `MOST_GROUPS`

    @property
    def considered(self) -> int:
        """Messages for which an agent was a candidate."""
        changed = self.newly_delivered + self.newly_dropped
        return changed + self.still_delivered + self.still_dropped

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "changes"}
        changes = [each.to_dict() for each in self.changes]
        return {"considered": self.considered, **plain, "changes": changes}

    def text(self) -> str:
        """As text for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield "If this policy had been in force"
        yield ""
        if not self.considered:
            yield "No message was recorded about which any agent was considered."
        elif not self.changes:
            yield f"Nothing would have changed for {count(self.considered, 'message')}."
        else:
            yield from format_table(
                ("", "messages", "share"),
                [
                    (name, number, percentage(number, self.considered))
                    for name, number in self._sums()
                ],
            )
            yield from ("", "By agent")
            yield from format_table(("agent", "newly delivered", "newly dropped"), self._by_agent())
            yield from ("", "By chat, and the layer that decides")
            yield from format_table(
                ("agent", "chat", "change", "messages", "layer", "because"),
                [
                    (
                        each.instance,
                        "/".join(filter(None, (each.platform, each.scope_id, each.chat_id))),
                        "+ delivered" if each.delivered else "- dropped",
                        each.messages,
                        each.layer,
                        each.reason,
                    )
                    for each in self.changes
                ],
            )
            yield from ("", "For example")
            yield from (f"  {each.samples[0]}: {_story(each)}" for each in self.changes[:5])
        if self.drifted or self.unreadable:
            yield ""
        if self.drifted:
            what = count(self.drifted, "decision was", "decisions were")
            yield f"{what} made by a gate that decided otherwise than today's, and left out."
        if self.unreadable:
            yield f"{count(self.unreadable, 'record')} could not be read, and left out."

    def _sums(self) -> tuple[tuple[str, int], ...]:
        return (
            ("newly delivered", self.newly_delivered),
            ("newly dropped", self.newly_dropped),
            ("delivered as before", self.still_delivered),
            ("dropped as before", self.still_dropped),
        )

    def _by_agent(self) -> list[tuple[str, int, int]]:
        more: Counter[str] = Counter()
        less: Counter[str] = Counter()
        for each in self.changes:
            (more if each.delivered else less)[each.instance] += each.messages
        moved = more + less
        return [(name, more[name], less[name]) for name, _ in moved.most_common()]


def _story(changed: DeliveryChange) -> str:
    then, now = ("delivered", "dropped") if not changed.delivered else ("dropped", "delivered")
    return f"{then} by {changed.rule_before}, would be {now} by {changed.rule_after}"


MOST_GROUPS: Final = 10_000
"""The most groups of changes by agent, chat and rules."""

DELIVERED: Final = "delivered"
DROPPED: Final = "dropped"
UNREADABLE: Final = "unreadable"
DRIFTED: Final = "drifted"

_JUDGED: Final = columns(
    "tenant STRING, instance STRING, platform STRING, scope_id STRING, chat_id STRING, "
    "before STRING, after STRING, layer STRING, rule_before STRING, rule_after STRING, "
    "reason STRING, at BIGINT, id STRING"
)
_ALIKE: Final = tuple(name for name in _JUDGED if name not in ("at", "id"))


class MessageOutcome(NamedTuple):
    """The outcome of an event for one instance, with the verdict that decided it."""

    delivers: bool
    verdict: GateVerdict

    @property
    def word(self) -> str:
        """The outcome as a word, for tables."""
        return DELIVERED if self.delivers else DROPPED


def replay_decision(recorded: DecisionRecord, policy: ProposedPolicy) -> Decision:
    """The gate's decision under a proposed policy."""
    event, tenant = recorded.event, recorded.decision.tenant
    if tenant is None:
        return decide(event, recorded.facts)
    keys = [
        PolicyKey(tenant, each.instance, event.platform) for each in recorded.decision.candidates
    ]
    return decide(event, policy.applied(recorded.facts, keys))


def whatif_policy(tables: Tables, policy: ProposedPolicy) -> PolicyWhatIf:
    """Replay every recorded decision under a proposed policy."""
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
    def judge(row: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
        try:
            recorded = from_record(canonical.decode(row["body"]))
        except AccordError as error:
            unknown = (None,) * 5
            why = (UNREADABLE, UNREADABLE, None, None, None, error.what)
            yield *unknown, *why, row["recorded_at"], row["id"]
            return
        name = row["id"] if recorded.again is None else recorded.again.event
        for change in _outcomes(recorded, policy):
            yield *change, row["recorded_at"], name

    decisions = tables.silver(streams.RELAY_DECISIONS).select("id", "recorded_at", "body")
    sample = F.struct("at", "id")
    judged = latest_rows(decisions, judge, _JUDGED, "id")
    return judged.groupBy(*_ALIKE).agg(
        F.count("*").alias("messages"),
        F.min(sample).alias("first"),
        F.max(sample).alias("last"),
    )


def _outcomes(recorded: DecisionRecord, policy: ProposedPolicy) -> Iterator[tuple[Any, ...]]:
    """The recorded and the new outcome of each candidate."""
    event, decision = recorded.event, recorded.decision
    place = (event.platform, event.scope_id, event.chat_id)
    # A decision that differs without the proposal shows a change of the gate, not of the policy.
    drifted = decide(event, recorded.facts) != decision
    after = {each.instance: _outcome(each) for each in replay_decision(recorded, policy).candidates}
    # A decision that was made again is about one instance.
    only = None if recorded.again is None else recorded.again.instance
    for candidate in decision.candidates:
        if only not in (None, candidate.instance):
            continue
        before, then = _outcome(candidate), after.get(candidate.instance)
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


def _outcome(candidate: Candidate) -> MessageOutcome:
    """The first refusal decides; without one, the last verdict."""
    refusal = next((each for each in candidate.verdicts if not each.passed), None)
    return MessageOutcome(refusal is None, refusal or candidate.relevance)


def _changed(row: Any) -> DeliveryChange:
    return DeliveryChange(
        **{name: row[name] for name in _ALIKE if name not in ("before", "after")},
        delivered=row.after == DELIVERED,
        messages=row.messages,
        samples=tuple(SampleRecord(*each) for each in dict.fromkeys((row["first"], row["last"]))),
    )
