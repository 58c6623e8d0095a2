"""Beginning with a snapshot, where a community has let go of its oldest content.

Membership is never pruned, so who the anchors are is proven by the log in the end; a joiner only
takes their word for the content that nobody can give it any more, and where there are two anchors
it wants the same word from both.
"""

from contextlib import AsyncExitStack
from typing import Any

from accord.community.client import Client
from accord.community.discovery import Endpoint
from accord.community.envelope.names import Level
from accord.community.errors import Code, CommunityError
from accord.community.fold import State, state_from
from accord.community.fold.vouching import Snapshot, agree, read_snapshot
from accord.community.log.upkeep import adopt
from accord.community.node.dialing import Dialler
from accord.community.node.hosted import Hosted
from accord.community.sync import Met, meet
from accord.community.sync.meeting import SNAPSHOT
from accord.kernel import canonical


async def meet_from(hosted: Hosted, client: Client, dialler: Dialler) -> Met:
    """Meet a node; where it has pruned what this log never had, begin anew with a snapshot.

    Raises:
        CommunityError: What `meet` says; too few anchors vouch for a snapshot: `unauthorized`.
    """
    met = await meet(client, hosted.holdings)
    if met.lacking == 0:
        return met
    snapshot = await begin(hosted, client, dialler)
    if snapshot is None:
        return met
    again = await meet(client, hosted.holdings)
    await finish(hosted, snapshot)
    return again


async def begin(hosted: Hosted, client: Client, dialler: Dialler) -> Snapshot | None:
    """Begin a log with a snapshot, if the node that was reached has pruned its own.

    Returns:
        The snapshot; None when none is needed.

    Raises:
        CommunityError: Too few anchors vouch for one: `unauthorized`.
    """
    first = await _ask(client, None)
    if first is None:
        return None
    state = state_from(first.state)
    if not state.roster.floors:
        return None
    anchors = {
        node_id
        for node_id, member in state.roster.members.items()
        if member.level is Level.ANCHOR and node_id != hosted.own_id
    }
    snapshots = [first]
    for node_id in sorted(anchors - {first.author}):
        if len(snapshots) > 1:
            break
        snapshots += await _ask_anchor(hosted, state, node_id, first.lamport, dialler)
    agreed = agree(snapshots, anchors)
    await adopt(hosted.log, agreed, frozenset(anchors))
    return agreed


async def finish(hosted: Hosted, snapshot: Snapshot) -> None:
    """Fold the log that has come on top of a snapshot, which then proves who vouched for it.

    Raises:
        CommunityError: It was no anchor: `unauthorized`.
    """
    await hosted.log.refold()
    if hosted.level_of(snapshot.author) is not Level.ANCHOR:
        raise CommunityError(
            Code.UNAUTHORIZED,
            "the snapshot that this log began with was not signed by an anchor",
            where=snapshot.author,
            mend="remove the community's log and join through another node",
        )


async def _ask(client: Client, lamport: int | None) -> Snapshot | None:
    try:
        told: Any = await client.post(SNAPSHOT, {"lamport": lamport})
    except CommunityError as error:
        if error.code is Code.NOT_FOUND:
            return None
        raise
    return read_snapshot(canonical.encode(told), client.community)


async def _ask_anchor(
    hosted: Hosted, state: State, node_id: str, lamport: int, dialler: Dialler
) -> list[Snapshot]:
    manifest = state.content.manifests.get(node_id)
    for endpoint in manifest.endpoints if manifest is not None else ():
        try:
            async with AsyncExitStack() as opened:
                address = Endpoint(*endpoint).url
                client, _ = await dialler.dial(
                    address, hosted.community_id, opened, node_id=node_id
                )
                found = await _ask(client, lamport)
        except CommunityError:
            continue  # another endpoint or another anchor may answer
        if found is not None:
            return [found]
    return []
