"""`accord pipeline snapshot`: the state that Spark came to, signed by this home's anchor."""

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import report
from accord.cli.community_choosing import choose_community
from accord.cli.community_node import Community, show_lines, with_node
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json
from accord.cli.pipeline_reading import Folder, layout_of

if TYPE_CHECKING:
    from accord.cli.community_node import Local
    from accord.community.fold.vouching import Snapshot
    from accord.pipeline.community.snapshots import Published

EXAMPLE = "Example: accord pipeline snapshot --publish"


def register(app: typer.Typer) -> None:
    """Add the verb to `accord pipeline`."""
    app.command(epilog=EXAMPLE)(snapshot)


def snapshot(
    out: Annotated[
        Path | None, typer.Option(help="Write it into this file, which must not exist.")
    ] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Have this home's node offer it to others.")
    ] = False,
    folder: Folder = None,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Sign the published state of a community as a snapshot, which other nodes can begin with.

    The home's key must be an anchor's. Without --out or --publish nothing is signed: the state is
    only shown.
    """
    from accord.kernel.signing import SigningKey
    from accord.pipeline.community.snapshots import published_state, published_states, snapshot_of
    from accord.pipeline.errors import PipelineError
    from accord.pipeline.runner.publishing import reading
    from accord.station.home import Home as Place
    from accord.station.settings import load

    settings = load(home, config)
    place = Place(settings.home)
    with reading(layout_of(folder, home, config)) as version:
        found = _chosen(published_states(version.path), community)
        signed = None
        if out is not None or publish:
            if not place.device_key.exists():
                raise PipelineError(
                    "this home has no key to sign with",
                    where=str(settings.home),
                    mend="name an anchor's home with --home",
                )
            state = published_state(version.path, found.community_id)
            signed = snapshot_of(state, SigningKey.load(place.device_key), time.time())
    if signed is not None and out is not None:
        _write(out, signed)
    if signed is not None and publish:
        _publish(signed, settings.home, home, config)
    _show(found, signed, out, publish=publish, as_json=as_json)


def _chosen(states: "list[Published]", wanted: str | None) -> "Published":
    from accord.pipeline.errors import PipelineError

    if not states:
        raise PipelineError(
            "the published tables hold no community",
            mend="run `accord pipeline export`, then `accord pipeline run`",
        )
    named = [{"community_id": each.community_id, "name": each.name} for each in states]
    chosen = choose_community(named, wanted)
    return next(each for each in states if each.community_id == chosen["community_id"])


def _write(path: Path, signed: "Snapshot") -> None:
    from accord.kernel.files import write_private
    from accord.pipeline.errors import PipelineError

    try:
        write_private(path, signed.encode())
    except OSError as error:
        raise PipelineError(
            f"the file cannot be written ({error.strerror})",
            where=str(path),
            mend="name a new file that this user may write",
        ) from error


def _publish(signed: "Snapshot", place: Path, home: Path | None, config: Path | None) -> None:
    """Hand it to the node of the home, which compares it with its own log."""
    with tempfile.TemporaryDirectory(dir=place, prefix=".snapshot-") as draft:
        path = Path(draft) / "snapshot.json"
        _write(path, signed)

        async def ask(here: "Local") -> None:
            async with here.client(signed.community_id) as client:
                with report.progress("publishing") as bar:
                    work = {"kind": "snapshot", "path": str(path.absolute())}
                    while (await client.post("/node/v1/work", work))["result"] is None:
                        bar(0, 1)

        with_node(home, config, ask)


def _show(
    found: "Published", signed: "Snapshot | None", out: Path | None, *, publish: bool, as_json: bool
) -> None:
    told: dict[str, Any] = {
        "community_id": found.community_id,
        "name": found.name,
        "lamport": found.lamport,
        "state_digest": found.digest if signed is None else signed.state_digest,
        "size_bytes": found.size_bytes if signed is None else len(signed.state),
        "signed_by": None if signed is None else signed.author,
        "path": None if out is None else str(out),
        "published": publish,
    }
    if as_json:
        report.show_json(told)
        return
    show_lines(
        [
            ("community", f"{printable(found.name)} ({found.community_id})"),
            ("lamport", str(told["lamport"])),
            ("state", f"{told['state_digest']}, {told['size_bytes']} bytes"),
            ("signed by", told["signed_by"] or "nobody: name --out or --publish"),
            *([("file", str(out))] if out is not None else []),
            *([("offered", "by this home's node")] if publish else []),
        ]
    )
