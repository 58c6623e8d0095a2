"""Times in tables: milliseconds since the epoch, and days in UTC.

A time that no calendar has, in a record from anywhere, becomes null; it never fails a run.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column

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
