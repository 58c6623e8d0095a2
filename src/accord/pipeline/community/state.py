"""The state at head: the bytes that a node writes, put together from what the parts came to.

Items are sorted by Spark and joined by one task for each community; the driver adds what is small.
"""

from collections.abc import Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from accord.community.fold.parts import assembled
from accord.community.fold.reading import MAX_BYTES
from accord.community.fold.vouching import digest_of
from accord.kernel import canonical
from accord.pipeline.rows import Columns, Row, map_partitions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STATES: Final[Columns] = {
    "community_id": "STRING",
    "name": "STRING",
    "lamport": "BIGINT",
    "digest": "STRING",
    "size_bytes": "BIGINT",
    "state": "BINARY",
}
"""The canonical bytes of a state, and the digest by which anchors agree about it."""


def completed(
    frame: str, head: Mapping[str, Any] | None, counts: Mapping[str, int]
) -> dict[str, Any]:
    """A state without its items, from what membership came to, the head and content's counts."""
    members: dict[str, Any] = canonical.decode(frame, max_bytes=MAX_BYTES)
    members["head"] = None if head is None else dict(head)
    members["counts"]["content"] |= counts
    return members


def states(items: "DataFrame", frames: Mapping[str, dict[str, Any]]) -> "DataFrame":
    """One row for each community.

    Args:
        items: `community_id, section, key, second, item`, with a row without a section for each
            community, so that none is forgotten.
        frames: By community, see `completed`.
    """

    def write(rows: Iterator[Row]) -> Iterator[Row]:
        for community_id, of_community in groupby(rows, key=itemgetter(0)):
            frame = frames[community_id]
            found = ((row[1], row[2].encode()) for row in of_community if row[1] is not None)
            state = assembled(frame, found)
            lamport = -1 if frame["head"] is None else frame["head"]["lamport"]
            yield community_id, frame["name"], lamport, digest_of(state), len(state), state

    ordered = (
        items.repartition("community_id")
        .sortWithinPartitions("community_id", "section", "key", "second")
        .select("community_id", "section", "item")
    )
    return map_partitions(ordered, write, STATES)
