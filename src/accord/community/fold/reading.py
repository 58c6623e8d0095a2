"""Reading a state back, strictly: what `state_bytes` wrote, and nothing else.

The shape is checked first, so that no hostile snapshot can cause more than a refusal; then it is
read, written again and compared.
"""

from typing import Any, Final

from accord.community.envelope import Position, forms
from accord.community.envelope.names import Level
from accord.community.errors import Code, CommunityError
from accord.community.fold.chains import Chain
from accord.community.fold.content import Content, Document, Manifest, Message, Post, used
from accord.community.fold.roster import Roster
from accord.community.fold.shape import SHAPE
from accord.community.fold.standing import Cutoff, Floor, Invite, Member
from accord.community.fold.state import JsonObject, State, state_bytes
from accord.community.fold.verdicts import VERDICTS, Status
from accord.kernel import canonical

MAX_BYTES: Final = 1024 * 1024 * 1024
"""The largest state that is read."""


def state_from(raw: bytes) -> State:
    """Read a state that `state_bytes` wrote, and nothing else.

    Raises:
        CommunityError: It is not one: `bad_request`.
    """
    refusal = CommunityError(Code.BAD_REQUEST, "this is not a state that a fold wrote")
    try:
        payload = canonical.decode(raw, max_bytes=MAX_BYTES)
    except canonical.CanonicalError:
        raise refusal from None
    if not SHAPE.is_valid(payload) or not _has_moments(payload):
        raise refusal
    state = _state(payload)
    if state_bytes(state) != raw:
        raise refusal
    return state


def _has_moments(payload: JsonObject) -> bool:
    """Whether every time that a view computes with is one."""
    posted = (each["created_at"] for each in payload["market"])
    expires = (each["expires_at"] for each in payload["invites"])
    return all(map(forms.is_time, (*posted, *expires)))


def _state(payload: JsonObject) -> State:
    roster = Roster(payload["community_id"], {})
    roster.name, roster.created_at = payload["name"], payload["created_at"]
    roster.policy = payload["policy"]
    roster.members = {
        each["node_id"]: Member(
            Level.parse(each["level"]),
            each["added_at"],
            each["added_by"],
            _position_from(each["since"]),
        )
        for each in payload["members"]
    }
    roster.revoked = {
        each["node_id"]: Cutoff(
            each["last_seq"], each["last_hash"], _position_from(each["by"]), each["revoked_at"]
        )
        for each in payload["revoked"]
    }
    roster.cutoffs = dict(roster.revoked)
    for each in payload["invites"]:
        name = each["event_id"], each["invitee"]
        invite = Invite(
            each["inviter"],
            Level.parse(each["level"]),
            each["expires_at"],
            each["lamport"],
            each["redeemed"],
        )
        roster.invites[name] = (*roster.invites.get(name, ()), invite)
    roster.floors = [
        Floor(
            each["lamport"],
            {head["author"]: (head["author_seq"], head["hash"]) for head in each["heads"]},
            each["state_digest"],
            _position_from(each["by"]),
        )
        for each in payload["floors"]
    ]
    chains = {each["author"]: _chain_from(each) for each in payload["authors"]}
    counts = _counts_from(payload["counts"]["membership"])
    return State(payload["community_id"], roster, chains, _content(payload), counts)


def _content(payload: JsonObject) -> Content:
    content = Content()
    content.head = None if payload["head"] is None else _position_from(payload["head"])
    content.counts = _counts_from(payload["counts"]["content"])
    for each in payload["manifests"]:
        content.manifests[each["node_id"]] = Manifest(
            each["display_name"],
            tuple(
                (one["transport"], one["host"], one["port"], one["certificate"])
                for one in each["endpoints"]
            ),
            tuple(each["extensions"]),
            each["event"],
        )
    for each in payload["market"]:
        post = Post(
            each["author"],
            each["client_id"],
            each["lamport"],
            each["created_at"],
            {name: _degrees_from_text(name, value) for name, value in each["fields"].items()},
            each["ended"],
        )
        content.posts[each["event_id"]] = (*content.posts.get(each["event_id"], ()), post)
        content.clients[used("post", post.author, post.client_id)] = True
    for each in payload["chat"]:
        message = Message(
            each["author"],
            each["recipient"],
            each["client_id"],
            each["lamport"],
            each["sent_at"],
            each["event"],
            tuple((one["cid"], one["name"]) for one in each["attachments"]),
            each["delivered_at"],
            each["read_at"],
        )
        same = content.messages.get(each["event_id"], ())
        content.messages[each["event_id"]] = (*same, message)
        content.clients[used("chat", message.author, message.client_id)] = True
    for each in payload["files"]:
        content.files[each["cid"], each["holder"]] = each["size_bytes"]
    for each in payload["corpora"]:
        content.documents[each["corpus"], each["doc_cid"]] = Document(
            each["ingester"], each["lamport"], each["title"], each["language"], each["chunks"]
        )
    return content


def _counts_from(payload: JsonObject) -> dict[Status, int]:
    return {status: payload[status.value] for status in Status}


def _position_from(payload: JsonObject) -> Position:
    digest = bytes.fromhex(payload["hash"].removeprefix("blake3:"))
    return Position(payload["lamport"], payload["event_id"], digest)


def _chain_from(payload: JsonObject) -> Chain:
    fork, cut = payload["equivocation"], payload["broken"]
    return Chain(
        payload["author_seq"],
        payload["hash"],
        payload["lamport"],
        payload["seen_seq"],
        None
        if fork is None
        else (
            fork["author_seq"],
            bytes.fromhex(fork["events"][0].removeprefix("blake3:")),
            bytes.fromhex(fork["events"][1].removeprefix("blake3:")),
        ),
        None if cut is None else (cut["author_seq"], VERDICTS[cut["rule"]]),
    )


def _degrees_from_text(name: str, value: Any) -> Any:
    if name != "location":
        return value
    return {
        each: text if each == "label" else canonical.decode(text.encode())
        for each, text in value.items()
    }
