"""Shared by the built-in services: the caller, and authority errors as fabric errors."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.rules.records import SessionRecord
from accord.authority.service import Authority
from accord.fabric.callers import Caller, Resolve
from accord.fabric.requests import Request
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
