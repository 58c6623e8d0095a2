"""The columns of every layer, in Spark's own words.

A landed record keeps its columns in all layers; each layer adds its own behind them. Where a layer
is partitioned by `stream`, that column stands last when the table is read, so columns are always
taken by name.
"""

from typing import Final

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
"""What the envelope of a community's event says; null in every other stream."""

SILVER: Final = f"{BRONZE}, digest STRING, event {EVENT}"
"""`digest` is hexadecimal: of an event's signed bytes, elsewhere of stream, id and body."""

CHECKED: Final = f"{SILVER}, rule STRING, reason STRING"
"""`rule` is null where the record stands; else the id of the rule that it breaks."""
