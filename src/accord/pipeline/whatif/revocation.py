"""`whatif revoke`: the fold of a community's log with and without a revocation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from accord.community.rules.event import Event
from accord.kernel import canonical
from accord.pipeline.errors import PipelineError
from accord.pipeline.rules import proposals
from accord.pipeline.rules.checks import EventHead
from accord.pipeline.rules.proposals import RevocationCut
from accord.pipeline.rules.streams import COMMUNITY_EVENTS
from accord.pipeline.tables import SILVER, gold_community
from accord.pipeline.tables.table import F, GivenTables, Tables
from accord.pipeline.text import count, format_table, shorten

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_NAMES: Final = {
    "chat": "messages",
    "corpora": "documents of corpora",
    "files": "holdings of files",
    "manifests": "manifests",
    "market": "posts",
}


@dataclass(frozen=True, slots=True)
class VerdictChange:
    """Events of one author whose verdict changes for the same reason, in the order of the log."""

    author: str
    event_type: str
    status: str
    rule: str
    becomes: str
    rule_after: str
    reason: str
    events: int
    first: str
    last: str


@dataclass(frozen=True, slots=True)
class LostItems:
    """Items of one kind that the state would lose, with the name of one of them."""

    section: str
    items: int
    sample: str


@dataclass(frozen=True, slots=True)
class RevokeWhatIf:
    """The effects of a revocation."""

    community_id: str
    target: str
    last_seq: int  # the number of the target's last event that would stay valid, of `known_seq`
    known_seq: int
    stands: bool  # whether the fold would accept the revocation, by `rule` and `reason`
    rule: str
    reason: str
    signatures: int  # how many members must sign it
    able: tuple[str, ...]  # members who may sign
    turned: tuple[VerdictChange, ...]  # events whose verdict would change, the largest groups first
    # Others who would lose membership, because whoever admitted them had no right to.
    members: tuple[str, ...]
    lost: tuple[LostItems, ...]  # what the state would lose

    @property
    def voided(self) -> int:
        """The number of valid events that would become invalid."""
        return sum(each.events for each in self.turned if each.status == "accepted")

    @property
    def of_others(self) -> int:
        """The number of them that others wrote."""
        return self.voided - sum(
            each.events
            for each in self.turned
            if each.status == "accepted" and each.author == self.target
        )

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        plain: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return {
            **plain,
            "able": list(self.able),
            "members": list(self.members),
            "voided": self.voided,
            "of_others": self.of_others,
            "turned": [
                {name: getattr(each, name) for name in each.__slots__} for each in self.turned
            ],
            "lost": [{name: getattr(each, name) for name in each.__slots__} for each in self.lost],
        }

    def text(self) -> str:
        """As text for people."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"If {self.target} were revoked after its event {self.last_seq} of {self.known_seq}"
        yield ""
        if not self.stands:
            yield f"The revocation would not stand: {self.reason} [{self.rule}]."
            able = count(len(self.able), "member may", "members may")
            yield f"It needs {count(self.signatures, 'signature')}; {able} sign."
            return
        signing = f"{self.signatures} of {count(len(self.able), 'member')} who may sign"
        yield f"It would stand with the signatures of {signing}."
        if not self.turned:
            yield "No earlier event would be void; only new events of the member would be refused."
        else:
            others = f", {self.of_others:,} of them by others" if self.of_others else ""
            yield f"{count(self.voided, 'event')} that count now would not{others}."
            yield from ("", "Events")
            yield from format_table(
                ("author", "type", "events", "now", "then", "because"),
                [
                    (
                        "the member itself" if each.author == self.target else _short(each.author),
                        each.event_type,
                        each.events,
                        each.status,
                        each.becomes,
                        each.reason,
                    )
                    for each in self.turned
                ],
            )
        if self.members:
            yield from ("", "Others who would lose their membership")
            yield from format_table(("member",), [(each,) for each in self.members])
        if self.lost:
            yield from ("", "What the community would lose")
            yield from format_table(
                ("what", "how many", "for example"),
                [(_NAMES.get(e.section, e.section), e.items, e.sample) for e in self.lost],
            )


def _short(node_id: str) -> str:
    return shorten(node_id.removeprefix("ed25519:"), 12)


MOST_GROUPS: Final = 1000
"""The most groups of changed events by author, type and rules."""

MOST_LOST: Final = 1000
"""The most items that the state would lose."""

_BUILT: Final = (
    "communities",
    "author_chains",
    "membership_timeline",
    "community_frames",
    "community_parts",
    "event_verdicts",
)
_ALIKE: Final = ("author", "event_type", "status", "rule", "becomes", "rule_after", "reason")
_ITEM: Final = ("section", "key", "second")


def whatif_revoke(
    tables: Tables, node: str, upto: int | None = None, community: str | None = None
) -> RevokeWhatIf:
    """The effects of revoking a member.

    `node` is the member's id, a prefix of it, or its display name; `upto` the number of its last
    event that would stay valid, by default all known ones; `community` an id or a prefix, if the
    member is in several. Raises PipelineError if there is no such member or event, or nobody could
    revoke the member.
    """
    community_id, target = _find(tables, node, community)
    state = _state(tables, community_id)
    cut = _cut(tables, state, community_id, target, upto)
    reach = tables.gold("communities").where(_is(community_id)).first()
    event = proposals.compose_revocation(state, target, cut, (reach.reach if reach else -1) + 1)
    supposed = _supposed(tables, community_id, event)
    try:
        own = F.col("digest") == event.digest.hex()
        before = tables.gold("event_verdicts").where(_is(community_id))
        after = supposed.gold("event_verdicts").where(~own)
        verdict = supposed.gold("event_verdicts").where(own).first()
        assert verdict is not None
        then = _state(supposed, community_id)
        remaining = {each["node_id"] for each in then["members"]} | {target}
        return RevokeWhatIf(
            community_id=community_id,
            target=target,
            last_seq=cut.seq,
            known_seq=_seq(state, target),
            stands=verdict.status == "accepted",
            rule=verdict.rule,
            reason=verdict.reason,
            signatures=proposals.needed_signatures(state, target),
            able=tuple(proposals.able_to_sign(state, target)),
            turned=_turned(before, after),
            members=tuple(
                each["node_id"] for each in state["members"] if each["node_id"] not in remaining
            ),
            lost=_lost(tables, supposed, community_id),
        )
    finally:
        for frame in supposed.golds.values():
            frame.unpersist()


def _is(community_id: str) -> "Column":
    return F.col("community_id") == community_id


def _find(tables: Tables, node: str, community: str | None) -> tuple[str, str]:
    """The community and the full id of the member."""
    authors = tables.gold("author_chains").select("community_id", F.col("author").alias("node_id"))
    named = tables.gold("members").select("community_id", "node_id", "display_name")
    known = authors.join(named, ["community_id", "node_id"], "full")
    bare = F.substring_index("node_id", ":", -1)
    is_meant = (
        (F.col("node_id") == node) | (F.col("display_name") == node) | bare.startswith(node)
    ) & (F.col("community_id") != F.col("node_id"))
    if community is not None:
        in_it = F.substring_index("community_id", ":", -1).startswith(
            community.removeprefix("ed25519:")
        )
        is_meant = is_meant & in_it
    found = known.where(is_meant).select("community_id", "node_id").distinct().limit(3).collect()
    exact = [row for row in found if row.node_id == node]
    if len(exact or found) == 1:
        [row] = exact or found
        return row.community_id, row.node_id
    if not found:
        raise PipelineError(
            f"the published log has no member {node[:80]!r}",
            mend="see the table members",
        )
    raise PipelineError(
        f"{node[:80]!r} may be {' or '.join(f'{r.node_id} in {r.community_id}' for r in found)}",
        mend="write the full id, and --community where it is in several",
    )


def _state(tables: Tables, community_id: str) -> proposals.StateObject:
    frame = tables.gold("community_frames").where(_is(community_id)).first()
    assert frame is not None
    state: proposals.StateObject = canonical.decode(frame.frame)
    return state


def _seq(state: proposals.StateObject, target: str) -> int:
    return next((int(c["author_seq"]) for c in state["authors"] if c["author"] == target), 0)


def _cut(
    tables: Tables, state: proposals.StateObject, community_id: str, target: str, upto: int | None
) -> RevocationCut:
    """The last event that would stay valid, and its hash, which identifies the branch."""
    chain = next((each for each in state["authors"] if each["author"] == target), None)
    head = RevocationCut(chain["author_seq"], chain["hash"]) if chain else RevocationCut(0, None)
    if upto is None or upto == head.seq:
        return head
    if upto > head.seq:
        raise PipelineError(
            f"of {target} {count(head.seq, 'event is', 'events are')} known, so there is no {upto}",
            mend=f"name a number from 0 to {head.seq}",
        )
    if upto == 0:
        return RevocationCut(0, None)
    at = (F.col("author") == target) & (F.col("author_seq") == upto)
    last = (
        tables.gold("event_verdicts")
        .where(_is(community_id) & at & (F.col("rule") != "equivocation"))
        .first()
    )
    if last is None:
        raise PipelineError(f"the event {upto} of {target} is not in the published log")
    return RevocationCut(upto, f"blake3:{last.digest}")


def _supposed(tables: Tables, community_id: str, event: Event) -> GivenTables:
    """The gold tables of a community over its log with one more event."""
    ours = F.col("event.community_id") == community_id
    log = tables.silver(COMMUNITY_EVENTS).where(ours)
    body, digest = event.encode().decode(), event.digest.hex()
    landed = (COMMUNITY_EVENTS, 0, digest, 0, "whatif", body)
    row = (*landed, "whatif", digest, tuple(EventHead.of(event)))
    one = tables.spark.createDataFrame([row], SILVER)
    supposed = GivenTables(tables.spark, {COMMUNITY_EVENTS: log.unionByName(one)})
    for table in gold_community.COMMUNITY_TABLES:
        if table.name in _BUILT:
            built = {**supposed.golds, table.name: table.build(supposed).cache()}
            supposed = GivenTables(supposed.spark, supposed.silvers, golds=built)
    return supposed


def _turned(before: "DataFrame", after: "DataFrame") -> tuple[VerdictChange, ...]:
    """Events whose verdict would change, grouped."""
    then = after.select(
        "digest",
        F.col("status").alias("becomes"),
        F.col("rule").alias("rule_after"),
        F.col("reason").alias("why"),
    )
    rows = (
        before.drop("reason")
        .join(then, "digest")
        .where(F.col("rule") != F.col("rule_after"))
        .withColumnRenamed("why", "reason")
        .groupBy(*_ALIKE)
        .agg(
            F.count("*").alias("events"),
            F.min(F.struct("lamport", "event_id")).alias("first"),
            F.max(F.struct("lamport", "event_id")).alias("last"),
        )
        .orderBy(F.desc("events"), *_ALIKE)
        .limit(MOST_GROUPS)
        .collect()
    )
    return tuple(
        VerdictChange(
            **{name: row[name] for name in (*_ALIKE, "events")},
            first=row["first"].event_id,
            last=row["last"].event_id,
        )
        for row in rows
    )


def _lost(tables: Tables, supposed: Tables, community_id: str) -> tuple[LostItems, ...]:
    """Items of content that would be lost."""

    def items(of: Tables) -> Any:
        kept = F.col("section").isNotNull() & _is(community_id)
        return of.gold("community_parts").where(kept).select(*_ITEM)

    # Keys may be null, which is a key like any other here.
    gone = items(tables).exceptAll(items(supposed))
    counted = gone.groupBy("section").agg(
        F.count("*").alias("items"), F.min(F.coalesce("key", "second")).alias("sample")
    )
    rows = counted.orderBy("section").limit(MOST_LOST).collect()
    return tuple(LostItems(row.section, row["items"], row.sample) for row in rows)
