"""`trellis.health@v1`: services and devices say that they live."""

from typing import Any, Literal

from pydantic import Field

from accord.authority.contracts.wire import Payload
from accord.contracts.authoring import Contract

ID = "trellis.health@v1"


class Heartbeat(Payload):
    """An instance lives, and implements this contract at this digest."""

    session_key: str = Field(min_length=1, max_length=64)
    contract_id: str = Field(max_length=256)
    contract_digest: str = Field(max_length=64)
    status: Literal["healthy", "degraded", "unhealthy"] = "healthy"
    at: float
    summary: str | None = Field(default=None, max_length=1000)
    checks: dict[str, Any] | None = None


def contract() -> Contract:
    """The contract, as it is written."""
    health = Contract(
        ID,
        display_name="Trellis health",
        description="Heartbeats of services and devices.",
    )
    health.capability("heartbeats.read", "Follow heartbeats", "See who is alive, and how.")
    health.event("Health.Heartbeat", Heartbeat, subscribe=["heartbeats.read"])
    return health
