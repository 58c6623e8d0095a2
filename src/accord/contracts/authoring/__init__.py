"""Writing a contract in Python: declare surfaces over typed classes, get a manifest.

    graph = Contract("graph@v1", display_name="Graph", description="Serve users.")
    graph.capability("users.read", "Read users", "View user records.")
    graph.rpc("User.Find", FindUser, User, call=["users.read"])
    graph.to_json()  # the same bytes every time

Payload types are pydantic models, dataclasses or TypedDicts. Capabilities are written by their
local names. The uses that every participant needs are added.
"""

from accord.contracts.authoring.contract import Contract
from accord.contracts.authoring.schemas import schema_of
from accord.contracts.authoring.settings import (
    ConsumerSettings,
    Docs,
    JobSettings,
    KeyConcurrency,
    KvSettings,
    Queue,
    StoreSettings,
    SurfaceSettings,
    Transfer,
)

__all__ = [
    "ConsumerSettings",
    "Contract",
    "Docs",
    "JobSettings",
    "KeyConcurrency",
    "KvSettings",
    "Queue",
    "StoreSettings",
    "SurfaceSettings",
    "Transfer",
    "schema_of",
]
