"""Serving `community.invite` (section 4.17) and `community.revoke` (4.18).

The event is always this node's own; so a caller gets no further with it than the caller's own
level goes. Whether the event may stand is the fold's to say.
"""

from collections.abc import Mapping
from typing import Any, Final

from accord.community.bus import Call
from accord.community.envelope import schemas
from accord.community.envelope.intents import has_signed
from accord.community.envelope.invites import TTL_SECONDS, Invite
from accord.community.envelope.names import Level
from accord.community.errors import Code, CommunityError
from accord.community.fold import views
from accord.community.node import Hosted, Node
from accord.kernel.clock import Clock, format_time, parse_time

_INVITED: Final = "community.member.invited"
_REVOKED: Final = "community.member.revoked"
_SHORTEST_NAME: Final = 8


def register(node: Node, clock: Clock) -> None:
    """Offer both on a node's bus."""
    descriptors = schemas.load("accord.capabilities.membership")
    serving = _Serving(node, clock)
    node.bus.registry.register(descriptors["community.invite@1.0"], serving.invite)
    node.bus.registry.register(descriptors["community.revoke@1.0"], serving.revoke)


class _Serving:
    def __init__(self, node: Node, clock: Clock) -> None:
        self._node = node
        self._clock = clock

    async def invite(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        hosted = self._node.community(call.community)
        wanted = self._whole(call.body["input"])
        level = Level.parse(wanted["initial_level"])
        self._check_inviter(hosted, call, level)
        if parse_time(wanted["expires_at"]) <= self._clock.now():
            raise CommunityError(
                Code.BAD_REQUEST, "the invite would have expired", where="/input/expires_at"
            )
        standing = _standing(hosted, wanted, self._node.key.id)
        if standing is None:
            data = {name: value for name, value in wanted.items() if value is not None}
            event = await hosted.log.append(_INVITED, data)
            standing = event.event_id, event.lamport
        return {
            "output": {"invite_blob": self._invite(hosted, wanted).blob},
            "meta": {
                "event_id": standing[0],
                "lamport": standing[1],
                "ms": self._ms(began),
            },
        }

    def _whole(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is asked for: a member, for a day, where nothing else is said."""
        return {
            "initial_level": Level.MEMBER.text,
            "expires_at": format_time(self._clock.now() + TTL_SECONDS),
            **given,
        }

    async def revoke(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        hosted = self._node.community(call.community)
        data = call.body["input"]
        self._check_signers(hosted, call, data)
        event = await hosted.log.append(_REVOKED, data)
        return {
            "output": {"event_id": event.event_id, "lamport": event.lamport},
            "meta": {"ms": self._ms(began)},
        }

    def _check_inviter(self, hosted: Hosted, call: Call, level: Level) -> None:
        policy = hosted.state.roster.policy or {}
        least = Level.MEMBER if policy.get("default_member_can_invite") else Level.TRUSTED
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

    def _check_signers(self, hosted: Hosted, call: Call, data: Mapping[str, Any]) -> None:
        co_signers = {each["node_id"]: each["signature"] for each in data["co_signers"]}
        for node_id, signature in co_signers.items():
            if not has_signed(node_id, signature, hosted.community_id, _REVOKED, data):
                raise CommunityError(
                    Code.INVALID_SIGNATURE,
                    f"{node_id} has not signed this revocation for this community",
                )
        trusted = [each for each in co_signers if hosted.level_of(each) >= Level.TRUSTED]
        needed = (hosted.state.roster.policy or {}).get("min_signatures_to_revoke", 3)
        if call.caller not in co_signers or len(trusted) < needed:
            raise CommunityError(
                Code.UNAUTHORIZED,
                f"{needed} distinct trusted signers are needed, the caller among them; "
                f"{len(trusted)} have signed",
                mend="collect more signatures with `accord community cosign`",
            )

    def _invite(self, hosted: Hosted, wanted: Mapping[str, Any]) -> Invite:
        """The invite with as much as fits: endpoints first, then the community's name."""
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

    def _ms(self, began: float) -> int:
        return int((self._clock.monotonic() - began) * 1000)


def _standing(hosted: Hosted, wanted: Mapping[str, Any], inviter: str) -> tuple[str, int] | None:
    """An invite of ours that says the same: asking twice is as good as asking once."""
    for event_id in views.open_invites(
        hosted.state, wanted["invitee_node_id"], hosted.log.clock.now()
    ):
        for invite in hosted.state.roster.invites[event_id, wanted["invitee_node_id"]]:
            if (invite.inviter, invite.level.text, invite.expires_at) == (
                inviter,
                wanted["initial_level"],
                wanted["expires_at"],
            ):
                return event_id, invite.lamport
    return None
