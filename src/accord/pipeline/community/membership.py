"""Stage (b): who belongs, settled on the driver: it is sequential, and small.

Brings chains and membership events to the driver and gives the grounds by which content is judged,
one for each community. Never sees content.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from accord.community.envelope import Event
from accord.community.fold import VERDICTS
from accord.community.fold.chains import Chain
from accord.community.fold.content import Content
from accord.community.fold.folding import Ground, ground
from accord.community.fold.history import MEMBERSHIP
from accord.community.fold.state import state_object
from accord.kernel import canonical
from accord.pipeline.community.chains import CHAINS, chain_from
from accord.pipeline.community.landed import event_of
from accord.pipeline.rows import Columns, Row, rows_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

Grounds: TypeAlias = Mapping[str, Ground]
"""By community."""

TIMELINE: Final[Columns] = {
    "community_id": "STRING",
    "lamport": "BIGINT",
    "event_id": "STRING",
    "digest": "STRING",
    "author": "STRING",
    "event_type": "STRING",
    "at": "STRING",
    "status": "STRING",
    "rule": "STRING",
    "reason": "STRING",
    "node_id": "STRING",
    "level": "STRING",
    "policy": "STRING",
    "body": "STRING",
}
"""A membership event, what it came to, and whose level or which policy it set."""

_QUARANTINED: Final = VERDICTS["lamport.gap"]


def membership_rows(events: "DataFrame") -> "pa.Table":
    """Community, digest and body of every membership event."""
    ours = events.where(events.event_type.isin(*MEMBERSHIP))
    return ours.select("community_id", "digest", "body").toArrow()


def grounds(reached: Mapping[str, int], chains: "DataFrame", membership: "pa.Table") -> Grounds:
    """What the content of each community is judged by."""
    of_author: dict[str, dict[str, Chain]] = {community_id: {} for community_id in reached}
    members: dict[str, list[Event]] = {community_id: [] for community_id in reached}
    for community_id, author, *columns in rows_of(chains.select(*CHAINS).toArrow()):
        of_author[community_id][author] = chain_from(tuple(columns))
    for community_id, digest, body in rows_of(membership):
        members[community_id].append(event_of(body, digest))
    return {
        community_id: ground(
            community_id,
            of_author[community_id],
            reached[community_id],
            sorted(members[community_id], key=lambda event: event.position),
        )
        for community_id in reached
    }


def timeline(on: Iterable[Ground], membership: "pa.Table") -> Iterator[Row]:
    """Every membership event in order, with what it came to."""
    bodies = {digest: body for _, digest, body in rows_of(membership)}
    for each in on:
        for event in each.membership:
            outcome = each.roster.outcomes.get(event.digest)
            verdict = _QUARANTINED if outcome is None else outcome.verdict
            is_about = outcome is not None and outcome.node is not None
            policy = None if outcome is None else outcome.policy
            yield (
                event.community_id,
                event.lamport,
                event.event_id,
                event.digest.hex(),
                event.author,
                event.event_type,
                event.wall_clock,
                verdict.status.value,
                verdict.rule,
                verdict.reason,
                outcome.node if outcome is not None else None,
                outcome.level.text if outcome is not None and is_about else None,
                None if policy is None else canonical.encode(dict(policy)).decode(),
                bodies[event.digest.hex()],
            )


def frame_of(on: Ground) -> str:
    """The state that membership and chains alone come to, as JSON."""
    return canonical.encode(state_object(on.state(Content()))).decode()
