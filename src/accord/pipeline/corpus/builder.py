"""Builds a corpus: find documents, plan, build what is missing, replace the catalogue.

A build that was stopped leaves the published corpus; the next one uses the parts it finds.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from accord.pipeline.corpus import catalogue, jobs, parts
from accord.pipeline.corpus.catalogue import Catalogue, parts_folder
from accord.pipeline.corpus.jobs import PART_DOCUMENTS, BuildResults, BuildTask
from accord.pipeline.corpus.plan import (
    RECIPE,
    BuildPlan,
    DocumentDefaults,
    RefusedDocument,
    plan_build,
)
from accord.pipeline.corpus.sources import FolderSource, Source
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout, lock_folder
from accord.pipeline.runs.runner import Progress, SparkTarget, no_progress
from accord.pipeline.session import open_session, watch_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_GLANCE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A corpus to build.

    Attributes:
        corpus: The name of the corpus on a node.
        out: The folder of the built corpus.
        weights: A folder with the embedding model; None for that of the wheel.
        part_documents: How many documents a part has at most.
    """

    source: Source
    corpus: str
    out: Path
    defaults: DocumentDefaults = DocumentDefaults()  # noqa: RUF009 - frozen
    weights: Path | None = None
    part_documents: int = PART_DOCUMENTS


@dataclass(frozen=True, slots=True)
class BuildOutcome:
    """The result of a build.

    Attributes:
        published: The current catalogue; None if no document could be used.
        made: How many documents were built.
        kept: How many were built before.
        same: The names of documents with the same bytes as another.
        refused: Documents that were left out.
    """

    published: Catalogue | None
    made: int
    kept: int
    same: tuple[str, ...]
    refused: tuple[RefusedDocument, ...]

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
    request: BuildRequest,
    where: SparkTarget = SparkTarget(),  # noqa: B008 - frozen
    *,
    progress: Progress = no_progress,
) -> BuildOutcome:
    """Build a corpus in a new session; on `PipelineError` the published corpus is unchanged."""
    layout = Layout(request.out)
    _check_places(request)
    with lock_folder(layout, "corpus build") as lock:
        progress("starting Spark", 0, 1)
        with (
            open_session(
                layout.root, where.master, where.remote, conf=where.conf, hold=(lock,)
            ) as spark,
            watch_session(spark, layout.spark_log, where.patience) as alive,
        ):
            return build_in_session(request, spark, progress=progress, alive=alive)


def build_in_session(
    request: BuildRequest,
    spark: "SparkSession",
    *,
    progress: Progress = no_progress,
    alive: Callable[[], None] = lambda: None,
) -> BuildOutcome:
    """Build a corpus in a session; the caller holds the lock of the folder.

    Raises:
        PipelineError: There is nothing to build, or a part is missing; nothing was published.
    """
    folder = parts_folder(request.out)
    folder.mkdir(parents=True, exist_ok=True)
    shelf = _shelf(folder, {})
    progress("looking at documents", 0, 1)
    seen = jobs.find_documents(spark, request.source)
    if not seen:
        raise PipelineError(
            "there are no documents, and nothing was published", where=str(request.source.path)
        )
    alive()
    todo = plan_build(seen, request.defaults, {key for keys in shelf.values() for key in keys})
    answers = BuildResults(frozenset(), ())
    if todo.orders:
        work = BuildTask(request.defaults, folder, request.weights, request.part_documents)
        with _counted(folder, shelf, len(todo.orders), progress, alive):
            answers = jobs.build_documents(spark, request.source, todo.orders, work)
    progress("publishing", 0, 1)
    return _publish(request, todo, answers, _shelf(folder, shelf))


def _publish(
    request: BuildRequest, todo: BuildPlan, answers: BuildResults, shelf: dict[str, dict[str, int]]
) -> BuildOutcome:
    folder = parts_folder(request.out)
    refused = (*todo.refused, *answers.refused)
    missing = {*todo.kept, *answers.made}
    if not missing:
        return BuildOutcome(None, 0, 0, todo.same, refused)
    listed, chunks = [], 0
    for name, keys in shelf.items():
        wanted = missing & keys.keys()
        if wanted:
            whole = len(wanted) == len(keys)
            listed.append(name if whole else parts.keep_only(folder, name, wanted))
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
        tuple(sorted(listed)),
        refused,
    )
    catalogue.publish(request.out, stands)
    parts.sweep(folder, listed)
    return BuildOutcome(stands, len(answers.made), len(todo.kept), todo.same, refused)


def _shelf(folder: Path, known: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The documents of every part, and their chunks; damaged parts are skipped."""
    shelf = dict(known)
    for name in parts.names(folder):
        if name not in shelf:
            try:
                shelf[name] = parts.keys(folder, name)
            except PipelineError:
                continue  # its documents are built again, and the file is removed
    return shelf


@contextmanager
def _counted(
    folder: Path,
    before: dict[str, Any],
    total: int,
    progress: Progress,
    alive: Callable[[], None],
) -> Iterator[None]:
    """Report how many documents are in new parts while the block runs."""
    over = threading.Event()

    def count() -> None:
        last = -1
        while not over.wait(_GLANCE_SECONDS):
            new = (name for name in parts.names(folder) if name not in before)
            done = sum(map(parts.documents, new))
            if done != last:
                last = done
                alive()
                progress("embedding", min(done, total), total)

    progress("embedding", 0, total)
    thread = threading.Thread(target=count, name="count documents", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _check_places(request: BuildRequest) -> None:
    """Raise `PipelineError` if the parts would be found as documents."""
    source = request.source.path.resolve()
    if isinstance(request.source, FolderSource) and request.out.resolve().is_relative_to(source):
        raise PipelineError(
            "the built corpus cannot lie among its documents",
            where=str(request.out),
            mend="name another folder with --out",
        )
