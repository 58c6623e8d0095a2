"""`accord pipeline report | whatif | snapshot`: verbs that read what is published.

Spark is only imported once it is known to be installed.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import output
from accord.cli.arguments import File, printable, read_json
from accord.cli.node import CommunityCli, choose_community, with_node
from accord.cli.output import App, Cli
from accord.cli.pipeline import PATIENCE, Folder, SparkCli, app, layout_of

if TYPE_CHECKING:
    from accord.cli.node import LocalNode
    from accord.community.rules.snapshots import Snapshot
    from accord.pipeline.folder import Layout
    from accord.pipeline.snapshots import PublishedState
    from accord.pipeline.tables.layers import StoredTables


@contextmanager
def published(
    layout: "Layout", master: str | None = None, remote: str | None = None
) -> "Iterator[StoredTables]":
    """The tables as they are published, held while the block runs; raises `PipelineError`."""
    if master is not None and remote is not None:
        raise typer.BadParameter("name --master or --remote, not both")
    from accord.pipeline.folder import has_moved, lock_folder, relocate
    from accord.pipeline.runs.versions import open_published, published_tables
    from accord.pipeline.session import open_session, watch_session

    if has_moved(layout):
        with lock_folder(layout, "settle"):
            relocate(layout)
    with (
        open_published(layout) as version,
        open_session(layout.root, master, remote) as spark,
        watch_session(spark, layout.spark_log, PATIENCE),
        output.progress("reading history"),
    ):
        yield published_tables(layout, spark, version)


@app.command(epilog="Example: accord pipeline report --out report.html")
def report(
    cli: SparkCli,
    out: Annotated[Path, typer.Option(help="The file to write; an older one is replaced.")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option(help="The title of the report.")] = "What happened",
) -> None:
    """Traffic, latency, drops, market, growth and data quality with plots, in one HTML file.

    The file holds everything that it shows and fetches nothing.
    """
    from accord.kernel.clock import format_time

    with published(cli.layout(), cli.master, cli.remote) as tables:
        from accord.pipeline.report import Heading, collect, render

        sections = collect(tables)
        heading = Heading(title, tables.version.name, format_time(time.time()))
        page = render(heading, sections)
    _write_page(out, page)
    told = [{"name": each.name, "sentence": each.sentence} for each in sections]
    cli.emit(
        {"file": str(out), "version": heading.version, "sections": told},
        [*(f"{each.title}: {each.sentence}" for each in sections), f"Written to {out}."],
    )


def _write_page(out: Path, page: str) -> None:
    """Replace the file whole, or leave it."""
    from accord.pipeline.errors import PipelineError

    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{out.name}-", dir=out.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(page)
            Path(name).chmod(0o644)
            Path(name).replace(out)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise PipelineError(
            f"the report cannot be written: {error.strerror}", where=str(out)
        ) from None


@app.command(epilog="Example: accord pipeline snapshot --publish")
def snapshot(
    cli: CommunityCli,
    out: Annotated[
        Path | None, typer.Option(help="Write it into this file, which must not exist.")
    ] = None,
    publish: Annotated[
        bool, typer.Option("--publish", help="Have this home's node offer it to others.")
    ] = False,
    folder: Folder = None,
) -> None:
    """Sign the published state of a community as a snapshot, which other nodes can start from.

    The home's key must be an anchor's. Without --out or --publish nothing is signed: the state is
    only shown.
    """
    from accord.kernel.signing import SigningKey
    from accord.pipeline.errors import PipelineError
    from accord.pipeline.runs.versions import open_published
    from accord.pipeline.snapshots import published_state, published_states, snapshot_of
    from accord.station.home import Home as Place

    settings = cli.settings()
    place = Place(settings.home)
    with open_published(layout_of(cli, folder)) as version:
        found = _choose_state(published_states(version.files("state")), cli.community)
        signed = None
        if out is not None or publish:
            if not place.device_key.exists():
                raise PipelineError(
                    "this home has no key to sign with",
                    where=str(settings.home),
                    mend="name an anchor's home with --home",
                )
            state = published_state(version.files("state"), found.community_id)
            signed = snapshot_of(state, SigningKey.load(place.device_key), time.time())
    if signed is not None and out is not None:
        _write_snapshot(out, signed)
    if signed is not None and publish:
        _publish(cli, signed, settings.home)
    _show_snapshot(cli, found, signed, out, publish=publish)


def _choose_state(states: "list[PublishedState]", wanted: str | None) -> "PublishedState":
    from accord.pipeline.errors import PipelineError

    if not states:
        raise PipelineError(
            "the published tables hold no community",
            mend="run `accord pipeline export`, then `accord pipeline run`",
        )
    named = [{"community_id": each.community_id, "name": each.name} for each in states]
    chosen = choose_community(named, wanted)
    return next(each for each in states if each.community_id == chosen["community_id"])


def _write_snapshot(path: Path, signed: "Snapshot") -> None:
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


def _publish(cli: Cli, signed: "Snapshot", place: Path) -> None:
    """Hand it to the node of the home, which compares it with its own log."""
    with tempfile.TemporaryDirectory(dir=place, prefix=".snapshot-") as draft:
        path = Path(draft) / "snapshot.json"
        _write_snapshot(path, signed)

        async def ask(here: "LocalNode") -> None:
            async with here.client(signed.community_id) as client:
                with output.progress("publishing") as bar:
                    work = {"kind": "snapshot", "path": str(path.absolute())}
                    while (await client.post("/node/v1/work", work))["result"] is None:
                        bar(0, 1)

        with_node(cli, ask)


def _show_snapshot(
    cli: Cli, found: "PublishedState", signed: "Snapshot | None", out: Path | None, *, publish: bool
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
    cli.emit(
        told,
        [
            ("community", f"{printable(found.name)} ({found.community_id})"),
            ("lamport", str(told["lamport"])),
            ("state", f"{told['state_digest']}, {told['size_bytes']} bytes"),
            ("signed by", told["signed_by"] or "nobody: name --out or --publish"),
            *([("file", str(out))] if out is not None else []),
            *([("offered", "by this home's node")] if publish else []),
        ],
    )


whatif_app = App(
    no_args_is_help=True, epilog="Example: accord pipeline whatif contract billing.json"
)


@whatif_app.command(epilog="Example: accord pipeline whatif contract billing.json --json")
@output.yes_or_no
def contract(
    cli: SparkCli,
    file: File,
    against: Annotated[
        str | None, typer.Option(help="Compare with this digest (default: the latest one).")
    ] = None,
) -> None:
    """Check the recorded payloads of changed surfaces against a proposed contract.

    Shows how many calls of which callers would have failed, with witnesses, next to the result of
    comparing the two contracts. Exit code 1 when any call would have failed.
    """
    from accord.contracts import digest

    manifest = read_json(file)
    digest(manifest)  # what is no contract is refused before Spark starts
    with published(cli.layout(), cli.master, cli.remote) as tables:
        from accord.pipeline.whatif.contract import whatif_contract

        found = whatif_contract(tables, manifest, against)
    cli.emit(found.to_dict(), found.text())
    raise typer.Exit(output.FAILED if found.failing else 0)


@whatif_app.command(epilog="Example: accord pipeline whatif policy policy.json")
def policy(cli: SparkCli, file: File) -> None:
    """Replay the delivery gate over history with a proposed policy.

    The file holds the bodies that agents would send, by route, with the agent in each:
    {"/relay/policy": [{"instanceId": "echo", "platform": "webchat", "requireAddress": true}]}.
    Principal policies go under "/manage/principal". Without an instanceId a body is every agent's.
    """
    from accord.kernel import canonical
    from accord.pipeline.rules.proposals import read_policy

    proposed = read_policy(canonical.encode(read_json(file)))
    with published(cli.layout(), cli.master, cli.remote) as tables:
        from accord.pipeline.whatif.policy import whatif_policy

        found = whatif_policy(tables, proposed)
    cli.emit(found.to_dict(), found.text())


@whatif_app.command(epilog="Example: accord pipeline whatif revoke kitchen --upto 12")
def revoke(
    cli: SparkCli,
    node: Annotated[str, typer.Argument(help="The member: its id, the start of it, or its name.")],
    upto: Annotated[
        int | None,
        typer.Option(min=0, help="Its last event that would count (default: all so far)."),
    ] = None,
    community: Annotated[
        str | None, typer.Option(help="The community, where the member is in several.")
    ] = None,
) -> None:
    """Show what revoking a member would void: its own events, and what others built on them."""
    with published(cli.layout(), cli.master, cli.remote) as tables:
        from accord.pipeline.whatif.revocation import whatif_revoke

        found = whatif_revoke(tables, node, upto, community)
    cli.emit(found.to_dict(), found.text())
