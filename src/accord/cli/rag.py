"""`accord rag`: documents that are found again by asking.

Files go straight into the node's blob store; everything else goes through the node. A built corpus
is loaded by this process itself, which holds the home meanwhile.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack, aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from accord.cli import arguments, output
from accord.cli.arguments import printable
from accord.cli.node import CommunityCli, choose_community, with_node
from accord.cli.output import App

if TYPE_CHECKING:
    from accord.capabilities.rag.corpora import Announcer
    from accord.cli.node import LocalNode
    from accord.community.bus import Frame
    from accord.community.client import Client
    from accord.community.errors import CommunityError
    from accord.community.node import Node
    from accord.station.settings import Settings

app = App(
    no_args_is_help=True, epilog='Example: accord rag query manuals "How do I clean rain water?"'
)

_CORPUS = "The corpus: a-z, 0-9 and -; `personal` stays on this node."
Corpus = Annotated[str, typer.Argument(help=_CORPUS, callback=arguments.check_corpus)]
OwnCorpus = Annotated[str, typer.Argument(help=_CORPUS, callback=arguments.check_own_corpus)]


@app.command(epilog="Example: accord rag add manuals ./pdfs --language de")
def add(
    cli: CommunityCli,
    corpus: OwnCorpus,
    paths: Annotated[
        list[Path], typer.Argument(help="Files, and folders with all that is in them.")
    ],
    title: Annotated[
        str | None, typer.Option(help="The title, for a single file (default: its name).")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="Such as de or en (default: detected).")
    ] = None,
    year: Annotated[int | None, typer.Option(help="Its year, for filters.")] = None,
    licence: Annotated[
        str | None, typer.Option(help="Under which licence others may read it, for filters.")
    ] = None,
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

    async def work(here: "LocalNode") -> list[dict[str, Any]]:
        from accord.capabilities.file import Blobs
        from accord.community.errors import CommunityError

        blobs = Blobs(here.settings.home / "blobs")
        added: list[dict[str, Any]] = []
        with output.progress("adding") as show:
            async with here.community(cli.community) as client:
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

    added = with_node(cli, work, with_models=True)
    refused = [each for each in added if "error" in each]
    for each in refused:
        cli.note(f"error: {printable(each['name'])}: {printable(each['error'])}")
    cli.emit(
        {"corpus": corpus, "documents": added},
        (
            (each["doc_cid"], f"{each['chunks_indexed']} chunks", printable(each["name"]))
            for each in added
            if "error" not in each
        ),
    )
    if refused:
        raise typer.Exit(output.FAILED)


@app.command(epilog="Example: accord rag load ./built --corpus manuals")
def load(
    cli: CommunityCli,
    built: Annotated[Path, typer.Argument(help="What `accord pipeline corpus build` has built.")],
    corpus: Annotated[
        str | None, typer.Option(help="Into which corpus (default: the one it was built for).")
    ] = None,
) -> None:
    """Load a corpus that was built on Spark; nothing of it is embedded again.

    The node's station must not run meanwhile. What is there already is left as it is, so an
    interrupted load can be repeated.
    """
    from accord.pipeline.session import require_extra

    require_extra()
    from accord.pipeline.corpus.store import usable

    out = built.expanduser().absolute()
    name = arguments.check_own_corpus(corpus or usable(out).corpus)
    told = asyncio.run(_load(cli.settings(), out, name, cli.community))
    cli.emit(
        {"corpus": name, **told}, f"{name}: {told['documents']} documents, {told['chunks']} chunks"
    )


async def _load(
    settings: "Settings", out: Path, corpus: str, community: str | None
) -> dict[str, Any]:
    from accord.capabilities.file import Blobs
    from accord.capabilities.rag.corpora import CommunityAnnouncer, PrivateAnnouncer
    from accord.capabilities.rag.service import open_corpora
    from accord.capabilities.rag.store import CorpusId
    from accord.capabilities.settings import PERSONAL_CORPUS
    from accord.kernel.clock import SystemClock
    from accord.pipeline.corpus import loader
    from accord.station.store import store_location as stores

    async with AsyncExitStack() as opened:
        node = await _held_node(settings, opened)
        blobs = Blobs(settings.home / "blobs", SystemClock())
        place = CorpusId("", corpus)
        telling: Announcer = PrivateAnnouncer(blobs)
        if corpus != PERSONAL_CORPUS:
            listed = [
                {"community_id": each, "name": hosted.state.roster.name}
                for each, hosted in node.communities.items()
            ]
            current = None if node.current is None else node.current.community_id
            chosen = choose_community(listed, community, current=current)["community_id"]
            place = CorpusId(chosen, corpus)
            telling = CommunityAnnouncer(node.community(chosen), corpus)
        # Without a model: every vector is there, and nothing is asked.
        corpora = await opened.enter_async_context(open_corpora(stores(settings), blobs))
        with output.progress("loading") as show:
            loaded = await loader.load(out, corpora, blobs, place, telling, progress=show)
    return {"documents": loaded.documents, "chunks": loaded.chunks}


async def _held_node(settings: "Settings", opened: AsyncExitStack) -> "Node":
    """Open the node of a home; the home is held meanwhile."""
    from accord.community.node import open_node
    from accord.kernel.clock import SystemClock
    from accord.kernel.signing import SigningKey
    from accord.station import logs
    from accord.station.community import node_settings
    from accord.station.errors import StationError
    from accord.station.home import Home as Station
    from accord.station.home import hold_home
    from accord.station.store import store_location as stores

    home = Station(settings.home)
    if not home.device_key.exists():
        raise StationError(
            "there is no node here yet",
            where=str(settings.home),
            mend="make one with `accord community create` or `accord up`",
        )
    undo = ExitStack()  # never run: the home was there before
    opened.enter_context(hold_home(home, "the command line", undo))
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
    cli: CommunityCli,
    corpus: Corpus,
    question: Annotated[str, typer.Argument(help="The question, in any words.")],
    k: Annotated[int, typer.Option("-k", min=1, max=20, help="How many chunks.")] = 5,
    language: Annotated[str | None, typer.Option(help="Only documents in this language.")] = None,
    min_year: Annotated[int | None, typer.Option(help="Only from this year on.")] = None,
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

    answer = cli.in_community(
        lambda client: client.call("rag.query", {"corpus": corpus}, given, idempotent=True),
        with_models=True,
    )
    lines = []
    for each in answer["output"]["chunks"]:
        about = each["metadata"]
        place = [
            printable(about.get("doc_title", about["doc_cid"])),
            *([f"page {about['page']}"] if "page" in about else []),
            *([printable(about["heading"])] if "heading" in about else []),
        ]
        text = " ".join(each["text"].split())
        lines += [
            f"{each['rank']}. {each['score']:.3f}  {', '.join(place)}",
            f"   {printable(text[:400])}{'...' if len(text) > 400 else ''}",
        ]
    cli.emit({**answer["output"], **answer["meta"]}, lines)
    if "embedding_model" not in answer["meta"]:
        cli.note("matched by words only: this node has no embedding model")


@app.command("list", epilog="Example: accord rag list")
def list_(cli: CommunityCli) -> None:
    """List the corpora of this node."""

    async def ask(client: "Client") -> list[dict[str, Any]]:
        answer = await client.call("rag.list_corpora", {}, {}, idempotent=True)
        return list(answer["output"]["corpora"])

    found = cli.in_community(ask, with_models=True)
    cli.emit(
        {"corpora": found},
        (
            (
                each["name"],
                f"{each['docs']} documents",
                f"{each['chunks']} chunks",
                f"{each['size_bytes']} bytes",
                each.get("language_majority", ""),
            )
            for each in found
        ),
    )


@app.command(epilog="Example: accord rag withdraw manuals blake3:7c1e…")
def withdraw(
    cli: CommunityCli,
    corpus: OwnCorpus,
    document: Annotated[str, typer.Argument(help="Its id, as `accord rag add` prints it.")],
) -> None:
    """Remove a document from a corpus of this node.

    It is not found any more, nobody may read it here, and the file is deleted unless something else
    here needs it. Other nodes that ingested it keep their copy: no event takes an ingestion back.
    """

    async def ask(client: "Client") -> dict[str, Any]:
        given = {"doc_cid": document}
        answer = await client.call(
            "experimental.rag.withdraw", {"corpus": corpus}, given, idempotent=True
        )
        return dict(answer["output"])

    told = cli.in_community(ask, with_models=True)
    cli.emit({"corpus": corpus, **told}, f"{told['doc_cid']}: withdrawn, {_file_state(told)}")


def _file_state(told: dict[str, Any]) -> str:
    reasons = {
        "corpus": "another corpus has it",
        "share": "you share it; `accord file unshare` ends that",
        "message": "a message of yours has it attached; `accord file unshare` takes it back",
        "pin": "it is pinned",
        "community": "something of yours in another community or on the market names it",
    }
    if told["file"] == "deleted":
        return "file deleted"
    return f"file kept: {reasons[told['kept_for']]}"


@app.command(epilog="Example: accord rag reembed manuals")
def reembed(cli: CommunityCli, corpus: OwnCorpus) -> None:
    """Embed a corpus again after another embedding model was chosen.

    Only documents that the model of now did not embed are done, each for itself: stop it whenever
    you like, and the next time it goes on where it was. Questions are answered meanwhile.
    """

    async def work(client: "Client") -> dict[str, Any]:
        stream = client.stream("experimental.rag.reembed", {"corpus": corpus}, {})
        with output.progress("embedding") as show:
            async with aclosing(cast("AsyncGenerator[Frame]", stream)) as frames:
                async for frame in frames:
                    if frame.event == "progress":
                        show(frame.data["current"], frame.data["total"])
                    else:
                        return dict(frame.data)
        raise RuntimeError("a stream has no end")

    told = cli.in_community(work, with_models=True)
    by = printable(told["model"]) if "model" in told else "words only: there is no embedding model"
    cli.emit({"corpus": corpus, **told}, f"{corpus}: {told['documents']} documents by {by}")
    for cid in told["failed"]:
        cli.note(f"error: {printable(cid)}: its file is not here, so it stays as it was")
    if told["failed"]:
        raise typer.Exit(output.FAILED)


def _files(paths: list[Path]) -> list[Path]:
    """Every regular file below the paths, in order; links are not followed."""
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
    """Whether the file is at fault, so that the next one can be tried."""
    from accord.community.errors import Code

    return error.code is Code.BAD_REQUEST and not (error.where or "").startswith("/")
