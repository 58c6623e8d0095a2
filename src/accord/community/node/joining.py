"""Founding a community, and joining one by an invite.

Owns the two ways in which a log begins. Both leave either a community that works or nothing that
is in the way of trying again.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

from accord.community.envelope import kinds
from accord.community.envelope.invites import Invite
from accord.community.errors import Code, CommunityError
from accord.community.fold import views
from accord.community.node import beginning
from accord.community.node.dialing import Dialler
from accord.community.node.hosted import Hosted
from accord.community.sync import meet

POLICY: Final[Mapping[str, Any]] = {
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


def founding(founder: str, name: str, policy: Mapping[str, Any]) -> dict[str, Any]:
    """The data of a founding event.

    Raises:
        CommunityError: Name or policy are not what they must be: `bad_request`.
    """
    data = {"name": name, "founder_node_id": founder, "policy": {**POLICY, **policy}}
    kinds.check("community.created", kinds.version("community.created"), data)
    return data


async def redeem(
    hosted: Hosted, invite: Invite, manifest: Mapping[str, Any], dialler: Dialler, own_id: str
) -> None:
    """Fetch the log from the nodes that an invite names, and join.

    Raises:
        CommunityError: None of them can be reached (`partition`), or the invite is not in the log
            (`unauthorized`).
    """
    failure: CommunityError | None = None
    for address in invite.bootstrap_endpoints:
        try:
            async with AsyncExitStack() as opened:
                client, _ = await dialler.dial(address, invite.community_id, opened)
                await beginning.meet_from(hosted, client, dialler)
                await _join(hosted, manifest, own_id)
                await meet(client, hosted.holdings)
        except CommunityError as error:
            failure = error
            continue
        return
    raise failure or CommunityError(
        Code.BAD_REQUEST, "the invite names no node to ask", mend="ask for an invite that does"
    )


async def _join(hosted: Hosted, manifest: Mapping[str, Any], own_id: str) -> None:
    if hosted.is_member:
        return
    standing = views.open_invites(hosted.state, own_id, hosted.log.clock.now())
    if not hosted.state.is_founded or not standing:
        raise CommunityError(
            Code.UNAUTHORIZED,
            "no invite for this node stands in the community's log",
            mend="ask for a new one",
        )
    await hosted.log.append(
        "community.member.joined",
        {"invite_event_id": standing[0], "node_manifest": dict(manifest)},
    )
