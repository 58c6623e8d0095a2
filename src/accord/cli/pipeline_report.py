"""`accord pipeline report`: what is published, as one HTML file."""

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from accord.cli import report as speaking
from accord.cli.options import Config, Home, Json
from accord.cli.pipeline_reading import Folder, Master, Remote, layout_of, published


def register(pipeline: typer.Typer) -> None:
    """Add the verb to `accord pipeline`."""
    pipeline.command(epilog="Example: accord pipeline report --out report.html")(report)


def report(
    out: Annotated[Path, typer.Option(help="Write it here; an older one is replaced.")] = Path(
        "report.html"
    ),
    title: Annotated[str, typer.Option(help="What stands above it.")] = "What happened",
    folder: Folder = None,
    master: Master = None,
    remote: Remote = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Traffic, latency, drops, market, growth and data quality with plots, in one HTML file.

    The file holds everything that it shows and fetches nothing.
    """
    from accord.kernel.clock import format_time

    layout = layout_of(folder, home, config)
    with published(layout, master, remote) as tables:
        from accord.pipeline.report import Heading, collect, render

        sections = collect(tables)
        heading = Heading(title, tables.version.name, format_time(time.time()))
        page = render(heading, sections)
    _write(out, page)
    if as_json:
        told = [{"name": each.name, "sentence": each.sentence} for each in sections]
        version = heading.version
        speaking.show_json({"file": str(out), "version": version, "sections": told})
        return
    for each in sections:
        typer.echo(f"{each.title}: {each.sentence}")
    typer.echo(f"Written to {out}.")


def _write(out: Path, page: str) -> None:
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
