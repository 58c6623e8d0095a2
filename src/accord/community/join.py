"""Found a community, join one by an invite, and start a log from a snapshot.

Membership events are never pruned, so the log eventually proves who the anchors are. A snapshot is
trusted only for pruned content, and only if two anchors signed it (one where there is only one).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

from accord.community import queries
from accord.community.client import Client
from accord.community.communities import HostedCommunity
from accord.community.dialler import Dialler
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.peers import Endpoint
from accord.community.retention import adopt_snapshot
from accord.community.rules import formats
from accord.community.rules.formats import Level, display_id
from accord.community.rules.invites import Invite
from accord.community.rules.snapshots import Snapshot, choose_snapshot
from accord.community.rules.state import CommunityState, read_state
from accord.community.snapshots import fetch_snapshot, fetch_voucher
from accord.community.sync import SyncResult, sync_with
from accord.kernel.confusables import skeleton


async def sync_or_begin(hosted: HostedCommunity, client: Client, dialler: Dialler) -> SyncResult:
    """Sync with a node; if it has pruned events that this log lacks, start over from a snapshot.

    Raises what `sync_with` raises, and `unauthorized` if too few anchors signed a snapshot.
    """
    met = await sync_with(client, hosted.holdings)
    if met.lacking == 0:
        return met
    snapshot = await begin_with_snapshot(hosted, client, dialler)
    if snapshot is None:
        return met
    while not (again := await sync_with(client, hosted.holdings)).is_complete:
        pass  # each such sync brought something new
    await finish_beginning(hosted, snapshot)
    return again


async def begin_with_snapshot(
    hosted: HostedCommunity, client: Client, dialler: Dialler
) -> Snapshot | None:
    """Start a log from a snapshot if the other node has pruned its own; None if not needed.

    Raises `unauthorized` if too few anchors signed one: by this log where this node is a member,
    else by the snapshot itself, which `finish_beginning` checks.
    """
    first = await fetch_snapshot(client, None, folder=hosted.log.folder)
    if first is None:
        return None
    state = await asyncio.to_thread(read_state, first.state)
    if not state.roster.floors:
        return None
    # A member's own log says who the anchors are; in a snapshot anybody could name itself one.
    told = await hosted.log.view(_anchors) if hosted.is_member else _anchors(state)
    anchors = told - {hosted.own_id}
    snapshots = [first]
    for node_id in sorted(anchors - {first.author}):
        if len(snapshots) > 1:
            break
        snapshots += await _ask_anchor(hosted, state, node_id, first, dialler)
    agreed = await asyncio.to_thread(choose_snapshot, snapshots, anchors)
    await adopt_snapshot(hosted.log, agreed, frozenset(anchors))
    return agreed


def _anchors(state: CommunityState) -> set[str]:
    members = state.roster.members.items()
    return {node_id for node_id, member in members if member.level is Level.ANCHOR}


async def finish_beginning(hosted: HostedCommunity, snapshot: Snapshot) -> None:
    """Fold the log after a snapshot start; raises `unauthorized` if the signer was no anchor."""
    await hosted.log.refold()
    if hosted.level_of(snapshot.author) is not Level.ANCHOR:
        raise CommunityError(
            Code.UNAUTHORIZED,
            "the snapshot that this log began with was not signed by an anchor",
            where=snapshot.author,
            mend="remove the community's log and join through another node",
        )


async def _ask_anchor(
    hosted: HostedCommunity, state: CommunityState, node_id: str, first: Snapshot, dialler: Dialler
) -> list[Snapshot]:
    manifest = state.content.manifests.get(node_id)
    for endpoint in manifest.endpoints if manifest is not None else ():
        try:
            async with AsyncExitStack() as opened:
                address = Endpoint(*endpoint).url
                client, _ = await dialler.dial(
                    address, hosted.community_id, opened, node_id=node_id
                )
                found = await fetch_voucher(client, first)
        except CommunityError:
            continue  # another endpoint or another anchor may answer
        if found is not None:
            return [found]
    return []


DEFAULT_POLICY: Final[Mapping[str, Any]] = {
    "min_signatures_to_invite": 1,
    "min_signatures_to_promote": 1,
    "min_signatures_to_demote": 3,
    "min_signatures_to_revoke": 3,
    "capability_token_ttl_seconds": 86_400,
    "federation_enabled": True,
    "default_member_can_invite": True,
    "unchained_events": False,
}
"""The policy of a community that is founded without saying otherwise."""


def founding_data(founder: str, name: str, policy: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a founding event; raises `bad_request` if the name or policy is invalid."""
    data = {"name": name, "founder_node_id": founder, "policy": {**DEFAULT_POLICY, **policy}}
    formats.check_event_data(
        "community.created", formats.current_version("community.created"), data
    )
    return data


def name_in_community(
    node_id: str,
    *,
    wanted: str | None,
    own: str,
    is_named: bool,
    proposed: str | None,
    others: Collection[str],
) -> str:
    """The display name of a node in a community that it joins.

    Args:
        wanted: The name that the owner chose for this community; used unchanged.
        own: The node's general name.
        is_named: Whether the owner chose the general name.
        proposed: The name in the invite.
        others: The names of the present members.
    """
    if wanted is not None:
        return wanted
    name = own if is_named or not proposed else proposed
    # A name that the owner did not choose must not equal or resemble another's.
    if skeleton(name) in map(skeleton, others):
        return f"{name} {display_id(node_id).partition('-')[0]}"
    return name


async def redeem_invite(
    hosted: HostedCommunity,
    invite: Invite,
    dialler: Dialler,
    manifest: Callable[[str | None, Collection[str]], Mapping[str, Any]],
) -> None:
    """Fetch the log from the nodes that an invite names, and join.

    Args:
        manifest: Signs this node's manifest, given the name that the inviter proposed and the
            names of the members.

    Raises:
        CommunityError: None of the nodes can be reached (`partition`), or the invite is not in
            the log (`unauthorized`).
    """

    async def join() -> None:
        await _join(hosted, manifest)

    await _from_first(hosted, invite.bootstrap_endpoints, dialler, join)


async def fetch_log(hosted: HostedCommunity, addresses: Iterable[str], dialler: Dialler) -> None:
    """Fetch the log from the first address where a member answers; else raise the last error."""

    async def nothing_more() -> None:
        pass

    await _from_first(hosted, addresses, dialler, nothing_more)


async def _from_first(
    hosted: HostedCommunity,
    addresses: Iterable[str],
    dialler: Dialler,
    then: Callable[[], Awaitable[None]],
) -> None:
    failure: CommunityError | None = None
    for address in addresses:
        try:
            async with AsyncExitStack() as opened:
                client, _ = await dialler.dial(address, hosted.community_id, opened)
                await sync_or_begin(hosted, client, dialler)
                _check_member(hosted, client.node_id, address)
                # This node's own chain is complete now.
                if hosted.log.is_recovering:
                    await hosted.log.recovered()
                await then()
                await sync_with(client, hosted.holdings)
        except CommunityError as error:
            failure = error
            continue
        return
    raise failure or bad_request(
        "no address of a node to ask is known", mend="name one, or a new invite"
    )


def _check_member(hosted: HostedCommunity, node_id: str, address: str) -> None:
    if hosted.level_of(node_id) < Level.MEMBER:
        raise CommunityError(
            Code.UNAUTHORIZED,
            "the node there is no member of the community",
            where=address[:120],
            mend="ask another one",
        )


async def _join(
    hosted: HostedCommunity, manifest: Callable[[str | None, Collection[str]], Mapping[str, Any]]
) -> None:
    if hosted.is_member:
        return
    standing = hosted.state.open_invites(hosted.own_id, hosted.log.clock.now())
    if not hosted.state.is_founded or not standing:
        raise CommunityError(
            Code.UNAUTHORIZED,
            "the community's log has no open invite for this node",
            mend="ask for a new one",
        )
    redeemable = [
        event_id
        for event_id in standing
        if any(each.is_redeemable for each in hosted.state.roster.invites[event_id, hosted.own_id])
    ]
    if not redeemable:
        raise CommunityError(
            Code.UNAUTHORIZED,
            "the node that was asked could not have given the invite, so it cannot witness that "
            "this node came in time",
            mend="join through the node that has sent the invite",
        )
    others = [each["display_name"] or "" for each in await queries.list_members(hosted)]
    own = manifest(await _proposed(hosted, redeemable), others)
    await hosted.log.append(
        "community.member.joined",
        {"invite_event_id": redeemable[0], "node_manifest": dict(own)},
    )


async def _proposed(hosted: HostedCommunity, invites: Iterable[str]) -> str | None:
    """The name that the last of the open invites proposes for this node."""
    found: list[tuple[int, str]] = []
    for event_id in invites:
        for each in await queries.find_events(hosted, event_id):
            data = (each["event"] or {}).get("data", {})
            if each["status"] == "accepted" and data.get("invitee_node_id") == hosted.own_id:
                found += [(each["lamport"], data["display_name"])] if "display_name" in data else []
    return max(found)[1] if found else None
