"""What the built-in services share: who calls, and how refusals of the authority are told."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from accord.authority.core import Authority
from accord.authority.errors import AuthorityError, Code
from accord.authority.records import Session
from accord.fabric.callers import Caller, Resolve
from accord.fabric.errors import (
    ConflictError,
    FabricError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
)
from accord.fabric.reception import Request
from accord.fabric.server import Server
from accord.kernel.clock import Clock

Handler = Callable[[Request, Any], Awaitable[Any]]


def bind(server: Server, handlers: Mapping[str, Handler]) -> None:
    """Let handlers answer the RPCs of a contract."""
    for name, handler in handlers.items():
        server.rpc(name)(_telling(handler))


def resolver(authority: Authority, clock: Clock) -> Resolve:
    """Says who a session is, from the authority's own records."""

    async def resolve(key: str) -> Caller:
        try:
            session = await authority.session(key)
        except AuthorityError as error:
            raise told(error) from error
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


def is_in_force(session: Session, now: float) -> bool:
    """Whether a session may still be used."""
    return session.revoked_at is None and (session.expires_at is None or now < session.expires_at)


def told(error: AuthorityError) -> FabricError:
    """The authority's refusal, as it travels."""
    kind = _KINDS.get(error.code, FabricError)
    return kind(error.what, mend=error.mend, context={"code": error.code.value})


_KINDS: Final[Mapping[Code, type[FabricError]]] = {
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


def _telling(handler: Handler) -> Handler:
    async def answer(request: Request, payload: Any) -> Any:
        try:
            return await handler(request, payload)
        except AuthorityError as error:
            raise told(error) from error

    return answer
