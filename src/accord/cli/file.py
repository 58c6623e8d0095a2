"""`accord file add | get | list | unpin | gc`: the files of this node, and those that others hold.

Bytes go straight between the disk and the node's blob store, which any number of processes may
use; what is told to a community, or asked of it, goes through the node.
"""

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final

import typer

from accord.cli import report
from accord.cli.community_node import Community, show_lines, with_node
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from accord.capabilities.file import Blobs
    from accord.cli.community_node import Local

app = typer.Typer(no_args_is_help=True, epilog="Example: accord file add ./manuals --share")

Cid = Annotated[str, typer.Argument(help="The blob's CID, such as blake3:3f2a...")]
_STDOUT: Final = Path("-")


@app.command(epilog="Example: accord file add ./manuals --share")
def add(
    paths: Annotated[
        list[Path], typer.Argument(help="Files, and folders with all that is in them.")
    ],
    share: Annotated[
        bool, typer.Option("--share", help="Tell the community that this node holds them.")
    ] = False,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Put files into this node's blob store, keep them there, and print their CIDs.

    Without --share they are for this node alone. Links are not followed.
    """
    files = _files(paths)

    async def work(here: "Local") -> list[dict[str, Any]]:
        blobs = _blobs(here)
        total = sum(size for _, size in files)
        added: list[dict[str, Any]] = []
        done = 0
        with report.progress("adding") as show:

            def count(size: int) -> None:
                nonlocal done
                done += size
                show(done, max(total, done))

            for file, _ in files:
                cid = await blobs.put(file, progress=count)
                blobs.pin(cid)
                size = blobs.manifest(cid).size_bytes
                added.append({"name": str(file), "cid": cid, "size_bytes": size})
        if share:
            async with here.community(community) as client:
                for each in added:
                    held = {"cid": each["cid"], "sizes_bytes": each["size_bytes"]}
                    event = {"event_type": "file.cid.advertised", "data": held}
                    await client.post("/node/v1/act", event)
        return added

    added = with_node(home, config, work)
    if as_json:
        report.show_json({"files": added})
    elif added:
        show_lines(
            [(each["cid"], str(each["size_bytes"]), printable(each["name"])) for each in added]
        )


@app.command(epilog="Example: accord file get blake3:3f2a... manual.pdf")
def get(
    cid: Cid,
    out: Annotated[Path, typer.Argument(help="The file to write, which must be new; - is stdout.")],
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Write a blob to a file; one that is not here is fetched from a member who holds it."""
    if as_json and out == _STDOUT:
        raise typer.BadParameter(
            "stdout is for the file or for JSON, not both", param_hint="--json"
        )

    async def work(here: "Local") -> int:
        blobs = _blobs(here)
        with report.progress("getting") as show:
            if not blobs.has(cid):
                async with (
                    here.community(community) as client,
                    contextlib.aclosing(client.stream("file.read", {}, {"cid": cid})) as frames,  # type: ignore[type-var]
                ):
                    async for frame in frames:
                        if frame.event == "manifest":
                            break  # it is here now
                        show(int(frame.data["current"]), int(frame.data["total"]))
            size = blobs.manifest(cid).size_bytes
            written = 0
            with _whole(out) as file:
                async for part in blobs.read(cid):
                    file.write(part)
                    written += len(part)
                    show(written, size)
        return size

    size = with_node(home, config, work)
    if as_json:
        report.show_json({"cid": cid, "size_bytes": size, "path": str(out)})


@app.command("list", epilog="Example: accord file list --prefix blake3:3f")
def list_(
    prefix: Annotated[str, typer.Option(help="Only CIDs that begin so.")] = "blake3:",
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List the blobs in this node's store, with their sizes and whether they are pinned."""
    from accord.community.errors import CommunityError

    def size(blobs: "Blobs", cid: str) -> int | None:
        try:
            return blobs.manifest(cid).size_bytes
        except CommunityError:
            return None  # damaged, or just removed

    async def work(here: "Local") -> list[dict[str, Any]]:
        blobs = _blobs(here)
        pinned = blobs.pinned()
        return [
            {"cid": cid, "size_bytes": size(blobs, cid), "pinned": cid in pinned}
            for cid in blobs.cids(prefix)
        ]

    found = with_node(home, config, work)
    if as_json:
        report.show_json({"files": found})
    elif found:
        show_lines(
            [
                (
                    each["cid"],
                    "damaged" if each["size_bytes"] is None else str(each["size_bytes"]),
                    "pinned" if each["pinned"] else "",
                )
                for each in found
            ]
        )


@app.command(epilog="Example: accord file unpin blake3:3f2a...")
def unpin(cid: Cid, home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Keep a blob no longer, and tell every community so; the next `gc` may remove it."""

    async def work(here: "Local") -> bool:
        was_pinned = _blobs(here).unpin(cid)
        for community_id in await _communities(here):
            async with here.client(community_id) as client:
                was_pinned |= await _tell_unpinned(client, cid)
        return was_pinned

    was_pinned = with_node(home, config, work)
    if as_json:
        report.show_json({"cid": cid, "was_pinned": was_pinned})
    elif not was_pinned:
        report.say("it was neither pinned nor shared")


@app.command(epilog="Example: accord file gc")
def gc(
    grace: Annotated[
        int | None,
        typer.Option(
            min=0, max=31_536_000, help="Spare what is younger, in seconds (default: a day)."
        ),
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Remove the blobs that no corpus, post or message names and nobody has pinned or shared."""
    given = {} if grace is None else {"grace_seconds": grace}

    async def work(here: "Local") -> dict[str, Any]:
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

    collected = with_node(home, config, work)
    if as_json:
        report.show_json(collected)
    else:
        typer.echo(f"{collected['blobs']} blobs removed, {collected['size_bytes']} bytes freed")


def _blobs(here: "Local") -> "Blobs":
    from accord.capabilities.file import Blobs

    return Blobs(here.settings.home / "blobs")


def _files(paths: list[Path]) -> list[tuple[Path, int]]:
    """Every regular file that is meant, in order, with its size.

    Raises:
        CommunityError: There is no such file or folder, or it cannot be looked at.
    """
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
    """A file that is there whole in the end, or not at all."""
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


async def _communities(here: "Local") -> list[str]:
    async with here.client() as client:
        status = await client.get("/node/v1/status")
    return [each["community_id"] for each in status["communities"]]


async def _tell_unpinned(client: Any, cid: str) -> bool:
    """Take back in a community's log that this node holds a blob; whether it had said so."""
    from accord.community.errors import CommunityError

    try:
        await client.post("/node/v1/act", {"event_type": "file.cid.unpinned", "data": {"cid": cid}})
    except CommunityError as error:
        if error.details.get("rule") == "file.missing":
            return False
        raise
    return True
