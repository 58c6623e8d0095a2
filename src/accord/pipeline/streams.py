"""The streams that land, and the columns of a landed record.

What each stream's bodies look like stands in `data/streams`, one JSON Schema each.
"""

from typing import Final

COMMUNITY_EVENTS: Final = "community.events"
BUS_CALLS: Final = "bus.calls"
RELAY_INBOUND: Final = "relay.inbound"
RELAY_DECISIONS: Final = "relay.decisions"
RELAY_DELIVERIES: Final = "relay.deliveries"
RELAY_OUTBOUND: Final = "relay.outbound"
CONTRACTS_HISTORY: Final = "contracts.history"
CONTRACTS_CALLS: Final = "contracts.calls"

# A payload is judged by its contract, so what accepted the contract lands before the call.
STREAMS: Final = (
    CONTRACTS_HISTORY,
    CONTRACTS_CALLS,
    COMMUNITY_EVENTS,
    BUS_CALLS,
    RELAY_INBOUND,
    RELAY_DECISIONS,
    RELAY_DELIVERIES,
    RELAY_OUTBOUND,
)
"""Every stream, in the order in which they are exported."""

COLUMNS: Final = ("stream", "seq", "id", "recorded_at", "source", "body")
"""Of a landed record: text, but for `seq` and `recorded_at` (milliseconds), which are 64-bit."""
