"""`accord pipeline export | generate`: what lands for the pipeline.

`export` lands what the planes of a station wrote, also beside a running one; `generate` makes a
history with known faults to try the pipeline on.
"""

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import output
from accord.cli.context import Cli, Output, with_options

if TYPE_CHECKING:
    from accord.pipeline.exporter import ExportSource
    from accord.pipeline.landing import Landing
    from accord.station.settings import Settings


EXPORT_EXAMPLE = "Example: accord pipeline export --to s3://bucket/landing --every 300"


def register_export(app: typer.Typer) -> None:
    """Add the verb to `accord pipeline`."""
    app.command(epilog=EXPORT_EXAMPLE)(with_options(export))


def export(
    cli: Cli,
    to: Annotated[
        str | None,
        typer.Option(help="A folder, or a URL that fsspec knows (default: as the settings say)."),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(
            "--every", min=1, max=86400, help="Go on, and export again after so many seconds."
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Export once and leave: the default.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Then let go of what the settings keep no longer.")
    ] = False,
) -> None:
    """Write what has not landed yet to closed Parquet segments, each record exactly once.

    Interrupt it at any moment: the next export goes on from there. No secret and no text of a
    chat lands.
    """
    from accord.pipeline.errors import PipelineError

    settings = cli.settings()
    if once and every is not None:
        raise typer.BadParameter("name --once or --every, not both")
    if prune and to is not None:
        raise PipelineError(
            "journals are pruned by what has landed where the settings say",
            where="--to",
            mend="leave it out, or leave out --prune",
        )
    try:
        asyncio.run(_run_exports(cli, settings, to, every, prune=prune))
    except (asyncio.CancelledError, KeyboardInterrupt):
        output.say("Stopped; what has landed stays landed.")
        raise typer.Exit(output.FAILED if every is None else 0) from None


async def _run_exports(
    cli: Cli, settings: "Settings", to: str | None, every: float | None, *, prune: bool
) -> None:
    from contextlib import AsyncExitStack

    from accord.pipeline.errors import PipelineError
    from accord.pipeline.landing import Landing
    from accord.station.pipeline import landing_of, open_outboxes

    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    landing = Landing(to or landing_of(settings))
    outboxes: dict[str, ExportSource] = {}
    async with AsyncExitStack() as opened:
        while True:
            await open_outboxes(settings, opened, outboxes)
            if not outboxes and every is None:
                raise PipelineError(
                    "no plane of this home has written anything",
                    where=str(settings.home),
                    mend="run `accord up` first, or name another home with --home",
                )
            done = await _export(settings, list(outboxes.values()), landing, prune=prune)
            cli.emit(done, _export_lines(done))
            if every is None:
                return
            await asyncio.sleep(every)


async def _export(
    settings: "Settings", outboxes: "list[ExportSource]", landing: "Landing", *, prune: bool
) -> dict[str, Any]:
    from accord.pipeline import exporter
    from accord.station.pipeline import retention_of

    with output.progress("exporting") as bar:
        done = await exporter.export(outboxes, landing, progress=bar)
    told = {"landing": str(landing), "records": done.records, "segments": done.segments}
    if prune:
        now_ms = int(time.time() * 1000)
        gone = await exporter.prune(outboxes, landing, retention_of(settings), now_ms=now_ms)
        told["pruned"] = {"records": gone.records, "segments": gone.segments}
    return told


def _export_lines(done: dict[str, Any]) -> Iterator[str]:
    records: dict[str, int] = done["records"]
    if not records:
        yield f"Everything has landed in {done['landing']} already."
    for stream, count in records.items():
        yield f"{stream}: {count} records"
    if records:
        yield f"Landed in {done['landing']}: {done['segments']} new segments."
    if "pruned" in done:
        gone = done["pruned"]
        yield f"Pruned {gone['records']} records and {gone['segments']} segments."


def generate(
    cli: Output,
    to: Annotated[
        Path, typer.Option(help="The pipeline's folder to land it in; it must hold no history yet.")
    ],
    events: Annotated[
        int, typer.Option(help="About how many events the community writes.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="The same number gives the same history.")] = 1,
    faults: Annotated[bool, typer.Option(help="Whether faults are planted.")] = True,
) -> None:
    """Make a history of every stream, signed, with planted faults and the truth about them.

    Segments appear under `landing/`, and `truth.json` beside it says what every stream must come
    to and names every planted record with the rule that it falls under.
    """
    from accord.pipeline.generate import TRUTH_FILE
    from accord.pipeline.generate import generate as make

    with output.progress("Writing history") as progress:
        truth = make(to, events=events, seed=seed, faults=None if faults else {}, progress=progress)
    told = truth.to_dict()
    counts = [
        {name: fault[name] for name in ("kind", "stream", "fate", "rule", "count")}
        for fault in told["faults"]
    ]
    columns = ("landed", "accepted", "quarantined", "duplicates")
    rows = (
        (stream, *(f"{terms[name]:,}" for name in columns))
        for stream, terms in told["streams"].items()
    )
    planted = sum(fault["count"] for fault in told["faults"])
    cli.emit(
        {
            "folder": str(to),
            "truth": str(to / TRUTH_FILE),
            "streams": told["streams"],
            "communities": told["communities"],
            "faults": counts,
        },
        [
            output.Table(("stream", *columns), rows),
            f"{planted:,} records are planted; {to / TRUTH_FILE} names each of them.",
            "Now run the pipeline on that folder, and compare.",
        ],
    )


def register_generate(app: typer.Typer) -> None:
    """Add the verb to `accord pipeline`."""
    app.command(epilog="Example: accord pipeline generate --events 20000 --seed 7 --to ./trial")(
        with_options(generate)
    )
