"""How verbs of `accord pipeline` read what is published: the folder, the version, a session.

Nothing is written here. Spark is only imported once it is known to be installed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli import report

if TYPE_CHECKING:
    from accord.pipeline.layout import Layout
    from accord.pipeline.runner.stored import Stored

Folder = Annotated[
    Path | None,
    typer.Option("--folder", help="The pipeline's folder (default: `pipeline` in the home)."),
]
Master = Annotated[
    str | None, typer.Option(help="A Spark master (default: every core of this machine).")
]
Remote = Annotated[str | None, typer.Option(help="A Spark Connect server, such as sc://host.")]

_PATIENCE = 3600.0


def layout_of(folder: Path | None, home: Path | None, config: Path | None) -> "Layout":
    """The pipeline's folder."""
    from accord.pipeline.layout import Layout

    if folder is not None:
        return Layout(folder.expanduser().absolute())
    from accord.station.settings import load

    return Layout(load(home, config).home / "pipeline")


@contextmanager
def published(
    layout: "Layout", master: str | None = None, remote: str | None = None
) -> "Iterator[Stored]":
    """The tables as they are published, held while the block runs.

    Raises:
        PipelineError: Nothing is published, or Spark does not start.
    """
    if master is not None and remote is not None:
        raise typer.BadParameter("name --master or --remote, not both")
    from accord.pipeline.runner.lock import held
    from accord.pipeline.runner.moving import has_moved, settle
    from accord.pipeline.runner.publishing import reading
    from accord.pipeline.runner.settings import table_format
    from accord.pipeline.runner.stored import Stored
    from accord.pipeline.runner.watching import watched
    from accord.pipeline.session import open_session

    if has_moved(layout):
        with held(layout, "settle"):
            settle(layout)
    with (
        reading(layout) as version,
        open_session(layout.root, master, remote) as spark,
        watched(spark, layout.spark_log, _PATIENCE),
        report.progress("reading history"),
    ):
        yield Stored(spark, layout, table_format(layout), version.path)
