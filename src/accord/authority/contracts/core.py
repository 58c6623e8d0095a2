"""`trellis.core@v1`: discovery (section 14 of the specification)."""

from typing import Any, Literal

from pydantic import Field

from accord.authority.contracts.wire import Nothing, Payload
from accord.contracts.authoring import Contract

ID = "trellis.core@v1"
CATALOG_READ = "trellis.core::catalog.read"
CONTRACT_READ = "trellis.core::contract.read"


class CatalogReply(Payload):
    """The catalog, in the form trellis.catalog.v1."""

    catalog: dict[str, Any]


class ContractGet(Payload):
    """Which contract."""

    digest: str = Field(min_length=1, max_length=64)


class ContractReply(Payload):
    """A known contract."""

    contract: dict[str, Any]


class SurfaceStatus(Payload):
    """Which surface, and what the caller means to do with it."""

    contract_id: str = Field(max_length=256)
    kind: Literal["rpc", "operation", "event", "feed"]
    surface: str = Field(max_length=256)
    action: str | None = Field(default=None, max_length=32)


class SurfaceStatusReply(Payload):
    """How the surface stands for the caller; advisory, it grants nothing."""

    status: Literal[
        "unknown_contract", "unknown_surface", "unauthorized", "unavailable", "available"
    ]
    reason: str | None = None
    missing_capabilities: list[str] | None = None
    live_implementer: bool | None = None
    runtime: Literal["live", "no_live_implementer", "disabled"] | None = None


def contract() -> Contract:
    """The contract, as it is written."""
    core = Contract(
        ID,
        display_name="Trellis core",
        description="Find out what is active, read contracts, and ask how a surface stands.",
    )
    core.capability("catalog.read", "Read the catalog", "List the contracts that are active.")
    core.capability("contract.read", "Read contracts", "Read the manifest of a known contract.")
    core.error("NotFoundError")
    core.rpc("Trellis.Catalog", Nothing, CatalogReply, call=["catalog.read"])
    core.rpc(
        "Trellis.Contract.Get",
        ContractGet,
        ContractReply,
        call=["contract.read"],
        errors=["NotFoundError"],
    )
    core.rpc("Trellis.Surface.Status", SurfaceStatus, SurfaceStatusReply)
    return core
