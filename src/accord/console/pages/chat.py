"""Chat: sealed messages between this station and other members."""

from typing import Any, Final
from urllib.parse import quote

from starlette.responses import Response

from accord.community.client import Client
from accord.console.page import Page, Visit
from accord.console.templates import member_names
from accord.kernel.clock import format_time
from accord.kernel.ulid import UlidSource

_SHOWN: Final = 200
_WAYS: Final = {
    "direct": "Delivered to the recipient.",
    "forwarded": "The recipient is offline; an anchor keeps it for them.",
    "queued": "No node can be reached; this station retries.",
}


async def show(visit: Visit) -> Response:
    """Show the messages with everybody or with one member; nothing is marked as read."""
    own = visit.parts.node.key.id
    wanted = visit.form.text("recipient") or visit.query("peer")
    async with visit.community() as client:
        told = await client.get("/node/v1/members")
        others = [each for each in told["members"] if each["node_id"] != own]
        peer = next((each["node_id"] for each in others if each["node_id"] == wanted), "")
        number = await visit.changes(client)
        messages = await _messages(client, peer)
    return visit.show(
        "chat.html",
        others=others,
        names=member_names(told),
        peer=peer,
        messages=messages,
        own=own,
        number=number,
        address=_with(visit, peer),
        unread=sum(_is_unread(each, own) for each in messages),
    )


async def live(visit: Visit) -> Response:
    """Stream news about messages."""
    return visit.follow("chat.")


async def send(visit: Visit) -> Response:
    """Send a message, sealed."""
    recipient = visit.form.needed("recipient", "The recipient")
    given = {
        "client_id": UlidSource(visit.parts.clock).new(),
        "recipient": recipient,
        "body": visit.form.needed("body", "The message"),
        "attachments": [],
    }
    async with visit.community() as client:
        answer = await client.call("chat.send", {}, given, idempotent=True)
    return visit.done(_WAYS[answer["output"]["delivered"]], path=_with(visit, recipient))


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
    return visit.done(f"{len(unread)} marked as read.", path=_with(visit, peer))


async def _messages(client: Client, peer: str) -> list[dict[str, Any]]:
    given: dict[str, Any] = {"limit": _SHOWN}
    if peer:
        given["peer"] = peer
    answer = await client.call("chat.history", {}, given)
    return list(answer["output"]["messages"])


def _is_unread(message: dict[str, Any], own: str) -> bool:
    return message["to"] == own and message["read_at"] is None


def _with(visit: Visit, peer: str) -> str:
    return f"{visit.page.path}?peer={quote(peer, safe='')}" if peer else visit.page.path


PAGE: Final = Page(
    "chat", "Chat", show, reads={"live": live}, acts={"send": send, "read": read}, group="People"
)
