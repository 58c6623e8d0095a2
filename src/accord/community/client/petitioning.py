"""Petitions: what they ask for, who must still sign, and submitting them.

Counts as the fold does: distinct signers whose level is high enough. The fold has the last word,
since what is submitted is judged by it. Sentences name members as they call themselves.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

from accord.community.client.client import Client
from accord.community.envelope.invites import Invite
from accord.community.envelope.names import Level, display_id
from accord.community.envelope.petitions import Petition
from accord.community.errors import Code, CommunityError
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import UlidSource

INVITED: Final = "community.member.invited"
PROMOTED: Final = "community.member.promoted"
DEMOTED: Final = "community.member.demoted"
REVOKED: Final = "community.member.revoked"

# By event type: the policy's member with the number of signatures, and its default.
_NEEDED: Final = {
    INVITED: ("min_signatures_to_invite", 1),
    PROMOTED: ("min_signatures_to_promote", 1),
    DEMOTED: ("min_signatures_to_demote", 3),
    REVOKED: ("min_signatures_to_revoke", 3),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a petition.

    Attributes:
        asked: What it asks for, as a sentence.
        blob: The petition, as it is passed on.
        signed: How many signatures count.
        needed: How many the policy wants.
        least: The level from which on a signature counts.
        level: This node's own.
        event: The event that was written; None when it was not submitted.
        link: The invite's link, where it was one and is submitted.
    """

    asked: str
    blob: str
    signed: int
    needed: int
    least: str
    level: str
    event: dict[str, Any] | None = None
    link: str | None = None


def petition(
    key: SigningKey,
    client: Client,
    event_type: str,
    data: dict[str, Any],
    clock: Clock | None = None,
) -> Petition:
    """A petition that this node has signed.

    Raises:
        CommunityError: No such thing can be asked for: `bad_request`.
    """
    if event_type != INVITED:
        # Makes the intent unique, so that a signature serves once.
        data = {"client_id": UlidSource(clock or SystemClock()).new(), **data}
    return Petition.open(client.community, event_type, data).signed_by(key)


def read(blob: str) -> Petition:
    """A petition that somebody passed on.

    Raises:
        CommunityError: It is not one, or nobody can submit it with this command.
    """
    found = Petition.parse(blob.strip())
    if found.event_type not in _NEEDED:
        raise CommunityError(Code.BAD_REQUEST, f"{found.event_type} takes no petition")
    return found


async def outcome(client: Client, asked: Petition) -> Outcome:
    """What a petition asks for, and how far it is."""
    about = await client.get("/node/v1/community")
    found = (await client.get("/node/v1/members"))["members"]
    names = {each["node_id"]: each["display_name"] for each in found}
    levels = {each["node_id"]: Level.parse(each["level"]) for each in found}
    least = Level.TRUSTED
    if asked.event_type == INVITED and about["policy"].get("default_member_can_invite"):
        least = Level.MEMBER
    name, default = _NEEDED[asked.event_type]
    return Outcome(
        f"{_sentence(asked, names)} in {about['name']!r}",
        str(asked),
        sum(levels.get(each, Level.UNKNOWN) >= least for each in asked.signers),
        int(about["policy"].get(name, default)),
        least.text,
        about["level"],
    )


async def put(client: Client, asked: Petition, *, submit: bool = True) -> Outcome:
    """Submit a petition that this node has signed, if enough have.

    Raises:
        CommunityError: This node's signature does not count, or the community would not let it
            stand.
    """
    far = await outcome(client, asked)
    if Level.parse(far.level) < Level.parse(far.least):
        raise CommunityError(
            Code.UNAUTHORIZED,
            f"this node is {far.level}, and its signature would not count",
            mend=f"let somebody sign who is {far.least} at least",
        )
    if not submit or far.signed < far.needed:
        return far
    data = asked.event_data()
    if asked.event_type == INVITED:
        answer = await client.call("community.invite", {}, data, idempotent=True)
        link = Invite.parse(answer["output"]["invite_blob"]).link
        return replace(far, event=answer["meta"], link=link)
    written = await client.post("/node/v1/act", {"event_type": asked.event_type, "data": data})
    return replace(far, event=written)


def _sentence(asked: Petition, names: dict[str, str | None]) -> str:
    data = asked.data
    if asked.event_type == INVITED:
        called = data.get("display_name")
        who = _called(data["invitee_node_id"], called)
        return f"invite {who} as {data['initial_level']} until {data['expires_at']}"
    who = _called(data["target_node_id"], names.get(data["target_node_id"]))
    if asked.event_type == REVOKED:
        return (
            f"revoke {who} as {data['reason']}, and void its events from number "
            f"{data['target_last_seq'] + 1} on,"
        )
    verb = "promote" if asked.event_type == PROMOTED else "demote"
    return f"{verb} {who} to {data['new_level']}"


def _called(node_id: str, name: str | None) -> str:
    return f"{name} ({display_id(node_id)})" if name else display_id(node_id)
