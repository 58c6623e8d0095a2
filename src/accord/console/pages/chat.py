"""Chat: sealed messages between this station and other members."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from starlette.responses import Response

from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.console.messages import mark, tr, word
from accord.console.page import Page, Visit
from accord.console.templates import MemberNames, member_names
from accord.kernel.clock import format_time
from accord.kernel.identifiers import UlidSource

_SHOWN: Final = 200
_WORDS: Final = 200
_EXCERPT: Final = 60
_WAYS: Final = {
    "direct": mark("Delivered to the recipient."),
    "forwarded": mark("The recipient is offline; an anchor keeps it for them."),
    "queued": mark("No node can be reached; this station retries."),
}


@dataclass(frozen=True, slots=True)
class Thread:
    """The messages with one member: the latest of them, and how many are unread."""

    peer: str
    name: str
    last: str
    at: str
    unread: int


async def show(visit: Visit) -> Response:
    """Show the messages with everybody or with one member; nothing is marked as read."""
    own = visit.parts.node.key.id
    wanted = visit.form.text("recipient") or visit.query("peer")
    words = visit.query("words")[:_WORDS]
    async with visit.community() as client:
        told = await client.get("/node/v1/members")
        others = [each["node_id"] for each in told["members"] if each["node_id"] != own]
        peer = next((each for each in others if each == wanted), "")
        number = await visit.changes(client)
        everything = await _messages(client, "")
        messages = await _messages(client, peer) if peer else everything
        unread = sum(_is_unread(each, own) for each in messages)
        if words.split():
            messages = await _found(client, peer, words)
    names = member_names(told)
    return visit.show(
        "chat.html",
        others=others,
        names=names,
        peer=peer,
        threads=threads(everything, others, own, names),
        messages=messages,
        words=words,
        own=own,
        number=number,
        address=_with(visit, peer, words),
        unread=unread,
    )


def threads(
    messages: Sequence[Mapping[str, Any]], others: Sequence[str], own: str, names: MemberNames
) -> list[Thread]:
    """One thread for each member, that with the latest message first."""
    found: dict[str, list[Mapping[str, Any]]] = {each: [] for each in others}
    for each in messages:
        found.setdefault(each["to"] if each["from"] == own else each["from"], []).append(each)
    made = [
        Thread(
            peer,
            names.name(peer),
            (some[-1].get("body") or "")[:_EXCERPT] if some else "",
            some[-1]["created_at"] if some else "",
            sum(_is_unread(each, own) for each in some),
        )
        for peer, some in found.items()
    ]
    return sorted(made, key=lambda each: each.at, reverse=True)


async def live(visit: Visit) -> Response:
    """Stream news about messages."""
    return visit.follow("chat.")


async def send(visit: Visit) -> Response:
    """Send a message, sealed."""
    recipient = visit.form.needed("recipient", tr("The recipient"))
    given = {
        "client_id": UlidSource(visit.parts.clock).new(),
        "recipient": recipient,
        "body": visit.form.needed("body", tr("The message")),
        "attachments": [],
    }
    async with visit.community() as client:
        answer = await client.call("chat.send", {}, given, idempotent=True)
    return visit.done(word(_WAYS[answer["output"]["delivered"]]), path=_with(visit, recipient))


async def read(visit: Visit) -> Response:
    """Send read receipts for received messages."""
    own, peer = visit.parts.node.key.id, visit.form.text("peer")
    async with visit.community() as client:
        unread = [each for each in await _messages(client, peer) if _is_unread(each, own)]
        for each in unread:
            data = {
                "target_event_id": each["event_id"],
                "read_at": format_time(visit.parts.clock.now()),
            }
            await client.post("/node/v1/act", {"event_type": "chat.message.read", "data": data})
    return visit.done(tr("{count} marked as read.", count=len(unread)), path=_with(visit, peer))


async def _messages(client: Client, peer: str) -> list[dict[str, Any]]:
    given: dict[str, Any] = {"limit": _SHOWN}
    if peer:
        given["peer"] = peer
    answer = await client.call("chat.history", {}, given)
    return list(answer["output"]["messages"])


async def _found(client: Client, peer: str, words: str) -> list[dict[str, Any]]:
    """The latest messages that have all words, in the order of the log."""
    given: dict[str, Any] = {"query": words, "limit": _SHOWN}
    if peer:
        given["peer"] = peer
    try:
        answer = await client.call("experimental.chat.search", {}, given)
    except CommunityError as error:
        if error.code is not Code.BAD_REQUEST:
            raise
        return []
    return list(reversed(answer["output"]["messages"]))


def _is_unread(message: Mapping[str, Any], own: str) -> bool:
    return message["to"] == own and message["read_at"] is None


def _with(visit: Visit, peer: str, words: str = "") -> str:
    asked = {name: value for name, value in (("peer", peer), ("words", words)) if value}
    return f"{visit.page.path}?{urlencode(asked)}" if asked else visit.page.path


PAGE: Final = Page(
    "chat",
    mark("Chat"),
    show,
    reads={"live": live},
    acts={"send": send, "read": read},
    group=mark("People"),
)
