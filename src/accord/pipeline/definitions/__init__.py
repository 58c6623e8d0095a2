"""The tables: one function each, from DataFrames to a DataFrame.

`bronze`, `checked` and `silver` are append-only and each made from the one before; `quarantine` and
`accounting` are read off them. `GOLD` names the tables that a run builds and publishes, in the
order of their dependencies. Nothing here knows when or where it runs.
"""

from typing import Final

from accord.pipeline.definitions import (
    gold_community,
    gold_contracts,
    gold_quality,
    gold_relay,
    quarantine,
)
from accord.pipeline.definitions.table import Table, downstream
from accord.pipeline.definitions.tables import Given, Tables

__all__ = ["GOLD", "Given", "Table", "Tables", "downstream"]

GOLD: Final[tuple[Table, ...]] = (
    *quarantine.TABLES,
    *gold_community.TABLES,
    *gold_relay.TABLES,
    *gold_contracts.TABLES,
    *gold_quality.TABLES,
)
