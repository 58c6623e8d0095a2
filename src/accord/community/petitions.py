"""The client side of petitions: create, read and submit them, and show who must still sign."""

from dataclasses import dataclass, replace
from typing import Any, Final

from accord.community.client import Client
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules.formats import Level, display_id
from accord.community.rules.invites import Invite, Petition
from accord.community.rules.membership import signatures_needed
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey

MEMBER_INVITED: Final = "community.member.invited"
MEMBER_PROMOTED: Final = "community.member.promoted"
MEMBER_DEMOTED: Final = "community.member.demoted"
MEMBER_REVOKED: Final = "community.member.revoked"

# By event type: the policy's member with the number of signatures, and its default.
_NEEDED: Final = {
    MEMBER_INVITED: ("min_signatures_to_invite", 1),
    MEMBER_PROMOTED: ("min_signatures_to_promote", 1),
    MEMBER_DEMOTED: ("min_signatures_to_demote", 3),
    MEMBER_REVOKED: ("min_signatures_to_revoke", 3),
}


@dataclass(frozen=True, slots=True)
class PetitionOutcome:
    """The state of a petition.

    Attributes:
        asked: What it asks for, as a sentence.
        blob: The petition as text.
        signed: How many signatures count.
        needed: How many the policy wants, or the number of possible signers if that is lower.
        least: The lowest level whose signatures count.
        level: This node's own.
        event: The resulting event; None if it was not submitted.
        link: The link, if it was an invite and was submitted.
    """

    asked: str
    blob: str
    signed: int
    needed: int
    least: str
    level: str
    event: dict[str, Any] | None = None
    link: str | None = None


def make_petition(
    key: SigningKey,
    client: Client,
    event_type: str,
    data: dict[str, Any],
    clock: Clock | None = None,
) -> Petition:
    """Create a petition signed by this node; `bad_request` if the event cannot be co-signed."""
    if event_type != MEMBER_INVITED:
        # Makes the intent unique, so that signatures cannot be reused.
        data = {"client_id": UlidSource(clock or SystemClock()).new(), **data}
    return Petition.open(client.community, event_type, data).signed_by(key)


def read_petition(blob: str) -> Petition:
    """Read a petition; raises if it is malformed or cannot be submitted with this command."""
    found = Petition.parse(blob.strip())
    if found.event_type not in _NEEDED:
        raise bad_request(f"{found.event_type} cannot be co-signed by a petition")
    return found


async def petition_outcome(client: Client, asked: Petition) -> PetitionOutcome:
    """What a petition asks for, and how many have signed."""
    about = await client.get("/node/v1/community")
    found = (await client.get("/node/v1/members"))["members"]
    names = {each["node_id"]: each["display_name"] for each in found}
    levels = {each["node_id"]: Level.parse(each["level"]) for each in found}
    least = Level.TRUSTED
    if asked.event_type == MEMBER_INVITED and about["policy"].get("default_member_can_invite"):
        least = Level.MEMBER
    name, default = _NEEDED[asked.event_type]
    needed = int(about["policy"].get(name, default))
    if asked.event_type in (MEMBER_DEMOTED, MEMBER_REVOKED):
        needed = signatures_needed(needed, asked.data["target_node_id"], levels)
    return PetitionOutcome(
        f"{_sentence(asked, names)} in {about['name']!r}",
        str(asked),
        sum(levels.get(each, Level.UNKNOWN) >= least for each in asked.signers),
        needed,
        least.text,
        about["level"],
    )


async def submit_petition(
    client: Client, asked: Petition, *, submit: bool = True
) -> PetitionOutcome:
    """Submit a petition that this node has signed, if enough others have.

    Raises if this node's signature does not count, or if the fold would refuse the event.
    """
    far = await petition_outcome(client, asked)
    if Level.parse(far.level) < Level.parse(far.least):
        raise CommunityError(
            Code.UNAUTHORIZED,
            f"this node is {far.level}, and its signature would not count",
            mend=f"let somebody sign who is {far.least} at least",
        )
    if not submit or far.signed < far.needed:
        return far
    data = asked.event_data()
    if asked.event_type == MEMBER_INVITED:
        answer = await client.call("community.invite", {}, data, idempotent=True)
        invite = Invite.parse(answer["output"]["invite_blob"])
        # An existing invite may expire a little earlier.
        sentence = far.asked.replace(str(data["expires_at"]), invite.expires_at)
        return replace(far, asked=sentence, event=answer["meta"], link=invite.link)
    written = await client.post("/node/v1/act", {"event_type": asked.event_type, "data": data})
    return replace(far, event=written)


def _sentence(asked: Petition, names: dict[str, str | None]) -> str:
    data = asked.data
    if asked.event_type == MEMBER_INVITED:
        called = data.get("display_name")
        who = _called(data["invitee_node_id"], called)
        return f"invite {who} as {data['initial_level']} until {data['expires_at']}"
    who = _called(data["target_node_id"], names.get(data["target_node_id"]))
    if asked.event_type == MEMBER_REVOKED:
        return (
            f"revoke {who} as {data['reason']}, and void its events from number "
            f"{data['target_last_seq'] + 1} on,"
        )
    verb = "promote" if asked.event_type == MEMBER_PROMOTED else "demote"
    return f"{verb} {who} to {data['new_level']}"


def _called(node_id: str, name: str | None) -> str:
    return f"{name} ({display_id(node_id)})" if name else display_id(node_id)
