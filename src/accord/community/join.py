"""Found a community, or join one by an invite."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

from accord.community import queries
from accord.community.communities import HostedCommunity
from accord.community.dialler import Dialler
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import formats
from accord.community.rules.formats import Level, display_id
from accord.community.rules.invites import Invite
from accord.community.sync import sync_or_begin, sync_with
from accord.kernel.confusables import skeleton

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
