"""The error type of the relay, with its codes and their HTTP statuses."""

from enum import Enum

from accord.kernel.errors import AccordError


class Code(Enum):
    """Why the relay refuses something."""

    BAD_REQUEST = "bad_request"
    """It is malformed, or asks for something impossible."""
    UNAUTHORIZED = "unauthorized"
    """The token is missing, wrong or expired."""
    FORBIDDEN = "forbidden"
    """The caller is known and may not do this, or was revoked or suspended."""
    NOT_FOUND = "not_found"
    """It does not exist, or belongs to another tenant."""
    CONFLICT = "conflict"
    """Somebody else holds it, or it exists already."""
    EXPIRED = "expired"
    """The token or the code has expired."""
    TOO_LARGE = "too_large"
    """The body is too long."""
    RATE_LIMITED = "rate_limited"
    """Too many requests; `Retry-After` says when to try again."""
    INTERNAL_ERROR = "internal_error"
    """The connector failed; its log says why."""
    UNAVAILABLE = "unavailable"
    """It cannot be done now: the service or its store does not answer."""

    @property
    def status(self) -> int:
        """The HTTP status that goes with it."""
        return _STATUS[self]


_STATUS = {
    Code.BAD_REQUEST: 400,
    Code.UNAUTHORIZED: 401,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.CONFLICT: 409,
    Code.EXPIRED: 410,
    Code.TOO_LARGE: 413,
    Code.RATE_LIMITED: 429,
    Code.INTERNAL_ERROR: 500,
    Code.UNAVAILABLE: 503,
}


class RelayError(AccordError):
    """A refusal by the relay; the other arguments are as for `AccordError`."""

    def __init__(
        self, code: Code, what: str, *, where: str | None = None, mend: str | None = None
    ) -> None:
        super().__init__(what, where=where, mend=mend)
        self.code = code
