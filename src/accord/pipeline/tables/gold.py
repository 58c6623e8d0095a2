"""The gold tables that a run builds and publishes, in the order of their dependencies."""

from typing import Final

from accord.pipeline.tables import gold_community, gold_contracts, gold_quality, gold_relay, layers
from accord.pipeline.tables.table import GoldTable

GOLD: Final[tuple[GoldTable, ...]] = (
    *layers.QUARANTINE_TABLES,
    *gold_community.COMMUNITY_TABLES,
    *gold_relay.RELAY_TABLES,
    *gold_contracts.CONTRACT_TABLES,
    *gold_quality.QUALITY_TABLES,
)
