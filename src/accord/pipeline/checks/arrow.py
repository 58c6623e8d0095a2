"""The checks over Arrow batches: what Spark's Python workers run.

It is a function from batches to batches without any state but compiled schemas; what it adds are
the columns of `columns.CHECKED` that bronze lacks. Text is handed over as bytes, so that a body
that is not UTF-8 is judged like any other.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from accord.kernel import canonical
from accord.pipeline.checks.checking import check
from accord.pipeline.checks.contracts import Manifests
from accord.pipeline.checks.verdict import Head
from accord.pipeline.streams import CONTRACTS_HISTORY

if TYPE_CHECKING:
    Batches = Iterator[Any]


def checker(manifests: Manifests) -> "Callable[[Batches], Batches]":
    """The function that judges batches of bronze, for `mapInArrow`."""

    def run(batches: "Batches") -> "Batches":
        for batch in batches:
            yield checked(batch, manifests)

    return run


def checked(batch: Any, manifests: Manifests) -> Any:
    """A batch of bronze with the verdict on each record behind its columns."""
    import pyarrow as pa

    streams, ids, bodies = (_bytes(batch, name) for name in ("stream", "id", "body"))
    verdicts = [
        check(_text(stream), _text(record_id), body, manifests)
        for stream, record_id, body in zip(streams, ids, bodies, strict=True)
    ]
    heads = [verdict.event for verdict in verdicts]
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["digest"] = pa.array([verdict.digest for verdict in verdicts], pa.string())
    columns["event"] = _structs(heads)
    columns["rule"] = pa.array([verdict.rule for verdict in verdicts], pa.string())
    columns["reason"] = pa.array([verdict.reason for verdict in verdicts], pa.string())
    return pa.RecordBatch.from_pydict(columns)


def manifests_in(batch: Any) -> Any:
    """The manifests among a batch of contract histories that stand: digest and canonical JSON."""
    import pyarrow as pa

    found: dict[str, bytes] = {}
    for body in _bytes(batch, "body"):
        if check(CONTRACTS_HISTORY, "", body).rule is None:
            told = canonical.decode(body or b"")
            if told["manifest"] is not None:
                found[told["digest"]] = canonical.encode(told["manifest"])
    return pa.RecordBatch.from_pydict(
        {
            "digest": pa.array(list(found), pa.string()),
            "manifest": pa.array(list(found.values()), pa.binary()),
        }
    )


def _bytes(batch: Any, name: str) -> list[bytes | None]:
    import pyarrow as pa

    found: list[bytes | None] = batch.column(name).cast(pa.binary()).to_pylist()
    return found


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "replace")


def _structs(heads: list[Head | None]) -> Any:
    import pyarrow as pa

    kinds = {"lamport": pa.int64(), "author_seq": pa.int64()}
    nothing = (None,) * len(Head._fields)
    by_column = list(zip(*(head or nothing for head in heads), strict=True))
    arrays = [
        pa.array(by_column[at] if heads else (), kinds.get(name, pa.string()))
        for at, name in enumerate(Head._fields)
    ]
    absent = pa.array([head is None for head in heads], pa.bool_())
    return pa.StructArray.from_arrays(arrays, names=list(Head._fields), mask=absent)
