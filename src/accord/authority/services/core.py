"""Answers for `trellis.core@v1`: the catalog, contracts, and how surfaces stand."""

from typing import Any

from accord.authority.contracts.core import (
    CatalogReply,
    ContractGet,
    ContractReply,
    SurfaceStatus,
)
from accord.authority.core import Authority
from accord.authority.services.answering import bind
from accord.fabric.errors import NotFoundError
from accord.fabric.reception import Request
from accord.fabric.server import Server


class Core:
    """The handlers.

    Args:
        authority: Whose contract it is.
    """

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def serve(self, server: Server) -> None:
        """Answer on a server of the contract."""
        bind(
            server,
            {
                "Trellis.Catalog": self.catalog,
                "Trellis.Contract.Get": self.contract,
                "Trellis.Surface.Status": self.status,
            },
        )

    async def catalog(self, _: Request, __: Any) -> dict[str, Any]:
        """What is active."""
        return CatalogReply(catalog=dict(self._authority.catalog())).wire()

    async def contract(self, _: Request, payload: Any) -> dict[str, Any]:
        """A known contract."""
        digest = ContractGet.read(payload).digest
        manifest = await self._authority.contract(digest)
        if manifest is None:
            raise NotFoundError(f"no contract {digest} is known")
        return ContractReply(contract=dict(manifest)).wire()

    async def status(self, request: Request, payload: Any) -> dict[str, Any]:
        """How a surface stands for whoever asks."""
        asked = SurfaceStatus.read(payload)
        found = await self._authority.surface_status(
            request.caller, asked.contract_id, asked.kind, asked.surface, asked.action
        )
        return found.to_dict()
