"""`accord file`: the files of this node, which of them it shares, and those that others share.

Bytes go straight between the disk and the node's blob store, which any number of processes may
use; what is told to a community, or asked of it, goes through the node.
"""

import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from accord.cli import output
from accord.cli.arguments import printable
from accord.cli.node import (
    CommunityCli,
    choose_community,
    choose_node,
    label,
    members_of,
    names_of,
    with_node,
)
from accord.cli.output import App, Cli

if TYPE_CHECKING:
    from accord.capabilities.file import Blobs
    from accord.cli.node import LocalNode
    from accord.community.client import Client

app = App(no_args_is_help=True, epilog="Example: accord file add ./manuals --share")

Cid = Annotated[str, typer.Argument(help="The blob's CID, such as blake3:3f2a...")]
With = Annotated[
    list[str] | None,
    typer.Option("--with", help="Only this member may read it: an id or display name; repeatable."),
]
_STDOUT: Final = Path("-")
# Whose pins are the owner's to undo: the own, what was fetched from chats, documents of old homes.
_PINS: Final = ("owner", "chat", "rag")


@app.command(epilog="Example: accord file add ./manuals --share")
def add(
    cli: CommunityCli,
    paths: Annotated[
        list[Path], typer.Argument(help="Files, and folders with all that is in them.")
    ],
    share: Annotated[
        bool, typer.Option("--share", help="Let every member of the community read them.")
    ] = False,
    title: Annotated[
        str, typer.Option(help="What others see beside the name, where they are shared.")
    ] = "",
    with_: With = None,
) -> None:
    """Add files to this node's blob store, pin them, and print their CIDs.

    Without --share or --with they are for this node alone. Links are not followed.
    """
    files = _files(paths)

    async def work(here: "LocalNode") -> list[dict[str, Any]]:
        from accord.capabilities.file import Label

        blobs = _blobs(here)
        total = sum(size for _, size in files)
        added: list[dict[str, Any]] = []
        done = 0
        with output.progress("adding") as show:

            def count(size: int) -> None:
                nonlocal done
                done += size
                show(done, max(total, done))

            for file, _ in files:
                cid = await blobs.put(file, progress=count)
                blobs.pin(cid, label=Label(file.name, title))
                size = blobs.manifest(cid).size_bytes
                added.append({"name": str(file), "cid": cid, "size_bytes": size})
        if share or with_:
            async with here.community(cli.community) as client:
                readers = await _readers(client, with_)
                for each in added:
                    name = Path(each["name"]).name
                    given = {"cid": each["cid"], "name": name, "title": title, **readers}
                    await client.call("experimental.file.share", {}, given, idempotent=True)
        return added

    added = with_node(cli, work)
    cli.emit(
        {"files": added},
        ((each["cid"], str(each["size_bytes"]), printable(each["name"])) for each in added),
    )


@app.command(epilog="Example: accord file get blake3:3f2a... manual.pdf")
def get(
    cli: CommunityCli,
    cid: Cid,
    out: Annotated[Path, typer.Argument(help="The file to write, which must be new; - is stdout.")],
) -> None:
    """Write a blob to a file; one that is not here is fetched from a member who holds it.

    What was attached to a sealed message is decrypted by the key in the message.
    """
    if cli.as_json and out == _STDOUT:
        raise typer.BadParameter(
            "stdout is for the file or for JSON, not both", param_hint="--json"
        )

    async def work(here: "LocalNode") -> int:
        blobs = _blobs(here)
        with output.progress("getting") as show:
            if not blobs.has(cid):
                async with (
                    here.community(cli.community) as client,
                    contextlib.aclosing(client.stream("file.read", {}, {"cid": cid})) as frames,  # type: ignore[type-var]
                ):
                    async for frame in frames:
                        if frame.event == "manifest":
                            break  # it is here now
                        show(int(frame.data["current"]), int(frame.data["total"]))
            size, parts = await _opened(here, blobs, cid, cli.community)
            written = 0
            with _whole(out) as file:
                async for part in parts:
                    file.write(part)
                    written += len(part)
                    show(written, size)
        return size

    size = with_node(cli, work)
    cli.emit({"cid": cid, "size_bytes": size, "path": str(out)})


@app.command("list", epilog="Example: accord file list --prefix blake3:3f")
def list_(
    cli: Cli,
    prefix: Annotated[str, typer.Option(help="Only CIDs that begin with this.")] = "blake3:",
) -> None:
    """List the blobs in this node's store, with their sizes and whether they are pinned.

    `accord file shared` lists what others share, by name.
    """
    from accord.community.errors import CommunityError

    def size(blobs: "Blobs", cid: str) -> int | None:
        try:
            return blobs.manifest(cid).size_bytes
        except CommunityError:
            return None  # damaged, or just removed

    async def work(here: "LocalNode") -> list[dict[str, Any]]:
        blobs = _blobs(here)
        pinned, labels = blobs.pinned(), blobs.labels()
        return [
            {
                "cid": cid,
                "size_bytes": size(blobs, cid),
                "pinned": cid in pinned,
                "name": labels[cid].name if cid in labels else "",
            }
            for cid in blobs.cids(prefix)
        ]

    found = with_node(cli, work)
    cli.emit(
        {"files": found},
        (
            (
                each["cid"],
                "damaged" if each["size_bytes"] is None else str(each["size_bytes"]),
                "pinned" if each["pinned"] else "",
                printable(each["name"]),
            )
            for each in found
        ),
    )


@app.command("share", epilog='Example: accord file share blake3:3f2a... --title "The pump"')
def share_(
    cli: CommunityCli,
    cid: Cid,
    name: Annotated[str, typer.Option(help="The file's name, as others see it.")] = "",
    title: Annotated[str, typer.Option(help="What others see beside the name.")] = "",
    with_: With = None,
) -> None:
    """Let every member of the community, or those named by --with, read a file of this node.

    Sharing it again replaces name, title and readers. `accord file unshare` takes it back.
    """

    async def work(client: "Client") -> dict[str, Any]:
        given = {"cid": cid, "name": name, "title": title, **await _readers(client, with_)}
        answer = await client.call("experimental.file.share", {}, given, idempotent=True)
        return dict(answer["output"])

    made = cli.in_community(work)
    cli.emit(made)
    who = (
        "every member of the community" if made["with"] is None else f"{len(made['with'])} members"
    )
    cli.note(f"{who} may read it")


@app.command(epilog="Example: accord file unshare blake3:3f2a...")
def unshare(cli: CommunityCli, cid: Cid) -> None:
    """Take back every right to read a file that this node gave, attachments of messages included.

    Copies that others have fetched are theirs. The file stays here for as long as it is pinned.
    """
    was_shared = cli.in_community(lambda client: _unshare(client, cid))
    cli.note("it is no longer shared" if was_shared else "it was not shared")
    cli.emit({"cid": cid, "was_shared": was_shared})


@app.command(epilog="Example: accord file shared --mine")
def shared(
    cli: CommunityCli,
    mine: Annotated[
        bool, typer.Option("--mine", help="What this node shares, and with whom.")
    ] = False,
    refresh: Annotated[
        bool,
        typer.Option("--refresh/--no-refresh", help="Ask the members now, or show what is known."),
    ] = True,
) -> None:
    """List the files that other members share with this node, by name and title."""

    async def work(client: "Client") -> tuple[dict[str, Any], dict[str, str | None]]:
        names = names_of(await members_of(client))
        if mine:
            return {"files": await _mine(client)}, names
        given = {"refresh": refresh}
        answer = await client.call("experimental.file.offered", {}, given)
        return dict(answer["output"]), names

    found, names = cli.in_community(work)
    cli.emit(found, (_shared_line(each, names) for each in found["files"]))
    for each in found.get("unreachable", ()):
        cli.note(f"{label(each, names)} could not be asked; what it last said is shown")


@app.command(epilog="Example: accord file unpin blake3:3f2a...")
def unpin(cli: Cli, cid: Cid) -> None:
    """Unpin a blob and stop sharing it; the next `gc` may remove it."""

    async def work(here: "LocalNode") -> bool:
        was_pinned = False
        for community_id in await _communities(here):
            async with here.client(community_id) as client:
                was_pinned |= await _unshare(client, cid)
        blobs = _blobs(here)
        was_pinned |= blobs.shares.drop(cid)
        for owner in _PINS:
            was_pinned |= blobs.unpin(cid, owner)
        return was_pinned

    was_pinned = with_node(cli, work)
    cli.emit({"cid": cid, "was_pinned": was_pinned})
    if not was_pinned:
        cli.note("it was neither pinned nor shared")


@app.command(epilog="Example: accord file gc")
def gc(
    cli: Cli,
    grace: Annotated[
        int | None,
        typer.Option(
            min=0, max=31_536_000, help="Keep blobs younger than this, in seconds (default: a day)."
        ),
    ] = None,
) -> None:
    """Remove the blobs that this node neither pinned, shared, sent, ingested nor posted about."""
    given = {} if grace is None else {"grace_seconds": grace}

    async def work(here: "LocalNode") -> dict[str, Any]:
        from accord.community.errors import Code, CommunityError

        for community_id in await _communities(here):
            async with here.client(community_id) as client:
                answer = await client.call("experimental.file.gc", {}, given)
            return dict(answer["output"])
        raise CommunityError(
            Code.NOT_FOUND,
            "this node is in no community",
            mend="`accord community create` or `accord community join`",
        )

    collected = with_node(cli, work)
    cli.emit(
        collected, f"{collected['blobs']} blobs removed, {collected['size_bytes']} bytes freed"
    )


def _blobs(here: "LocalNode") -> "Blobs":
    from accord.capabilities.file import Blobs

    return Blobs(here.settings.home / "blobs")


def _files(paths: list[Path]) -> list[tuple[Path, int]]:
    """Every regular file below the paths, in order, with its size."""
    from accord.community.errors import Code, CommunityError

    found: list[tuple[Path, int]] = []
    for path in paths:
        try:
            if path.is_dir():
                inside = sorted(each for each in path.rglob("*") if not each.is_symlink())
                found += [(each, each.stat().st_size) for each in inside if each.is_file()]
                continue
            if path.is_file():
                found.append((path, path.stat().st_size))
                continue
            why = "there is no such file or folder"
        except OSError as error:
            why = f"it cannot be read ({error.strerror or error})"
        raise CommunityError(Code.BAD_REQUEST, why, where=printable(str(path)))
    return found


@contextlib.contextmanager
def _whole(out: Path) -> Iterator[BinaryIO]:
    """Open a new file for writing that appears only when it is complete."""
    if out == _STDOUT:
        yield sys.stdout.buffer
        return
    from accord.community.errors import Code, CommunityError

    draft = out.parent / f".{out.name[:200]}.{secrets.token_hex(8)}"
    try:
        with draft.open("xb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.link(draft, out)  # fails where a rename would replace
            finally:
                draft.unlink()
    except OSError as error:
        raise CommunityError(
            Code.BAD_REQUEST,
            f"the file cannot be written ({error.strerror or error})",
            where=str(out),
            mend="name a new file in a folder that this user may write to",
        ) from error


async def _opened(
    here: "LocalNode", blobs: "Blobs", cid: str, community: str | None
) -> tuple[int, AsyncIterator[bytes]]:
    """The size and the bytes of the file in a blob, decrypted if a message here has the key."""
    from accord.capabilities.chat import attachments

    size = blobs.manifest(cid).size_bytes
    if not await attachments.is_encrypted(blobs, cid):
        return size, blobs.read(cid)
    for community_id in await _communities(here, community):
        async with here.client(community_id) as client:
            found = await attachments.find(client, blobs, cid)
        if found is not None and found.key is not None:
            return attachments.plain_size(size), attachments.decrypted(blobs, cid, found.key)
    output.say("it is encrypted, and no message here has its key; it is written as it is")
    return size, blobs.read(cid)


async def _communities(here: "LocalNode", wanted: str | None = None) -> list[str]:
    """The communities of the node, or the one that is meant."""
    async with here.client() as client:
        communities = (await client.get("/node/v1/status"))["communities"]
    if wanted is not None:
        communities = [choose_community(communities, wanted)]
    return [each["community_id"] for each in communities]


async def _readers(client: "Client", wanted: list[str] | None) -> dict[str, list[str]]:
    """The readers that --with names, as the capability takes them."""
    if not wanted:
        return {}
    members = await members_of(client)
    return {"with": [choose_node(members, each)["node_id"] for each in wanted]}


async def _unshare(client: "Client", cid: str) -> bool:
    answer = await client.call("experimental.file.unshare", {}, {"cid": cid}, idempotent=True)
    return bool(answer["output"]["was_shared"])


async def _mine(client: "Client") -> list[dict[str, Any]]:
    """Everything that this node shares, page by page."""
    found: list[dict[str, Any]] = []
    given: dict[str, Any] = {}
    while True:
        answer = await client.call("experimental.file.shared", {}, given)
        found += answer["output"]["files"]
        if not answer["meta"].get("more"):
            return found
        given = {"after": found[-1]["cid"]}


def _shared_line(file: dict[str, Any], names: dict[str, str | None]) -> tuple[str, ...]:
    if "holder" in file:
        who = label(file["holder"], names)
    elif "with" in file:
        who = ", ".join(label(each, names) for each in file["with"])
    else:
        who = "everybody"
    name, title = printable(file["name"]), printable(file["title"])
    called = f"{name} ({title})" if name and title else name or title or "(no name)"
    return file["cid"], str(file["size_bytes"]), called, who
