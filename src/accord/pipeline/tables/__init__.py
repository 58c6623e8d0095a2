"""The tables: one function each, from DataFrames to a DataFrame.

`layers` has the append-only tables. `GOLD` lists the gold tables that a run builds and publishes,
in the order of their dependencies.
"""

from typing import Final

from accord.pipeline.tables import gold_community, gold_contracts, gold_quality, gold_relay, layers
from accord.pipeline.tables.gold_community import COMMUNITY_TABLES
from accord.pipeline.tables.gold_contracts import (
    CONTRACT_TABLES,
    contracts_history,
    contracts_manifests,
)
from accord.pipeline.tables.gold_quality import QUALITY_TABLES
from accord.pipeline.tables.gold_relay import RELAY_TABLES, UNREADABLE_DECISION
from accord.pipeline.tables.layers import (
    StreamAccount,
    accounts,
    bronze,
    checked,
    manifests,
    silver,
)
from accord.pipeline.tables.table import (
    BRONZE,
    CHECKED,
    LANDED,
    SILVER,
    Append,
    Full,
    GivenTables,
    GoldTable,
    Merge,
    Tables,
    Touched,
    downstream,
)

__all__ = [
    "BRONZE",
    "CHECKED",
    "COMMUNITY_TABLES",
    "CONTRACT_TABLES",
    "GOLD",
    "LANDED",
    "QUALITY_TABLES",
    "RELAY_TABLES",
    "SILVER",
    "UNREADABLE_DECISION",
    "Append",
    "Full",
    "GivenTables",
    "GoldTable",
    "Merge",
    "StreamAccount",
    "Tables",
    "Touched",
    "accounts",
    "bronze",
    "checked",
    "contracts_history",
    "contracts_manifests",
    "downstream",
    "manifests",
    "silver",
]

GOLD: Final[tuple[GoldTable, ...]] = (
    *layers.QUARANTINE_TABLES,
    *gold_community.COMMUNITY_TABLES,
    *gold_relay.RELAY_TABLES,
    *gold_contracts.CONTRACT_TABLES,
    *gold_quality.QUALITY_TABLES,
)
