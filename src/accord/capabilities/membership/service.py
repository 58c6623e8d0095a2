"""`community.invite` (section 4.17), its withdrawal, and `community.revoke` (4.18) on the bus.

The events are this node's own, so only its own clients may call them. Whether an event is valid is
decided by the replay of the log.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.community import queries
from accord.community.bus import Call
from accord.community.communities import HostedCommunity
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.node import Node
from accord.community.rules import capabilities
from accord.community.rules.event import has_signed
from accord.community.rules.formats import Level
from accord.community.rules.invites import INVITE_TTL_SECONDS, Invite
from accord.community.rules.membership import signatures_needed
from accord.kernel.clock import Clock, format_time, parse_time

_INVITED: Final = "community.member.invited"
_GUARDED: Final = "community.invites.guarded"
_REVOKED: Final = "community.member.revoked"
_WITHDRAWN: Final = "community.invite.withdrawn"
_SHORTEST_NAME: Final = 8
_AT_HOME: Final = "call your own node; its events reach this one"
# Invites of one node that expire within this time of each other are the same invite.
_ABOUT_SECONDS: Final = 600.0


def register(node: Node, clock: Clock) -> None:
    """Offer the capabilities on a node's bus."""
    descriptors = capabilities.load_descriptors("accord.capabilities.membership")
    serving = _MembershipService(node, clock)
    node.bus.registry.register(descriptors["community.invite@1.0"], serving.invite)
    node.bus.registry.register(descriptors["community.revoke@1.0"], serving.revoke)
    withdraw = descriptors["experimental.community.withdraw@1.0"]
    node.bus.registry.register(withdraw, serving.withdraw)


class _MembershipService:
    def __init__(self, node: Node, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._inviting = asyncio.Lock()

    async def invite(self, call: Call) -> Mapping[str, Any]:
        call.check_own("invite in its name", _AT_HOME)
        hosted = self._node.community(call.community)
        wanted = self._whole(call.body["input"])
        level = Level.parse(wanted["initial_level"])
        self._check_inviter(hosted, call, level)
        if parse_time(wanted["expires_at"]) <= self._clock.now():
            raise bad_request("the invite would have expired", where="/input/expires_at")
        async with self._inviting:
            before = await self._open(hosted, wanted["invitee_node_id"])
            standing = next((each for each in before if each.serves(wanted)), None)
            if standing is None:
                data = {name: value for name, value in wanted.items() if value is not None}
                await self._guard(hosted)
                event = await hosted.log.append(_INVITED, data)
                standing = _OpenInvite(event.event_id, event.lamport, dict(data))
                # Withdraw older invites, which would accumulate and may grant more than is meant
                # now.
                for each in before:
                    if not each.is_witnessed:
                        await self._withdraw(hosted, wanted["invitee_node_id"], each.event_id)
        return call.answer(
            {"invite_blob": self._invite(hosted, standing.data).blob},
            event_id=standing.event_id,
            lamport=standing.lamport,
        )

    async def _guard(self, hosted: HostedCommunity) -> None:
        """Declare once that redeeming an invite of this node requires a witness."""
        if hosted.own_id not in hosted.state.roster.guards:
            await hosted.log.append(_GUARDED, {})

    async def withdraw(self, call: Call) -> Mapping[str, Any]:
        call.check_own("withdraw invites in its name", _AT_HOME)
        hosted = self._node.community(call.community)
        invitee = call.body["input"]["invitee_node_id"]
        wanted = call.body["input"].get("invite_event_id")
        found = [
            event_id
            for event_id in hosted.state.open_invites(invitee, self._clock.now())
            if wanted in (None, event_id)
        ]
        if not found:
            raise CommunityError(
                Code.NOT_FOUND,
                "no such invite stands for that node",
                mend="`accord community invites` shows those that stand",
            )
        for event_id in found:
            await self._withdraw(hosted, invitee, event_id)
        return call.answer({"withdrawn": found})

    async def _withdraw(self, hosted: HostedCommunity, invitee: str, event_id: str) -> None:
        data = {"invite_event_id": event_id, "invitee_node_id": invitee}
        await hosted.log.append(_WITHDRAWN, data)

    async def _open(self, hosted: HostedCommunity, invitee: str) -> "list[_OpenInvite]":
        """Return the open invites of this node for another, with the data of their events."""
        found = []
        for event_id in hosted.state.open_invites(invitee, self._clock.now()):
            for invite in hosted.state.roster.invites[event_id, invitee]:
                if invite.inviter == self._node.key.id and invite.is_open:
                    data = await self._written(hosted, event_id)
                    found.append(_OpenInvite(event_id, invite.lamport, data, invite.witnessed))
        return found

    async def _written(self, hosted: HostedCommunity, event_id: str) -> dict[str, Any]:
        for each in await queries.find_events(hosted, event_id):
            if each["author"] == self._node.key.id and each["event"] is not None:
                return dict(each["event"]["data"])
        return {}

    def _whole(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Add the defaults: as a member, for a day."""
        return {
            "initial_level": Level.MEMBER.text,
            "expires_at": format_time(self._clock.now() + INVITE_TTL_SECONDS),
            **given,
        }

    async def revoke(self, call: Call) -> Mapping[str, Any]:
        hosted = self._node.community(call.community)
        data = call.body["input"]
        self._check_signers(hosted, call, data)
        event = await hosted.log.append(_REVOKED, data)
        return call.answer({"event_id": event.event_id, "lamport": event.lamport})

    def _check_inviter(self, hosted: HostedCommunity, call: Call, level: Level) -> None:
        least = hosted.state.roster.least_inviter
        if call.level < least:
            raise CommunityError(
                Code.UNAUTHORIZED, f"in this community only {least.text}s and above invite"
            )
        if level > call.level:
            raise CommunityError(
                Code.UNAUTHORIZED,
                f"a {call.level.text} cannot invite somebody as {level.text}",
                mend=f"invite them as {call.level.text}",
            )

    def _check_signers(self, hosted: HostedCommunity, call: Call, data: Mapping[str, Any]) -> None:
        co_signers = {each["node_id"]: each["signature"] for each in data["co_signers"]}
        for node_id, signature in co_signers.items():
            if not has_signed(node_id, signature, hosted.community_id, _REVOKED, data):
                raise CommunityError(
                    Code.INVALID_SIGNATURE,
                    f"{node_id} has not signed this revocation for this community",
                )
        trusted = [each for each in co_signers if hosted.level_of(each) >= Level.TRUSTED]
        roster = hosted.state.roster
        needed = signatures_needed(
            (roster.policy or {}).get("min_signatures_to_revoke", 3),
            data["target_node_id"],
            {name: each.level for name, each in roster.members.items()},
        )
        if call.caller not in co_signers or len(trusted) < needed:
            raise CommunityError(
                Code.UNAUTHORIZED,
                f"{needed} distinct trusted signers are needed, the caller among them; "
                f"{len(trusted)} have signed",
                mend="collect more signatures with `accord community cosign`",
            )
        call.check_own("revoke in its name", _AT_HOME)

    def _invite(self, hosted: HostedCommunity, wanted: Mapping[str, Any]) -> Invite:
        """Return the invite with as many endpoints and as much of the name as fit."""
        endpoints = tuple(endpoint.url for endpoint in self._node.presence.endpoints)
        name = hosted.state.roster.name
        counts = range(min(len(endpoints), 3), 0, -1) if endpoints else (0,)
        lengths = (len(name), *range(min(len(name) - 1, 24), _SHORTEST_NAME, -4), _SHORTEST_NAME)
        refusal: CommunityError | None = None
        for count in counts:
            for length in lengths:
                try:
                    return Invite.make(
                        self._node.key,
                        community_id=hosted.community_id,
                        community_name=name[:length],
                        invitee_node_id=wanted["invitee_node_id"],
                        initial_level=wanted["initial_level"],
                        bootstrap_endpoints=endpoints[:count],
                        expires_at=wanted["expires_at"],
                    )
                except CommunityError as error:
                    refusal = error
        assert refusal is not None
        raise refusal


@dataclass(frozen=True, slots=True)
class _OpenInvite:
    """An open invite of this node, and the data of its event."""

    event_id: str
    lamport: int
    data: dict[str, Any]
    is_witnessed: bool = False

    def serves(self, wanted: Mapping[str, Any]) -> bool:
        """Whether it has the same level and name and expires at about the same time.

        So repeating a call is idempotent even when the expiry is a day from now each time.
        """
        if any(
            self.data.get(name) != wanted.get(name) for name in ("initial_level", "display_name")
        ):
            return False
        apart = parse_time(wanted["expires_at"]) - parse_time(self.data["expires_at"])
        return abs(apart) <= _ABOUT_SECONDS
