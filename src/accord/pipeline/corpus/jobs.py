"""The two jobs of a build on Spark: look at every document, then make those that are missing.

Owns how work is shared out among executors. Every worker writes parts by itself, whole, so that
what was made stays made when the rest of a job dies.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from accord.capabilities.rag.building import Wanted
from accord.community.errors import Code, CommunityError
from accord.pipeline.corpus.plan import Order, Refused, Seen, Told, name_refusal, title_of
from accord.pipeline.corpus.sources import NAME, Folder, Source
from accord.pipeline.session import cores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from accord.pipeline.corpus.parts import Made

Batches: TypeAlias = Iterator[Any]

PART_DOCUMENTS: Final = 64
"""How many documents a part has at most: what one worker loses when it dies."""

_PART_BYTES: Final = 32 << 20
_TASK_DOCUMENTS: Final = 64
_TASKS_A_CORE: Final = 4

_SEEN: Final = "name STRING, doc_cid STRING, refusal STRING"
_ANSWER: Final = "name STRING, key STRING, refusal STRING"


@dataclass(frozen=True, slots=True)
class Work:
    """What workers need to know.

    Attributes:
        told: What is told of every document.
        parts: Where parts are written; every worker sees it under this path.
        weights: A folder with the embedding model, if it is not the wheel's.
        most: How many documents a part has at most.
    """

    told: Told
    parts: Path
    weights: Path | None = None
    most: int = PART_DOCUMENTS


@dataclass(frozen=True, slots=True)
class Answers:
    """What came of orders: the keys of what was made, and what was refused."""

    made: frozenset[str]
    refused: tuple[Refused, ...]


def look(spark: "SparkSession", source: Source) -> list[Seen]:
    """Find every document and the name of its bytes.

    Raises:
        PipelineError: The source cannot be used.
    """
    unfit: list[Seen] = []
    if isinstance(source, Folder):
        found = list(source.names())
        unfit = [Seen(_shown(name), None, why) for name in found if (why := name_refusal(name))]
        names = [name for name in found if name_refusal(name) is None]
        frame = _rows(spark, {NAME: names}).repartition(_tasks(len(names)))
    else:
        frame = source.frame(spark)
    seen = frame.mapInArrow(_looker(source), _SEEN).toArrow().to_pylist()
    return unfit + [Seen(**each) for each in seen]


def make(spark: "SparkSession", source: Source, orders: Sequence[Order], work: Work) -> Answers:
    """Make what was ordered, into parts.

    An order whose document is no longer what it was is refused.
    """
    from pyspark.sql import functions as f

    columns = {
        NAME: [each.name for each in orders],
        "key": [each.key for each in orders],
        "doc_cid": [each.wanted.doc_cid for each in orders],
    }
    frame = _rows(spark, columns)
    if not isinstance(source, Folder):
        frame = source.frame(spark).join(f.broadcast(frame), NAME)
    shared = frame.repartition(_tasks(len(orders)))
    answers = shared.mapInArrow(_worker(source, work), _ANSWER).toArrow().to_pylist()
    refused = {each["key"]: each for each in answers if each["refusal"] is not None}
    made = frozenset(each["key"] for each in answers) - refused.keys()
    changed = [each for each in orders if each.key not in made and each.key not in refused]
    return Answers(
        made,
        (
            *(Refused(each["name"], each["refusal"]) for each in refused.values()),
            *(Refused(each.name, "it changed while it was read; build again") for each in changed),
        ),
    )


def _looker(source: Source) -> Callable[[Batches], Batches]:
    """The function that names documents, for `mapInArrow`."""

    def run(batches: Batches) -> Batches:
        from accord.pipeline.corpus.making import cid

        for batch in batches:
            rows = []
            names = batch.column(NAME).to_pylist()
            for name, data in zip(names, source.bytes_of(batch), strict=True):
                refusal = data if isinstance(data, str) else None
                named = None if isinstance(data, str) else cid(data)
                rows.append({"name": name, "doc_cid": named, "refusal": refusal})
            yield _batch(rows, ("name", "doc_cid", "refusal"))

    return run


def _worker(source: Source, work: Work) -> Callable[[Batches], Batches]:
    """The function that makes documents, for `mapInArrow`."""

    def run(batches: Batches) -> Batches:
        from accord.pipeline.corpus import parts

        gathered: list[Made] = []
        for batch in batches:
            for given in _given(source, batch):
                made = _made(work, *given)
                if isinstance(made, Refused):
                    yield _answers([(made.name, given[1], made.reason)])
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


def _given(source: Source, batch: Any) -> Iterator[tuple[str, str, str, bytes | str]]:
    """Name, key, CID and bytes of what is ordered; what has other bytes by now is passed over."""
    from accord.pipeline.corpus.making import cid

    names, keys, cids = (batch.column(each).to_pylist() for each in (NAME, "key", "doc_cid"))
    for name, key, doc_cid, data in zip(names, keys, cids, source.bytes_of(batch), strict=True):
        if isinstance(data, str) or cid(data) == doc_cid:
            yield name, key, doc_cid, data


def _made(work: Work, name: str, key: str, doc_cid: str, data: bytes | str) -> "Made | Refused":
    from accord.pipeline.corpus.making import maker
    from accord.pipeline.corpus.parts import Made

    if isinstance(data, str):
        return Refused(name, data)
    wanted = Wanted(doc_cid, title_of(name), work.told.language, work.told.metadata)
    try:
        return Made(key, name, maker(work.weights).make(wanted, data), data)
    except CommunityError as error:
        if error.code is not Code.BAD_REQUEST:
            raise  # the worker is at fault, not the document
        return Refused(name, str(error))
    except (ValueError, RecursionError) as error:  # of the libraries that cut and embed
        return Refused(name, f"the document cannot be cut or embedded ({type(error).__name__})")


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
    """So many that all cores end together, and few enough that starting them costs little."""
    wanted = max(_TASKS_A_CORE * cores(), -(-documents // _TASK_DOCUMENTS))
    return max(1, min(documents, wanted))


def _shown(name: str) -> str:
    """A name as it can be told: bytes that are no text are spelled out."""
    return name.encode("utf-8", "backslashreplace").decode()
