"""`accord pipeline corpus build`: documents cut and embedded on Spark, for a node to load."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import arguments, output
from accord.cli.arguments import printable
from accord.cli.context import App, Cli
from accord.cli.pipeline_report import Conf, Master, Remote, read_conf

if TYPE_CHECKING:
    from accord.pipeline.corpus.builder import BuildOutcome

EXAMPLE = "Example: accord pipeline corpus build ./manuals --corpus manuals --out ./built"

_LANGUAGE = re.compile(r"(?=.{2,35}$)[a-z]{2,3}(-[A-Za-z0-9]{1,8})*", re.ASCII)

app = App(no_args_is_help=True, epilog=EXAMPLE, help="Corpora, built on Spark.")


def register(above: typer.Typer) -> None:
    """Add the noun to `accord pipeline`."""
    above.add_typer(app, name="corpus")


@app.callback()
def _corpus() -> None:
    """Build corpora on Spark, which nodes load without embedding anything."""


@app.command(epilog=EXAMPLE)
def build(
    cli: Cli,
    documents: Annotated[
        Path, typer.Argument(help="A folder with documents, or a Parquet table of them.")
    ],
    corpus: Annotated[
        str,
        typer.Option(
            help="What nodes call it: a-z, 0-9 and -.", callback=arguments.check_own_corpus
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where it is built, or brought up to date.")],
    names: Annotated[str, typer.Option(help="The table's column of names.")] = "name",
    contents: Annotated[
        str, typer.Option(help="The table's column of documents, as bytes or text.")
    ] = "content",
    language: Annotated[
        str | None, typer.Option(help="Such as de or en (default: found out).")
    ] = None,
    year: Annotated[int | None, typer.Option(help="From which year, for filters.")] = None,
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
) -> None:
    """Cut and embed documents on Spark, and publish them as a corpus that `accord rag load` takes.

    Documents that were made before are not made again. One that cannot be read is named, and the
    others are built all the same; the exit code then is 1. Interrupt it at any moment: what was
    published stands, and the next build goes on.
    """
    _check(language, master, remote)
    from accord.capabilities import models
    from accord.pipeline.session import require_extra

    require_extra()
    weights = models.weights_folder(cli.settings().models.weights)
    models.embedding_model(weights)
    for library in ("numpy", "onnxruntime", "tokenizers", "Stemmer", "pypdf", "defusedxml"):
        models.library(library)
    from accord.pipeline.corpus import builder
    from accord.pipeline.corpus.plan import DocumentDefaults
    from accord.pipeline.corpus.sources import source_of
    from accord.pipeline.runs.runner import SparkTarget

    request = builder.BuildRequest(
        source_of(documents.expanduser().absolute(), names, contents),
        corpus,
        out.expanduser().absolute(),
        DocumentDefaults(language, {} if year is None else {"year": year}),
        weights,
    )
    where = SparkTarget(master, remote, read_conf(conf))
    try:
        with output.progress("building") as bar:
            outcome = builder.build(
                request, where, progress=lambda _step, done, total: bar(done, total)
            )
    except KeyboardInterrupt:
        output.say("Stopped; what was published stands, and the next build goes on.")
        raise typer.Exit(output.FAILED) from None
    _show(cli, outcome, corpus, out)
    if outcome.refused:
        raise typer.Exit(output.FAILED)


def _check(language: str | None, master: str | None, remote: str | None) -> None:
    if language is not None and not _LANGUAGE.fullmatch(language):
        raise typer.BadParameter("expected such as de or en-GB", param_hint="--language")
    if master is not None and remote is not None:
        raise typer.BadParameter("name --master or --remote, not both")


def _show(cli: Cli, outcome: "BuildOutcome", corpus: str, out: Path) -> None:
    told: dict[str, Any] = {"corpus": corpus, "out": str(out), **outcome.payload()}
    for each in outcome.refused:
        cli.note(f"error: {printable(each.name)}: {printable(each.reason)}")
    if outcome.published is None:
        cli.note("No document could be taken; nothing was published.")
        cli.emit(told)
        return
    cli.emit(
        told,
        [
            (
                f"{told['documents']} documents in {told['chunks']} chunks: "
                f"{told['made']} made now, {told['kept']} kept."
            ),
            f"Next: accord rag load {out}",
        ],
    )
