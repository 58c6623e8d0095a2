"""`accord pipeline corpus build`: documents cut and embedded on Spark, for a node to load."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import forms, report
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json
from accord.cli.pipeline_reading import Master, Remote

if TYPE_CHECKING:
    from accord.pipeline.corpus.building import Outcome

EXAMPLE = "Example: accord pipeline corpus build ./manuals --corpus manuals --out ./built"

_LANGUAGE = re.compile(r"(?=.{2,35}$)[a-z]{2,3}(-[A-Za-z0-9]{1,8})*", re.ASCII)

app = typer.Typer(no_args_is_help=True, epilog=EXAMPLE, help="Corpora, built on Spark.")


def register(above: typer.Typer) -> None:
    """Add the noun to `accord pipeline`."""
    above.add_typer(app, name="corpus")


@app.callback()
def _corpus() -> None:
    """Build corpora on Spark, which nodes load without embedding anything."""


@app.command(epilog=EXAMPLE)
def build(
    documents: Annotated[
        Path, typer.Argument(help="A folder with documents, or a Parquet table of them.")
    ],
    corpus: Annotated[
        str, typer.Option(help="What nodes call it: a-z, 0-9 and -.", callback=forms.own_corpus)
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
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", help="A Spark setting, name=value; may be repeated."),
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Cut and embed documents on Spark, and publish them as a corpus that `accord rag load` takes.

    Documents that were made before are not made again. One that cannot be read is named, and the
    others are built all the same; the exit code then is 1. Interrupt it at any moment: what was
    published stands, and the next build goes on.
    """
    _check(language, master, remote)
    from accord.capabilities import models
    from accord.pipeline.session import require_extra
    from accord.station.settings import load

    require_extra()
    weights = models.weights_folder(load(home, config).models.weights)
    models.embedding_model(weights)
    for library in ("numpy", "onnxruntime", "tokenizers", "Stemmer", "pypdf", "defusedxml"):
        models.library(library)
    from accord.pipeline.corpus import building
    from accord.pipeline.corpus.plan import Told
    from accord.pipeline.corpus.sources import source_of
    from accord.pipeline.runner.command import Where

    request = building.Request(
        source_of(documents.expanduser().absolute(), names, contents),
        corpus,
        out.expanduser().absolute(),
        Told(language, {} if year is None else {"year": year}),
        weights,
    )
    where = Where(master, remote, _settings(conf))
    try:
        with report.progress("building") as bar:
            outcome = building.build(
                request, where, told=lambda _step, done, total: bar(done, total)
            )
    except KeyboardInterrupt:
        report.say("Stopped; what was published stands, and the next build goes on.")
        raise typer.Exit(report.FAILED) from None
    _show(outcome, corpus, out, as_json=as_json)
    if outcome.refused:
        raise typer.Exit(report.FAILED)


def _check(language: str | None, master: str | None, remote: str | None) -> None:
    if language is not None and not _LANGUAGE.fullmatch(language):
        raise typer.BadParameter("expected such as de or en-GB", param_hint="--language")
    if master is not None and remote is not None:
        raise typer.BadParameter("name --master or --remote, not both")


def _settings(conf: list[str] | None) -> dict[str, str]:
    pairs = [each.partition("=") for each in conf or ()]
    if wrong := [name for name, found, _ in pairs if not found]:
        raise typer.BadParameter(f"--conf {wrong[0]}: expected name=value")
    return {name: value for name, _, value in pairs}


def _show(outcome: "Outcome", corpus: str, out: Path, *, as_json: bool) -> None:
    told: dict[str, Any] = {"corpus": corpus, "out": str(out), **outcome.payload()}
    if as_json:
        report.show_json(told)
        return
    for each in outcome.refused:
        report.say(f"error: {printable(each.name)}: {printable(each.reason)}")
    if outcome.published is None:
        report.say("No document could be taken; nothing was published.")
        return
    typer.echo(
        f"{told['documents']} documents in {told['chunks']} chunks: "
        f"{told['made']} made now, {told['kept']} kept."
    )
    typer.echo(f"Next: accord rag load {out}")
