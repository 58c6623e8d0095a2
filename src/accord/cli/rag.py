"""`accord rag add | load | query | list`: documents that are found again by asking.

Files go straight into the node's blob store; everything else goes through the node. A built corpus
is loaded by this process itself, which holds the home meanwhile.
"""

import asyncio
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import forms, report
from accord.cli.community_choosing import choose_community
from accord.cli.community_node import Community, show_lines, with_node
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from accord.capabilities.rag.telling import Telling
    from accord.cli.community_node import Local
    from accord.community.errors import CommunityError
    from accord.community.node import Node
    from accord.station.settings import Settings

app = typer.Typer(
    no_args_is_help=True, epilog='Example: accord rag query manuals "How do I clean rain water?"'
)

_CORPUS = "The corpus: a-z, 0-9 and -; `personal` stays on this node."
Corpus = Annotated[str, typer.Argument(help=_CORPUS, callback=forms.corpus)]
OwnCorpus = Annotated[str, typer.Argument(help=_CORPUS, callback=forms.own_corpus)]


@app.command(epilog="Example: accord rag add manuals ./pdfs --language de")
def add(
    corpus: OwnCorpus,
    paths: Annotated[
        list[Path], typer.Argument(help="Files, and folders with all that is in them.")
    ],
    title: Annotated[
        str | None, typer.Option(help="The title, for a single file (default: its name).")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Such as de or en (default: found out).")
    ] = None,
    year: Annotated[int | None, typer.Option(help="From which year, for filters.")] = None,
    licence: Annotated[
        str | None, typer.Option(help="Under which licence others may read it, for filters.")
    ] = None,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Add documents to a corpus: text, Markdown, HTML, PDF and DOCX.

    What is there already is left as it is. A file that cannot be read is named, and the others are
    added all the same; the exit code then is 1.
    """
    files = list(_files(paths))
    if title is not None and len(files) != 1:
        raise typer.BadParameter("it is for a single file", param_hint="--title")
    told: dict[str, Any] = {}
    if language is not None:
        told["language"] = language
    about = {"year": year, "licence": licence}
    if known := {name: value for name, value in about.items() if value is not None}:
        told["metadata"] = known

    async def work(here: "Local") -> list[dict[str, Any]]:
        from accord.capabilities.file import Blobs
        from accord.community.errors import CommunityError

        blobs = Blobs(here.settings.home / "blobs")
        added: list[dict[str, Any]] = []
        with report.progress("adding") as show:
            async with here.community(community) as client:
                for number, file in enumerate(files):
                    show(number, len(files))
                    try:
                        cid = await blobs.put(file)
                        given = {"doc_cid": cid, "title": title or file.stem[:500], **told}
                        answer = await client.call(
                            "rag.ingest", {"corpus": corpus}, given, idempotent=True
                        )
                    except CommunityError as error:
                        if not _is_of_file(error):
                            raise
                        added.append({"name": str(file), "error": str(error)})
                    else:
                        added.append({"name": str(file), **answer["output"]})
            show(len(files), len(files))
        return added

    added = with_node(home, config, work, with_models=True)
    refused = [each for each in added if "error" in each]
    if as_json:
        report.show_json({"corpus": corpus, "documents": added})
    else:
        for each in refused:
            report.say(f"error: {printable(each['name'])}: {printable(each['error'])}")
        taken = [each for each in added if "error" not in each]
        if taken:
            show_lines(
                [
                    (each["doc_cid"], f"{each['chunks_indexed']} chunks", printable(each["name"]))
                    for each in taken
                ]
            )
    if refused:
        raise typer.Exit(report.FAILED)


@app.command(epilog="Example: accord rag load ./built --corpus manuals")
def load(
    built: Annotated[Path, typer.Argument(help="What `accord pipeline corpus build` has built.")],
    corpus: Annotated[
        str | None, typer.Option(help="Into which corpus (default: the one it was built for).")
    ] = None,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Load a corpus that was built on Spark; nothing of it is embedded again.

    The node's station must not run meanwhile. What is there already is left as it is, so a load
    that was stopped is begun again.
    """
    from accord.pipeline.corpus.catalogue import usable
    from accord.pipeline.session import require_extra
    from accord.station.settings import load as load_settings

    require_extra()
    out = built.expanduser().absolute()
    name = forms.own_corpus(corpus or usable(out).corpus)
    told = asyncio.run(_load(load_settings(home, config), out, name, community))
    if as_json:
        report.show_json({"corpus": name, **told})
    else:
        typer.echo(f"{name}: {told['documents']} documents, {told['chunks']} chunks")


async def _load(
    settings: "Settings", out: Path, corpus: str, community: str | None
) -> dict[str, Any]:
    from accord.capabilities.file import Blobs
    from accord.capabilities.rag.names import PERSONAL
    from accord.capabilities.rag.opening import open_corpora
    from accord.capabilities.rag.records import Place
    from accord.capabilities.rag.telling import InCommunity, ToNobody
    from accord.kernel.clock import SystemClock
    from accord.pipeline.corpus import loading
    from accord.station.store import place as stores

    async with AsyncExitStack() as opened:
        node = await _held_node(settings, opened)
        blobs = Blobs(settings.home / "blobs", SystemClock())
        place = Place("", corpus)
        telling: Telling = ToNobody(blobs)
        if corpus != PERSONAL:
            listed = [
                {"community_id": each, "name": hosted.state.roster.name}
                for each, hosted in node.communities.items()
            ]
            chosen = choose_community(listed, community)["community_id"]
            place = Place(chosen, corpus)
            telling = InCommunity(node.community(chosen), corpus)
        # Without a model: every vector is there, and nothing is asked.
        corpora = await opened.enter_async_context(open_corpora(stores(settings), blobs))
        with report.progress("loading") as show:
            loaded = await loading.load(out, corpora, blobs, place, telling, told=show)
    return {"documents": loaded.documents, "chunks": loaded.chunks}


async def _held_node(settings: "Settings", opened: AsyncExitStack) -> "Node":
    """The node of a home, which no station has while it is open."""
    from accord.community.node import open_node
    from accord.kernel.clock import SystemClock
    from accord.kernel.signing import SigningKey
    from accord.station import logs
    from accord.station.community import node_settings
    from accord.station.errors import StationError
    from accord.station.home import Home as Station
    from accord.station.home import taken
    from accord.station.store import place as stores

    home = Station(settings.home)
    if not home.device_key.exists():
        raise StationError(
            "there is no node here yet",
            where=str(settings.home),
            mend="make one with `accord community create` or `accord up`",
        )
    undo = ExitStack()  # never run: the home was there before
    opened.enter_context(taken(home, "the command line", undo))
    opened.enter_context(logs.configured(settings.log.model_copy(update={"level": "error"})))
    return await opened.enter_async_context(
        open_node(
            SigningKey.load(home.device_key),
            home=settings.home,
            stores=stores(settings),
            clock=SystemClock(),
            settings=node_settings(settings),
        )
    )


@app.command(epilog='Example: accord rag query manuals "How do I clean rain water?" -k 3')
def query(
    corpus: Corpus,
    question: Annotated[str, typer.Argument(help="What is asked, in any words.")],
    k: Annotated[int, typer.Option("-k", min=1, max=20, help="How many chunks.")] = 5,
    language: Annotated[str | None, typer.Option(help="Only documents in this language.")] = None,
    min_year: Annotated[int | None, typer.Option(help="Only from this year on.")] = None,
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Find the parts of a corpus' documents that answer a question."""
    wanted = {
        name: value
        for name, value in (("language", language), ("min_year", min_year))
        if value is not None
    }
    given: dict[str, Any] = {"query": question, "k": k}
    if wanted:
        given["filter"] = wanted

    async def ask(here: "Local") -> dict[str, Any]:
        async with here.community(community) as client:
            return await client.call("rag.query", {"corpus": corpus}, given, idempotent=True)

    answer = with_node(home, config, ask, with_models=True)
    if as_json:
        report.show_json({**answer["output"], **answer["meta"]})
        return
    for each in answer["output"]["chunks"]:
        about = each["metadata"]
        place = [
            printable(about.get("doc_title", about["doc_cid"])),
            *([f"page {about['page']}"] if "page" in about else []),
            *([printable(about["heading"])] if "heading" in about else []),
        ]
        typer.echo(f"{each['rank']}. {each['score']:.3f}  {', '.join(place)}")
        text = " ".join(each["text"].split())
        typer.echo(f"   {printable(text[:400])}{'...' if len(text) > 400 else ''}")
    if "embedding_model" not in answer["meta"]:
        report.say("found by words alone: this node has no model for meanings")


@app.command("list", epilog="Example: accord rag list")
def list_(
    community: Community = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List the corpora of this node."""

    async def ask(here: "Local") -> list[dict[str, Any]]:
        async with here.community(community) as client:
            answer = await client.call("rag.list_corpora", {}, {}, idempotent=True)
            return list(answer["output"]["corpora"])

    found = with_node(home, config, ask, with_models=True)
    if as_json:
        report.show_json({"corpora": found})
    elif found:
        show_lines(
            [
                (
                    each["name"],
                    f"{each['docs']} documents",
                    f"{each['chunks']} chunks",
                    f"{each['size_bytes']} bytes",
                    each.get("language_majority", ""),
                )
                for each in found
            ]
        )


def _files(paths: list[Path]) -> list[Path]:
    """Every regular file that is meant, in order; links are not followed."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = (each for each in path.rglob("*") if not each.is_symlink())
            found += sorted(each for each in inside if each.is_file())
        elif path.is_file():
            found.append(path)
        else:
            raise typer.BadParameter(f"{path} is no file or folder", param_hint="PATHS")
    return found


def _is_of_file(error: "CommunityError") -> bool:
    """Whether a file is at fault, and the next may do better."""
    from accord.community.errors import Code

    return error.code is Code.BAD_REQUEST and not (error.where or "").startswith("/")
