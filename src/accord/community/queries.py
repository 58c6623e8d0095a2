"""Queries for a node's owner: a community, its members, its log, one event."""

import re
from collections.abc import Collection, Sequence
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Row, func, select

from accord.community.communities import HostedCommunity
from accord.community.errors import Code, CommunityError
from accord.community.peers import Endpoint
from accord.community.rules.formats import Level
from accord.community.rules.snapshots import digest_of_state
from accord.community.rules.state import CommunityState, state_object
from accord.community.rules.verdicts import VERDICTS, Status
from accord.community.store import in_total_order
from accord.community.tables import events
from accord.kernel import canonical
from accord.kernel.clock import parse_time
from accord.kernel.ulid import is_ulid

MAX_ENTRIES: Final = 1000
"""How many entries of a log are shown at once."""

_HASH: Final = re.compile(r"(?:blake3:)?([0-9a-f]{8,64})", re.ASCII)
_DIGEST_DIGITS: Final = 64
_SAME_NAME: Final = 10
_INVITE: Final = ("event_id", "invitee", "inviter", "level", "expires_at")


async def describe_community(hosted: HostedCommunity) -> dict[str, Any]:
    """A community with its state digest, which is equal on nodes that agree."""
    state = await hosted.log.view(state_object)
    counts = await hosted.log.store.read(lambda c: _counts(c, hosted.log.number))
    now = hosted.log.clock.now()
    levels = {each["node_id"]: each["level"] for each in state["members"]}
    invites = [
        each
        for each in state["invites"]
        if not each["redeemed"]
        and not each.get("withdrawn", False)
        and each["invitee"] not in levels
        and now <= parse_time(each["expires_at"])
    ]
    ids = [each["event_id"] for each in invites]
    called = await hosted.log.store.read(lambda c: _called(c, hosted.log.number, ids))
    return {
        **{name: state[name] for name in ("community_id", "name", "created_at", "policy")},
        "level": levels.get(hosted.log.key.id, Level.UNKNOWN.text),
        "members": len(state["members"]),
        "revoked": len(state["revoked"]),
        "head_lamport": hosted.log.head_lamport,
        "counts": counts,
        "equivocations": [
            {"author": each["author"], **each["equivocation"]}
            for each in state["authors"]
            if each["equivocation"] is not None
        ],
        "invites": [
            {
                **{name: each[name] for name in _INVITE},
                "display_name": called.get((each["event_id"], each["inviter"])),
            }
            for each in invites
        ],
        "state_digest": digest_of_state(canonical.encode(state)),
    }


async def list_members(hosted: HostedCommunity) -> list[dict[str, Any]]:
    """All members with their logged endpoints."""

    def look(state: CommunityState) -> list[dict[str, Any]]:
        known = state.content.manifests
        return [
            {
                **member,
                "endpoints": [
                    Endpoint(*each).url
                    for each in (known[node_id].endpoints if node_id in known else ())
                ],
            }
            for member in state.members()
            for node_id in [member["node_id"]]
        ]

    return await hosted.log.view(look)


async def describe_chain(hosted: HostedCommunity, node_id: str, seq: int | None) -> dict[str, Any]:
    """The head of a node's chain, or its event with number `seq`; `not_found` if there is none."""
    if seq == 0:
        return {"author_seq": 0, "hash": None}
    if seq is None:
        found = hosted.state.chains.get(node_id)
        return {
            "author_seq": 0 if found is None else found.head_seq,
            "hash": None if found is None else found.head_hash,
        }
    query = (
        select(events.c.digest)
        .where(
            events.c.community == hosted.log.number,
            events.c.author == node_id,
            events.c.author_seq == seq,
        )
        # Of two events with the same number the one with the smaller digest counts.
        .order_by(events.c.digest)
        .limit(1)
    )
    digest = await hosted.log.store.read(lambda c: c.execute(query).scalar_one_or_none())
    if digest is None:
        raise CommunityError(Code.NOT_FOUND, f"no event number {seq} of that node is known here")
    return {"author_seq": seq, "hash": "blake3:" + digest.hex()}


async def log_entries(
    hosted: HostedCommunity,
    *,
    limit: int,
    author: str | None = None,
    event_type: str | None = None,
    refused: bool = False,
) -> list[dict[str, Any]]:
    """The last entries of the log in total order, with verdicts; optionally filtered."""
    query = select(events).where(events.c.community == hosted.log.number)
    if author is not None:
        query = query.where(events.c.author == author)
    if event_type is not None:
        query = query.where(events.c.event_type == event_type)
    if refused:
        query = query.where(events.c.status != Status.ACCEPTED.value)
    query = query.order_by(
        events.c.lamport.desc(), events.c.event_id.desc(), events.c.digest.desc()
    ).limit(min(limit, MAX_ENTRIES))

    def read(connection: Connection) -> list[dict[str, Any]]:
        # One at a time: of a long body only its time is kept.
        found = connection.execution_options(yield_per=1).execute(query)
        return [_entry(row) for row in found]

    return (await hosted.log.store.read(read))[::-1]


async def describe_files(hosted: HostedCommunity, cids: Collection[str]) -> list[dict[str, Any]]:
    """Holders and documents of some files."""
    found: dict[str, dict[str, Any]] = {
        cid: {"cid": cid, "held_by": [], "documents": []} for cid in cids
    }

    def look(state: CommunityState) -> None:
        for cid, holder in state.content.files:
            if cid in found:
                found[cid]["held_by"].append(holder)
        for (corpus, cid), document in state.content.documents.items():
            if cid in found:
                entry = {"corpus": corpus, "title": document.title, "by": document.ingester}
                found[cid]["documents"].append(entry)

    await hosted.log.view(look)
    return list(found.values())


async def find_events(hosted: HostedCommunity, name: str) -> list[dict[str, Any]]:
    """The events that match a hash, the beginning of one, or an id, with their verdicts.

    Raises `bad_request` if `name` is malformed, `not_found` if nothing matches.
    """
    query = select(events).where(events.c.community == hosted.log.number)
    if is_ulid(name):
        query = query.where(events.c.event_id == name)
    elif match := _HASH.fullmatch(name):
        least, most = (match[1].ljust(_DIGEST_DIGITS, digit) for digit in "0f")
        query = query.where(
            events.c.digest >= bytes.fromhex(least), events.c.digest <= bytes.fromhex(most)
        )
    else:
        raise CommunityError(
            Code.BAD_REQUEST,
            f"{name[:80]!r} does not name an event",
            mend="give its id, or at least 8 digits of its hash",
        )
    found = await hosted.log.store.read(
        lambda c: [
            {**_entry(row), "event": None if row.body is None else orjson.loads(row.body)}
            for row in c.execute(in_total_order(query).limit(_SAME_NAME))
        ]
    )
    if not found:
        raise CommunityError(Code.NOT_FOUND, "no such event is known here", where=name)
    return found


def _called(
    connection: Connection, number: int, ids: Sequence[str]
) -> dict[tuple[str, str], str | None]:
    """The names that inviters proposed, by id and author of the invite."""
    query = select(events.c.event_id, events.c.author, events.c.body).where(
        events.c.community == number,
        events.c.event_id.in_(ids),
        events.c.event_type == "community.member.invited",
        events.c.body.is_not(None),
    )
    return {
        (row.event_id, row.author): orjson.loads(row.body)["data"].get("display_name")
        for row in connection.execute(query)
    }


def _counts(connection: Connection, number: int) -> dict[str, int]:
    query = (
        select(events.c.status, func.count())
        .where(events.c.community == number)
        .group_by(events.c.status)
    )
    found = {row[0]: row[1] for row in connection.execute(query)}
    return {status.value: found.get(status.value, 0) for status in Status}


def _entry(row: Row[Any]) -> dict[str, Any]:
    verdict = VERDICTS.get(row.rule or Status.ACCEPTED.value)
    return {
        "lamport": row.lamport,
        "event_id": row.event_id,
        "hash": "blake3:" + row.digest.hex(),
        "author": row.author,
        "author_seq": row.author_seq,
        "event_type": row.event_type,
        "wall_clock": None if row.body is None else orjson.loads(row.body)["wall_clock"],
        "status": row.status,
        "rule": row.rule,
        "reason": None if verdict is None else verdict.reason,
    }
