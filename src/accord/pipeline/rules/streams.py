"""The streams that land, and the columns of a landed record.

The JSON Schema of each stream's bodies is in `data/streams`.
"""

from typing import Final

COMMUNITY_EVENTS: Final = "community.events"
BUS_CALLS: Final = "bus.calls"
RELAY_INBOUND: Final = "relay.inbound"
RELAY_DECISIONS: Final = "relay.decisions"
RELAY_DELIVERIES: Final = "relay.deliveries"
RELAY_OUTBOUND: Final = "relay.outbound"
RELAY_UNLINKED: Final = "relay.unlinked"
CONTRACTS_HISTORY: Final = "contracts.history"
CONTRACTS_CALLS: Final = "contracts.calls"

# Payloads are checked by their contracts, so contract histories land before calls.
STREAMS: Final = (
    CONTRACTS_HISTORY,
    CONTRACTS_CALLS,
    COMMUNITY_EVENTS,
    BUS_CALLS,
    RELAY_INBOUND,
    RELAY_DECISIONS,
    RELAY_DELIVERIES,
    RELAY_OUTBOUND,
    RELAY_UNLINKED,
)
"""Every stream, in the order in which they are exported."""

COLUMNS: Final = ("stream", "seq", "id", "recorded_at", "source", "body")
"""Columns of a landed record: text, except `seq` and `recorded_at` (milliseconds), 64-bit."""
