"""What the built-in services share, and the service of `trellis.core@v1` (catalog, contracts)."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from nats.aio.client import Client

from accord.authority.contracts import CatalogReply, ContractGet, ContractReply, SurfaceStatus
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import SessionRecord
from accord.authority.service import Authority
from accord.fabric.link import Inbox
from accord.fabric.requests import Caller, Request, Resolve
from accord.fabric.rules.errors import (
    ConflictError,
    FabricError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
)
from accord.fabric.server import Server
from accord.kernel.clock import Clock

Handler = Callable[[Request, Any], Awaitable[Any]]


def bind_handlers(server: Server, handlers: Mapping[str, Handler]) -> None:
    """Register handlers for the RPCs of a contract."""
    for name, handler in handlers.items():
        server.rpc(name)(_with_wire_errors(handler))


def caller_resolver(authority: Authority, clock: Clock) -> Resolve:
    """Resolves sessions by the authority's own records."""

    async def resolve(key: str) -> Caller:
        try:
            session = await authority.sessions.get(key)
        except AuthorityError as error:
            raise to_fabric_error(error) from error
        if session is None:
            raise UnauthorizedError("the session is not known")
        if not is_in_force(session, clock.now()):
            raise UnauthorizedError("the session has ended")
        return Caller(
            session.key,
            session.holder.value,
            session.subject,
            session.contract_id,
            session.digest,
            session.capabilities,
            session.expires_at,
        )

    return resolve


def is_in_force(session: SessionRecord, now: float) -> bool:
    """Whether a session is neither revoked nor expired."""
    return session.revoked_at is None and (session.expires_at is None or now < session.expires_at)


def to_fabric_error(error: AuthorityError) -> FabricError:
    """The fabric error for an authority error."""
    kind = _ERROR_TYPES.get(error.code, FabricError)
    return kind(error.what, mend=error.mend, context={"code": error.code.value})


_ERROR_TYPES: Final[Mapping[Code, type[FabricError]]] = {
    Code.BAD_REQUEST: ValidationError,
    Code.TOO_LARGE: ValidationError,
    Code.NOT_FOUND: NotFoundError,
    Code.UNKNOWN_SESSION: UnauthorizedError,
    Code.REVOKED: UnauthorizedError,
    Code.FORBIDDEN: UnauthorizedError,
    Code.DISABLED: UnauthorizedError,
    Code.CONFLICT: ConflictError,
    Code.UNAVAILABLE: UnavailableError,
}


def _with_wire_errors(handler: Handler) -> Handler:
    async def answer(request: Request, payload: Any) -> Any:
        try:
            return await handler(request, payload)
        except AuthorityError as error:
            raise to_fabric_error(error) from error

    return answer


def authority_inbox(nats: Client) -> Inbox:
    """The inbox of the authority's own connection."""
    return Inbox(nats, "_INBOX.authority")


@dataclass(frozen=True, slots=True)
class CoreService:
    """The handlers of `trellis.core@v1`."""

    _authority: Authority

    def serve(self, server: Server) -> None:
        """Answer on a server of the contract."""
        bind_handlers(
            server,
            {
                "Trellis.Catalog": self.catalog,
                "Trellis.Contract.Get": self.contract,
                "Trellis.Surface.Status": self.status,
            },
        )

    async def catalog(self, _: Request, __: Any) -> dict[str, Any]:
        """The catalog."""
        return CatalogReply(catalog=dict(self._authority.catalog.projection.catalog)).wire()

    async def contract(self, _: Request, payload: Any) -> dict[str, Any]:
        """A known contract."""
        digest = ContractGet.read(payload).digest
        manifest = await self._authority.manifests.get(digest)
        if manifest is None:
            raise NotFoundError(f"no contract {digest} is known")
        return ContractReply(contract=dict(manifest)).wire()

    async def status(self, request: Request, payload: Any) -> dict[str, Any]:
        """The status of a surface for the caller."""
        asked = SurfaceStatus.read(payload)
        found = await self._authority.sessions.surface_status(
            request.caller, asked.contract_id, asked.kind, asked.surface, asked.action
        )
        return found.to_dict()
