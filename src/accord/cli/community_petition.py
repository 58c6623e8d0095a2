"""Petitions on the command line: what they ask for, who must still sign, submitting them.

Counts as the fold does: distinct signers whose level is high enough. The fold has the last word,
since what is submitted is judged by it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from accord.cli import report
from accord.cli.community_node import shown
from accord.cli.contract_reading import printable

if TYPE_CHECKING:
    from accord.community.client import Client
    from accord.community.envelope.petitions import Petition
    from accord.kernel.signing import SigningKey

_INVITED: Final = "community.member.invited"

# By event type: the policy's member with the number of signatures, and its default.
_NEEDED: Final = {
    _INVITED: ("min_signatures_to_invite", 1),
    "community.member.promoted": ("min_signatures_to_promote", 1),
    "community.member.demoted": ("min_signatures_to_demote", 3),
    "community.member.revoked": ("min_signatures_to_revoke", 3),
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
    key: "SigningKey", client: "Client", event_type: str, data: dict[str, Any]
) -> "Petition":
    """A petition that this node has signed.

    Raises:
        CommunityError: No such thing can be asked for: `bad_request`.
    """
    from accord.community.envelope.petitions import Petition
    from accord.kernel.clock import SystemClock
    from accord.kernel.ulid import UlidSource

    if event_type != _INVITED:
        # Makes the intent unique, so that a signature serves once.
        data = {"client_id": UlidSource(SystemClock()).new(), **data}
    return Petition.open(client.community, event_type, data).signed_by(key)


def read(blob: str) -> "Petition":
    """A petition that somebody passed on.

    Raises:
        CommunityError: It is not one, or nobody can submit it with this command.
    """
    from accord.community.envelope.petitions import Petition
    from accord.community.errors import Code, CommunityError

    found = Petition.parse(blob.strip())
    if found.event_type not in _NEEDED:
        raise CommunityError(Code.BAD_REQUEST, f"{found.event_type} takes no petition")
    return found


async def outcome(client: "Client", asked: "Petition") -> Outcome:
    """What a petition asks for, and how far it is."""
    from accord.community.envelope.names import Level

    about = await client.get("/node/v1/community")
    found = (await client.get("/node/v1/members"))["members"]
    names = {each["node_id"]: each["display_name"] for each in found}
    levels = {each["node_id"]: Level.parse(each["level"]) for each in found}
    least = Level.TRUSTED
    if asked.event_type == _INVITED and about["policy"].get("default_member_can_invite"):
        least = Level.MEMBER
    name, default = _NEEDED[asked.event_type]
    return Outcome(
        f"{_sentence(asked, names)} in {printable(about['name'])!r}",
        str(asked),
        sum(levels.get(each, Level.UNKNOWN) >= least for each in asked.signers),
        int(about["policy"].get(name, default)),
        least.text,
        about["level"],
    )


async def put(client: "Client", asked: "Petition", *, submit: bool = True) -> Outcome:
    """Submit a petition that this node has signed, if enough have.

    Raises:
        CommunityError: This node's signature does not count, or the community would not let it
            stand.
    """
    from dataclasses import replace

    from accord.community.envelope.names import Level
    from accord.community.errors import Code, CommunityError

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
    if asked.event_type == _INVITED:
        from accord.community.envelope.invites import Invite

        answer = await client.call("community.invite", {}, data, idempotent=True)
        link = Invite.parse(answer["output"]["invite_blob"]).link
        return replace(far, event=answer["meta"], link=link)
    written = await client.post("/node/v1/act", {"event_type": asked.event_type, "data": data})
    return replace(far, event=written)


def tell(done: Outcome, as_json: bool) -> None:
    """Say what became of a petition, and what to do next."""
    if as_json:
        report.show_json(
            {
                "asked": done.asked,
                "submitted": done.event is not None,
                "signed": done.signed,
                "needed": done.needed,
                "petition": done.blob,
                "event": done.event,
                "link": done.link,
            }
        )
        return
    if done.link is not None:
        report.say(f"done: {done.asked}. Its owner joins with this link:")
        typer.echo(done.link)
    elif done.event is not None:
        typer.echo(f"Done: {done.asked} (event {done.event['event_id']}).")
    else:
        report.say(
            f"not yet: {done.signed} of {done.needed} have signed to {done.asked}. Pass this line "
            f"on to somebody {done.least}, who signs it with `accord community cosign`:"
        )
        typer.echo(done.blob)


def _sentence(asked: "Petition", names: dict[str, str | None]) -> str:
    data = asked.data
    if asked.event_type == _INVITED:
        called = data.get("display_name")
        who = shown(data["invitee_node_id"], {data["invitee_node_id"]: called})
        return f"invite {who} as {data['initial_level']} until {data['expires_at']}"
    who = shown(data["target_node_id"], names)
    if asked.event_type == "community.member.revoked":
        return (
            f"revoke {who} as {data['reason']}, and void its events from number "
            f"{data['target_last_seq'] + 1} on,"
        )
    verb = "promote" if asked.event_type == "community.member.promoted" else "demote"
    return f"{verb} {who} to {data['new_level']}"
