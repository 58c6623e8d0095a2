"""The one error type of the relay, with the codes that its routes answer.

Owns the codes and their HTTP statuses. Pure: it is raised by readers and by servers alike.
"""

from enum import Enum

from accord.kernel.errors import AccordError


class Code(Enum):
    """Why the relay refuses something."""

    BAD_REQUEST = "bad_request"
    """It is not well formed, or says something impossible."""
    UNAUTHORIZED = "unauthorized"
    """The token is missing, wrong or expired."""
    FORBIDDEN = "forbidden"
    """The caller is known and may not do this, or was switched off."""
    NOT_FOUND = "not_found"
    """There is no such thing, or it is another tenant's."""
    CONFLICT = "conflict"
    """Somebody else holds it, or it is there already."""
    EXPIRED = "expired"
    """The token or the code has run out."""
    TOO_LARGE = "too_large"
    """The body is longer than it may be."""
    RATE_LIMITED = "rate_limited"
    """It was asked too often; `Retry-After` says when to ask again."""
    INTERNAL_ERROR = "internal_error"
    """The connector failed; its log says how."""
    UNAVAILABLE = "unavailable"
    """The other side cannot do it now: it is away, or its store is."""

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
    """Something that the relay refuses.

    Args:
        code: What kind of refusal it is.
        what: A clause without a final full stop.
        where: The member, route or setting concerned.
        mend: What to do about it.
    """

    def __init__(
        self, code: Code, what: str, *, where: str | None = None, mend: str | None = None
    ) -> None:
        super().__init__(what, where=where, mend=mend)
        self.code = code
