"""Views of a state for people and programs. Whatever depends on the time takes `as_of`."""

from typing import Any, Final

from accord.community.rules.content import DEFAULT_POST_TTL_SECONDS, MarketPost
from accord.community.rules.event import MAX_AHEAD_SECONDS
from accord.community.rules.formats import Level
from accord.community.rules.state import CommunityState
from accord.kernel.clock import format_time, parse_time

_NOT_SHOWN: Final = frozenset({"client_id", "ttl_seconds"})


def level_of(state: CommunityState, node_id: str) -> Level:
    """The trust level of a node."""
    return state.roster.level(node_id)


def is_revoked(state: CommunityState, node_id: str) -> bool:
    """Whether a node was revoked."""
    return node_id in state.roster.revoked


def extensions_of(state: CommunityState, node_id: str) -> frozenset[str]:
    """The protocol extensions that a node has ever declared in the log."""
    manifest = state.content.manifests.get(node_id)
    return frozenset(() if manifest is None else manifest.extensions)


def open_invites(state: CommunityState, node_id: str, as_of: float) -> list[str]:
    """The ids of the invites that a node may redeem."""
    return [
        event_id
        for (event_id, invitee), invites in sorted(state.roster.invites.items())
        if invitee == node_id
        and any(one.is_open and as_of <= parse_time(one.expires_at) for one in invites)
    ]


def members(state: CommunityState) -> list[dict[str, Any]]:
    """All members, by node id."""
    manifests = state.content.manifests
    return [
        {
            "node_id": node_id,
            "display_name": manifests[node_id].display_name if node_id in manifests else None,
            "level": member.level.text,
            "added_at": member.added_at,
            "added_by": member.added_by,
        }
        for node_id, member in sorted(state.roster.members.items())
    ]


def community_manifest(state: CommunityState) -> dict[str, Any]:
    """The unsigned community manifest: section 6.2 of the specification."""
    roster = state.roster
    return {
        "version": 1,
        "community_id": state.community_id,
        "name": roster.name,
        "root_key": state.community_id,
        "created_at": roster.created_at,
        "lamport_at_creation": 0,
        "policy": dict(roster.policy or {}),
        "members": [
            {name: each[name] for name in ("node_id", "level", "added_at", "added_by")}
            for each in members(state)
        ],
        "revoked": [
            {"node_id": node_id, "revoked_at": cutoff.revoked_at}
            for node_id, cutoff in sorted(roster.revoked.items())
        ],
        "head_lamport": state.lamport,
    }


def market(state: CommunityState, as_of: float) -> list[dict[str, Any]]:
    """The open posts that have not expired, in log order; posts of the future are not shown."""
    found = [
        {
            "event_id": event_id,
            "lamport": post.lamport,
            "author": post.author,
            **{name: value for name, value in post.fields.items() if name not in _NOT_SHOWN},
            "created_at": post.created_at,
            "expires_at": format_time(_runs_out(post)),
        }
        for event_id, posts in list(state.content.posts.items())
        for post in posts
        if post.ended is None
        and as_of < _runs_out(post)
        and parse_time(post.created_at) <= as_of + MAX_AHEAD_SECONDS
    ]
    return sorted(found, key=lambda post: (post["lamport"], post["event_id"], post["author"]))


def conversations(state: CommunityState) -> list[dict[str, Any]]:
    """Every message without its content, in log order."""
    found = [
        {
            "event_id": event_id,
            "lamport": message.lamport,
            "from": message.author,
            "to": message.recipient,
            "created_at": message.sent_at,
            "delivered_at": message.delivered_at,
            "read_at": message.read_at,
        }
        for event_id, messages in list(state.content.messages.items())
        for message in messages
    ]
    return sorted(found, key=lambda each: (each["lamport"], each["event_id"], each["from"]))


def files(state: CommunityState) -> list[dict[str, Any]]:
    """Every file with its holders."""
    held: dict[str, dict[str, Any]] = {}
    for (cid, holder), size in sorted(state.content.files.items()):
        file = held.setdefault(cid, {"cid": cid, "size_bytes": size, "holders": []})
        file["holders"].append(holder)
    return list(held.values())


def corpora(state: CommunityState) -> list[dict[str, Any]]:
    """Every corpus with its documents."""
    found: dict[str, dict[str, Any]] = {}
    for (name, cid), document in sorted(state.content.documents.items()):
        corpus = found.setdefault(name, {"name": name, "docs": 0, "chunks": 0, "documents": []})
        corpus["docs"] += 1
        corpus["chunks"] += document.chunks
        corpus["documents"].append(
            {
                "doc_cid": cid,
                "title": document.title,
                "language": document.language,
                "chunks": document.chunks,
                "ingester": document.ingester,
            }
        )
    return list(found.values())


def _runs_out(post: MarketPost) -> float:
    ttl: int = post.fields.get("ttl_seconds", DEFAULT_POST_TTL_SECONDS)
    return parse_time(post.created_at) + ttl
