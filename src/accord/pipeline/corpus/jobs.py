"""The Spark jobs of a build: find every document, then build those that are missing.

Each worker writes whole parts by itself, so they remain when the rest of a job fails.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from accord.capabilities.rag.prepared import IngestRequest
from accord.community.errors import Code, CommunityError
from accord.pipeline.corpus.plan import (
    DocumentDefaults,
    DocumentOrder,
    FoundDocument,
    RefusedDocument,
    name_refusal,
    title_of,
)
from accord.pipeline.corpus.sources import NAME, FolderSource, Source
from accord.pipeline.session import cores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from accord.pipeline.corpus.parts import BuiltDocument

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
    from pyspark.sql import functions as f

    columns = {
        NAME: [each.name for each in orders],
        "key": [each.key for each in orders],
        "doc_cid": [each.wanted.doc_cid for each in orders],
    }
    frame = _rows(spark, columns)
    if not isinstance(source, FolderSource):
        frame = source.frame(spark).join(f.broadcast(frame), NAME)
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
        from accord.pipeline.corpus import parts

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
                    parts.write(work.parts, gathered)
                    yield _answers([(each.name, each.key, None) for each in gathered])
                    gathered = []
        if gathered:
            parts.write(work.parts, gathered)
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
    from accord.pipeline.corpus.parts import BuiltDocument

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
