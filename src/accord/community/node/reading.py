"""What the node's owner looks at: a community, its members, its log, one event.

Answers are JSON objects, made from the state and the store of one community. Nothing is changed
here, and nothing is decided that the fold has not decided.
"""

import re
from collections.abc import Collection
from typing import Any, Final

import orjson
from sqlalchemy import Connection, Row, func, select

from accord.community.discovery import Endpoint
from accord.community.envelope.names import Level
from accord.community.errors import Code, CommunityError
from accord.community.fold import VERDICTS, State, Status, state_object, views
from accord.community.fold.vouching import digest_of
from accord.community.log.rows import in_order
from accord.community.log.tables import events
from accord.community.node.hosted import Hosted
from accord.kernel import canonical
from accord.kernel.clock import parse_time
from accord.kernel.ulid import is_ulid

MAX_ENTRIES: Final = 1000
"""How many entries of a log are shown at once."""

_HASH: Final = re.compile(r"(?:blake3:)?([0-9a-f]{8,64})", re.ASCII)
_DIGEST_DIGITS: Final = 64
_SAME_NAME: Final = 10
_INVITE: Final = ("event_id", "invitee", "inviter", "level", "expires_at")


async def community(hosted: Hosted) -> dict[str, Any]:
    """A community as a whole, with the digest of its state: equal on nodes that agree."""
    state = await hosted.log.view(state_object)
    counts = await hosted.log.store.read(lambda c: _counts(c, hosted.log.number))
    now = hosted.log.clock.now()
    levels = {each["node_id"]: each["level"] for each in state["members"]}
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
            {name: each[name] for name in _INVITE}
            for each in state["invites"]
            if not each["redeemed"]
            and each["invitee"] not in levels
            and now <= parse_time(each["expires_at"])
        ],
        "state_digest": digest_of(canonical.encode(state)),
    }


async def members(hosted: Hosted) -> list[dict[str, Any]]:
    """Everybody who belongs, with the places where the log says that they are."""

    def look(state: State) -> list[dict[str, Any]]:
        known = state.content.manifests
        return [
            {
                **member,
                "endpoints": [
                    Endpoint(*each).url
                    for each in (known[node_id].endpoints if node_id in known else ())
                ],
            }
            for member in views.members(state)
            for node_id in [member["node_id"]]
        ]

    return await hosted.log.view(look)


async def chain(hosted: Hosted, node_id: str, seq: int | None) -> dict[str, Any]:
    """Where a node's chain stands, or its event with a number: what a revocation names.

    Raises:
        CommunityError: There is no such event: `not_found`.
    """
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
        # Of two with one number the smaller digest stands.
        .order_by(events.c.digest)
        .limit(1)
    )
    digest = await hosted.log.store.read(lambda c: c.execute(query).scalar_one_or_none())
    if digest is None:
        raise CommunityError(Code.NOT_FOUND, f"no event number {seq} of that node is known here")
    return {"author_seq": seq, "hash": "blake3:" + digest.hex()}


async def entries(
    hosted: Hosted,
    *,
    limit: int,
    author: str | None = None,
    event_type: str | None = None,
    refused: bool = False,
) -> list[dict[str, Any]]:
    """The last entries of the log, in its order, each with its verdict.

    Args:
        hosted: The community.
        limit: How many, at most `MAX_ENTRIES`.
        author: Only this author's.
        event_type: Only of this type.
        refused: Only those that do not stand.
    """
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


async def files(hosted: Hosted, cids: Collection[str]) -> list[dict[str, Any]]:
    """What the community knows of some files: who holds each, and which documents it is."""
    found: dict[str, dict[str, Any]] = {
        cid: {"cid": cid, "held_by": [], "documents": []} for cid in cids
    }

    def look(state: State) -> None:
        for cid, holder in state.content.files:
            if cid in found:
                found[cid]["held_by"].append(holder)
        for (corpus, cid), document in state.content.documents.items():
            if cid in found:
                told = {"corpus": corpus, "title": document.title, "by": document.ingester}
                found[cid]["documents"].append(told)

    await hosted.log.view(look)
    return list(found.values())


async def named(hosted: Hosted, name: str) -> list[dict[str, Any]]:
    """The events that a hash, the beginning of one, or an id may mean, with their verdicts.

    Raises:
        CommunityError: It names nothing: `bad_request`; nothing here: `not_found`.
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
            for row in c.execute(in_order(query).limit(_SAME_NAME))
        ]
    )
    if not found:
        raise CommunityError(Code.NOT_FOUND, "no such event is known here", where=name)
    return found


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
