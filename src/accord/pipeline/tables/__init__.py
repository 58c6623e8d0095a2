"""The tables: one function each, from DataFrames to a DataFrame.

`layers` has the append-only tables, `gold` lists the gold tables. A name is imported when it is
first used, so that a reader of published tables loads no rules.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from accord.pipeline.tables.gold import (
        GOLD,
    )
    from accord.pipeline.tables.gold_community import (
        COMMUNITY_TABLES,
    )
    from accord.pipeline.tables.gold_contracts import (
        CONTRACT_TABLES,
        contracts_history,
        contracts_manifests,
    )
    from accord.pipeline.tables.gold_quality import (
        QUALITY_TABLES,
    )
    from accord.pipeline.tables.gold_relay import (
        RELAY_TABLES,
        UNREADABLE_DECISION,
    )
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

_HOMES: Final = {
    "BRONZE": "accord.pipeline.tables.table",
    "CHECKED": "accord.pipeline.tables.table",
    "COMMUNITY_TABLES": "accord.pipeline.tables.gold_community",
    "CONTRACT_TABLES": "accord.pipeline.tables.gold_contracts",
    "GOLD": "accord.pipeline.tables.gold",
    "LANDED": "accord.pipeline.tables.table",
    "QUALITY_TABLES": "accord.pipeline.tables.gold_quality",
    "RELAY_TABLES": "accord.pipeline.tables.gold_relay",
    "SILVER": "accord.pipeline.tables.table",
    "UNREADABLE_DECISION": "accord.pipeline.tables.gold_relay",
    "Append": "accord.pipeline.tables.table",
    "Full": "accord.pipeline.tables.table",
    "GivenTables": "accord.pipeline.tables.table",
    "GoldTable": "accord.pipeline.tables.table",
    "Merge": "accord.pipeline.tables.table",
    "StreamAccount": "accord.pipeline.tables.layers",
    "Tables": "accord.pipeline.tables.table",
    "Touched": "accord.pipeline.tables.table",
    "accounts": "accord.pipeline.tables.layers",
    "bronze": "accord.pipeline.tables.layers",
    "checked": "accord.pipeline.tables.layers",
    "contracts_history": "accord.pipeline.tables.gold_contracts",
    "contracts_manifests": "accord.pipeline.tables.gold_contracts",
    "downstream": "accord.pipeline.tables.table",
    "manifests": "accord.pipeline.tables.layers",
    "silver": "accord.pipeline.tables.layers",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(_HOMES[name]), name)
