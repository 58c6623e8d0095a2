"""`accord pipeline export`: land what the planes of a station wrote, also beside a running one."""

import asyncio
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import report
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from accord.pipeline.landing import Landing
    from accord.pipeline.landing.exporter import Outbox
    from accord.station.settings import Settings

EXAMPLE = "Example: accord pipeline export --to s3://bucket/landing --every 300"


def register(app: typer.Typer) -> None:
    """Add the verb to `accord pipeline`."""
    app.command(epilog=EXAMPLE)(export)


def export(
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
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Write what has not landed yet to closed Parquet segments, each record exactly once.

    Interrupt it at any moment: the next export goes on from there. No secret and no text of a
    chat lands.
    """
    from accord.pipeline.errors import PipelineError
    from accord.station.settings import load

    settings = load(home, config)
    if once and every is not None:
        raise typer.BadParameter("name --once or --every, not both")
    if prune and to is not None:
        raise PipelineError(
            "journals are pruned by what has landed where the settings say",
            where="--to",
            mend="leave it out, or leave out --prune",
        )
    try:
        asyncio.run(_run(settings, to, every, prune=prune, as_json=as_json))
    except (asyncio.CancelledError, KeyboardInterrupt):
        report.say("Stopped; what has landed stays landed.")
        raise typer.Exit(report.FAILED if every is None else 0) from None


async def _run(
    settings: "Settings", to: str | None, every: float | None, *, prune: bool, as_json: bool
) -> None:
    from contextlib import AsyncExitStack

    from accord.pipeline.errors import PipelineError
    from accord.pipeline.landing import Landing
    from accord.station.pipeline import landing_of, open_outboxes

    running = asyncio.current_task()
    assert running is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    landing = Landing(to or landing_of(settings))
    outboxes: dict[str, Outbox] = {}
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
            if as_json:
                report.show_json(done)
            else:
                _show(done)
            if every is None:
                return
            await asyncio.sleep(every)


async def _export(
    settings: "Settings", outboxes: "list[Outbox]", landing: "Landing", *, prune: bool
) -> dict[str, Any]:
    from accord.pipeline.landing import exporter, retention
    from accord.station.pipeline import retention_of

    with report.progress("exporting") as bar:
        done = await exporter.export(outboxes, landing, progress=bar)
    told = {"landing": str(landing), "records": done.records, "segments": done.segments}
    if prune:
        now_ms = int(time.time() * 1000)
        gone = await retention.prune(outboxes, landing, retention_of(settings), now_ms=now_ms)
        told["pruned"] = {"records": gone.records, "segments": gone.segments}
    return told


def _show(done: dict[str, Any]) -> None:
    records: dict[str, int] = done["records"]
    if not records:
        typer.echo(f"Everything has landed in {done['landing']} already.")
    for stream, count in records.items():
        typer.echo(f"{stream}: {count} records")
    if records:
        typer.echo(f"Landed in {done['landing']}: {done['segments']} new segments.")
    if "pruned" in done:
        gone = done["pruned"]
        typer.echo(f"Pruned {gone['records']} records and {gone['segments']} segments.")
