"""`accord chat send | history | read | search`: messages between two nodes, for their eyes only.

Files that are attached go into this node's blob store, from where the node encrypts them;
everything else goes through the node.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from accord.cli.arguments import printable
from accord.cli.node import (
    CommunityCli,
    choose_node,
    label,
    members_of,
    names_of,
    new_id,
    with_node,
)
from accord.cli.output import App

if TYPE_CHECKING:
    from accord.cli.node import LocalNode
    from accord.community.client import Client

app = App(no_args_is_help=True, epilog='Example: accord chat send garage-pc "Hello"')

_PAGE: Final = 500
_FOUND: Final = 200
_BEGINNING: Final = 0
_WAYS: Final = {
    "direct": "delivered to the recipient",
    "forwarded": "the recipient is offline; an anchor keeps it for them",
    "queued": "no node can be reached; this node retries while its station is up",
}

Peer = Annotated[
    str | None, typer.Argument(help="Only with this member: id or display name (default: all).")
]


@app.command(epilog='Example: accord chat send garage-pc "The plan" --attach plan.pdf')
def send(
    cli: CommunityCli,
    recipient: Annotated[str, typer.Argument(help="A member's id or display name.")],
    text: Annotated[str, typer.Argument(help="What to say.")] = "",
    attach: Annotated[list[Path] | None, typer.Option(help="A file to attach; repeatable.")] = None,
    allow_clear: Annotated[
        bool,
        typer.Option(
            "--allow-clear",
            help="If the recipient's node cannot open seals, let every member read the message; "
            "if it cannot open encrypted files, send them as they are.",
        ),
    ] = False,
    client_id: Annotated[
        str | None,
        typer.Option(help="Sending twice with the same id sends once (default: a new id)."),
    ] = None,
) -> None:
    """Send a sealed message to a member, and print its id and delivery state."""
    given: dict[str, Any] = {
        "client_id": client_id or new_id(),
        "body": text,
        "allow_clear": allow_clear,
    }

    async def ask(here: "LocalNode") -> dict[str, Any]:
        async with here.community(cli.community) as client:
            given["recipient"] = choose_node(await members_of(client), recipient)["node_id"]
            given["attachments"] = [await _attach(here, path) for path in attach or []]
            answer = await client.call("chat.send", {}, given, idempotent=True)
        return dict(answer["output"])

    sent = with_node(cli, ask)
    cli.emit(sent, f"{sent['event_id']}  {sent['delivered']}")
    cli.note(_WAYS.get(sent["delivered"], sent["delivered"]))


@app.command(epilog="Example: accord chat history garage-pc --since 4000")
def history(
    cli: CommunityCli,
    peer: Peer = None,
    since: Annotated[
        int | None,
        typer.Option(
            min=0, help="Everything after this position in the log (default: the latest)."
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=_PAGE, help="How many of the latest.")] = 50,
) -> None:
    """Show messages in the order of the log."""

    async def ask(client: "Client") -> tuple[list[dict[str, Any]], dict[str, str | None]]:
        members = await members_of(client)
        with_whom = _peer(members, peer)
        if since is None:
            answer = await client.call("chat.history", {}, {**with_whom, "limit": limit})
            messages = answer["output"]["messages"]
        else:
            messages = await _everything(client, with_whom, since)
        return messages, names_of(members)

    messages, names = cli.in_community(ask)
    cli.emit({"messages": messages}, _message_lines(messages, names))


@app.command(epilog='Example: accord chat search "shed noon" --peer garage-pc')
def search(
    cli: CommunityCli,
    words: Annotated[str, typer.Argument(help="Words that a message must all have.")],
    peer: Annotated[
        str | None,
        typer.Option(help="Only with this member: id or display name (default: all)."),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, max=_FOUND, help="How many of the latest matches.")
    ] = 50,
) -> None:
    """Find messages by their words, the newest first.

    Messages that the community's log has dropped are found, too. Exits with 1 if none is found.
    """

    async def ask(client: "Client") -> tuple[dict[str, Any], dict[str, str | None]]:
        members = await members_of(client)
        given = {"query": words, "limit": limit, **_peer(members, peer)}
        return await client.call("experimental.chat.search", {}, given), names_of(members)

    answer, names = cli.in_community(ask)
    messages = answer["output"]["messages"]
    cli.emit({"messages": messages}, _message_lines(messages, names))
    if answer["meta"].get("indexing"):
        cli.note("older messages are still being indexed: search again in a minute")
    if not messages:
        raise typer.Exit(1)


@app.command(epilog="Example: accord chat read garage-pc")
def read(
    cli: CommunityCli,
    peer: Peer = None,
    receipt: Annotated[
        bool, typer.Option("--receipt/--no-receipt", help="Whether to send read receipts.")
    ] = True,
) -> None:
    """Show unread messages, and send read receipts for them.

    With --no-receipt no receipts are sent, and they are shown again next time.
    """

    async def ask(here: "LocalNode") -> tuple[list[dict[str, Any]], dict[str, str | None]]:
        async with here.community(cli.community) as client:
            members = await members_of(client)
            messages = await _everything(client, _peer(members, peer), _BEGINNING)
            unread = [
                each for each in messages if each["to"] == here.key.id and each["read_at"] is None
            ]
            if receipt:
                for each in unread:
                    await _give_receipt(client, each["event_id"])
        return unread, names_of(members)

    messages, names = with_node(cli, ask)
    cli.emit({"messages": messages}, _message_lines(messages, names))


async def _give_receipt(client: "Client", event_id: str) -> None:
    from accord.kernel.clock import SystemClock, format_time

    data = {"target_event_id": event_id, "read_at": format_time(SystemClock().now())}
    await client.post("/node/v1/act", {"event_type": "chat.message.read", "data": data})


async def _everything(
    client: "Client", with_whom: dict[str, str], since: int
) -> list[dict[str, Any]]:
    """Every message after a place in the log, page by page."""
    messages: list[dict[str, Any]] = []
    while True:
        asked = {**with_whom, "since_lamport": since, "limit": _PAGE}
        answer = await client.call("chat.history", {}, asked)
        messages += answer["output"]["messages"]
        if not answer["meta"].get("more"):
            return messages
        since = messages[-1]["lamport"]


async def _attach(here: "LocalNode", path: Path) -> dict[str, str]:
    from accord.capabilities.file import Blobs

    return {"cid": await Blobs(here.settings.home / "blobs").put(path), "name": path.name}


def _peer(members: list[dict[str, Any]], peer: str | None) -> dict[str, str]:
    """Whom a person means; somebody who is no member any more is named by the full id."""
    if peer is None:
        return {}
    if peer.startswith("ed25519:"):
        return {"peer": peer}
    return {"peer": choose_node(members, peer)["node_id"]}


def _message_lines(messages: list[dict[str, Any]], names: dict[str, str | None]) -> Iterator[str]:
    for each in messages:
        ends = f"{label(each['from'], names)} -> {label(each['to'], names)}"
        yield f"{each['created_at']}  {ends}  {_state(each)}"
        said = each["body"] if each["body"] is not None else f"({each['problem']})"
        for line in said.splitlines():
            yield f"    {printable(line)}"
        for attached in each["attachments"]:
            yield f"    [{printable(attached['name'])}]  {attached['cid']}"


def _state(message: dict[str, Any]) -> str:
    state = "sent"
    if message["delivered_at"] is not None:
        state = "delivered"
    if message["read_at"] is not None:
        state = "read"
    return state if message["sealed"] is not False else f"{state}, in the clear"
