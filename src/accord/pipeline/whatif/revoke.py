"""`whatif revoke`: the fold of a community's log with and without a revocation.

The supposed revocation is one more row of the log; the tables of gold community are built over it
by their own functions, and every verdict is compared with the published one.
"""

from typing import TYPE_CHECKING, Any, Final

from accord.community.envelope import Event
from accord.kernel import canonical
from accord.pipeline.checks.verdict import Head
from accord.pipeline.definitions import Given, columns, gold_community
from accord.pipeline.definitions.tables import Tables
from accord.pipeline.errors import PipelineError
from accord.pipeline.streams import COMMUNITY_EVENTS
from accord.pipeline.whatif import revocation
from accord.pipeline.whatif.forms import count
from accord.pipeline.whatif.revocation import Cut
from accord.pipeline.whatif.revoke_outcome import Lost, RevokeWhatIf, Turned

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MOST_GROUPS: Final = 1000
"""Of events that would turn alike, told apart by author, type and rules."""

MOST_LOST: Final = 1000
"""Of things that the state would lose."""

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
    """What would change if a member were revoked.

    Args:
        tables: Where history is.
        node: Its id, the beginning of it, or its display name.
        upto: The number of its last event that would count; by default all that is known counts.
        community: The community's id or the beginning of it, where it is in several.

    Raises:
        PipelineError: There is no such member, no such event, or nobody who could revoke.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    community_id, target = _find(tables, node, community)
    state = _state(tables, community_id)
    cut = _cut(tables, state, community_id, target, upto)
    reach = tables.gold("communities").where(_is(community_id)).first()
    event = revocation.compose(state, target, cut, (reach.reach if reach else -1) + 1)
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
            signatures=revocation.needed_signatures(state),
            able=tuple(revocation.able_to_sign(state, target)),
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
    from pyspark.sql import functions as F  # noqa: N812

    return F.col("community_id") == community_id


def _find(tables: Tables, node: str, community: str | None) -> tuple[str, str]:
    """The community and the full id of the member that is meant."""
    from pyspark.sql import functions as F  # noqa: N812

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
            f"nobody of that name is in the published log: {node[:80]!r}",
            mend="see the table members",
        )
    raise PipelineError(
        f"{node[:80]!r} may be {' or '.join(f'{r.node_id} in {r.community_id}' for r in found)}",
        mend="write the full id, and --community where it is in several",
    )


def _state(tables: Tables, community_id: str) -> revocation.State:
    frame = tables.gold("community_frames").where(_is(community_id)).first()
    assert frame is not None
    state: revocation.State = canonical.decode(frame.frame)
    return state


def _seq(state: revocation.State, target: str) -> int:
    return next((int(c["author_seq"]) for c in state["authors"] if c["author"] == target), 0)


def _cut(
    tables: Tables, state: revocation.State, community_id: str, target: str, upto: int | None
) -> Cut:
    """The last event that would count, and its hash, which names the branch."""
    from pyspark.sql import functions as F  # noqa: N812

    chain = next((each for each in state["authors"] if each["author"] == target), None)
    head = Cut(0, None) if chain is None else Cut(chain["author_seq"], chain["hash"])
    if upto is None or upto == head.seq:
        return head
    if upto > head.seq:
        raise PipelineError(
            f"of {target} {count(head.seq, 'event is', 'events are')} known, so there is no {upto}",
            mend=f"name a number from 0 to {head.seq}",
        )
    if upto == 0:
        return Cut(0, None)
    at = (F.col("author") == target) & (F.col("author_seq") == upto)
    standing = (
        tables.gold("event_verdicts")
        .where(_is(community_id) & at & (F.col("rule") != "equivocation"))
        .first()
    )
    if standing is None:
        raise PipelineError(f"the event {upto} of {target} is not in the published log")
    return Cut(upto, f"blake3:{standing.digest}")


def _supposed(tables: Tables, community_id: str, event: Event) -> Given:
    """Gold community over the log with one more event."""
    from pyspark.sql import functions as F  # noqa: N812

    ours = F.col("event.community_id") == community_id
    log = tables.silver(COMMUNITY_EVENTS).where(ours)
    body, digest = event.encode().decode(), event.digest.hex()
    row = (COMMUNITY_EVENTS, 0, digest, 0, "whatif", body, "whatif", digest, tuple(Head.of(event)))
    one = tables.spark.createDataFrame([row], columns.SILVER)
    given = Given(tables.spark, {COMMUNITY_EVENTS: log.unionByName(one)})
    for table in gold_community.TABLES:
        if table.name in _BUILT:
            built = {**given.golds, table.name: table.build(given).cache()}
            given = Given(given.spark, given.silvers, golds=built)
    return given


def _turned(before: "DataFrame", after: "DataFrame") -> tuple[Turned, ...]:
    """Events whose verdict would be another, those alike together."""
    from pyspark.sql import functions as F  # noqa: N812

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
        Turned(
            row.author,
            row.event_type,
            row.status,
            row.rule,
            row.becomes,
            row.rule_after,
            row.reason,
            row.events,
            row["first"].event_id,
            row["last"].event_id,
        )
        for row in rows
    )


def _lost(tables: Tables, supposed: Tables, community_id: str) -> tuple[Lost, ...]:
    """What content comes to now and would not any more."""
    from pyspark.sql import functions as F  # noqa: N812

    def items(of: Tables) -> Any:
        kept = F.col("section").isNotNull() & _is(community_id)
        return of.gold("community_parts").where(kept).select(*_ITEM)

    # Keys may be null, and null is a key like any other here.
    gone = items(tables).exceptAll(items(supposed))
    counted = gone.groupBy("section").agg(
        F.count("*").alias("items"), F.min(F.coalesce("key", "second")).alias("sample")
    )
    rows = counted.orderBy("section").limit(MOST_LOST).collect()
    return tuple(Lost(row.section, row["items"], row.sample) for row in rows)
