"""The columns of every layer in Spark SQL types, and columns computed from times.

A layer that is partitioned by `stream` has that column last when it is read, so columns are always
selected by name.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column


LANDED: Final = (
    "stream STRING, seq BIGINT, id STRING, recorded_at BIGINT, source STRING, body STRING"
)
"""As `streams.COLUMNS` names them."""

BRONZE: Final = f"{LANDED}, segment STRING"
"""`segment` is the name of the landed file."""

EVENT: Final = (
    "STRUCT<community_id: STRING, lamport: BIGINT, event_id: STRING, author: STRING, "
    "author_seq: BIGINT, prev: STRING, event_type: STRING>"
)
"""The envelope of a community event; null in other streams."""

SILVER: Final = f"{BRONZE}, digest STRING, event {EVENT}"
"""`digest` is hexadecimal: of an event's signed bytes, elsewhere of stream, id and body."""

CHECKED: Final = f"{SILVER}, rule STRING, reason STRING"
"""`rule` is null where the record stands; else the id of the rule that it breaks."""


_LAST: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def day(milliseconds: str) -> "Column":
    """The day of a column of milliseconds."""
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    at = F.col(milliseconds)
    # Outside these bounds the conversion itself would fail.
    return F.to_date(F.timestamp_millis(F.when(at.between(0, _LAST), at)))


def moment(text: str) -> "Column":
    """The milliseconds of a column of times such as 2026-05-26T08:14:22Z."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.unix_millis(F.try_to_timestamp(F.col(text)))
