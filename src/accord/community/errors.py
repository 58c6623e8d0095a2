"""The error type of the community plane, with the codes of its protocol and their HTTP statuses."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

from accord.kernel.errors import AccordError, Finding


class Code(Enum):
    """Why the community refuses something: section 9 of the specification."""

    BAD_REQUEST = "bad_request"
    """It is not well formed, or says something impossible."""
    SCHEMA_MISMATCH = "schema_mismatch"
    """The version or the schemas of the capability are others than the caller has."""
    INVALID_SIGNATURE = "invalid_signature"
    """The signature does not hold for just this request."""
    UNAUTHORIZED = "unauthorized"
    """The caller is no member, or not trusted enough."""
    REVOKED = "revoked"
    """The caller was a member and was removed for good."""
    EXPIRED = "expired"
    """The timestamp is too far from this node's clock, or the thing has run out."""
    NOT_FOUND = "not_found"
    """There is no such thing here."""
    NOT_IMPLEMENTED = "not_implemented"
    """This node knows of it and does not do it."""
    TIMEOUT = "timeout"
    """It took longer than it may."""
    PARTITION = "partition"
    """A node cannot be reached, or a log is closed or not whole."""
    CAPACITY_EXCEEDED = "capacity_exceeded"
    """There is no room for one more now."""
    RATE_LIMITED = "rate_limited"
    """It was asked too often."""
    INTERNAL_ERROR = "internal_error"
    """The node failed; its log says how."""

    @property
    def status(self) -> int:
        """The HTTP status that goes with it: section 5.5."""
        return _STATUS[self]

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self in _RETRYABLE


_STATUS = {
    Code.BAD_REQUEST: 400,
    Code.SCHEMA_MISMATCH: 400,
    Code.INVALID_SIGNATURE: 401,
    Code.UNAUTHORIZED: 401,
    Code.REVOKED: 403,
    Code.EXPIRED: 410,
    Code.NOT_FOUND: 404,
    Code.NOT_IMPLEMENTED: 501,
    Code.TIMEOUT: 408,
    Code.PARTITION: 503,
    Code.CAPACITY_EXCEEDED: 429,
    Code.RATE_LIMITED: 429,
    Code.INTERNAL_ERROR: 500,
}

_RETRYABLE = frozenset(
    {Code.TIMEOUT, Code.PARTITION, Code.CAPACITY_EXCEEDED, Code.RATE_LIMITED, Code.INTERNAL_ERROR}
)


class CommunityError(AccordError):
    """A refusal, with the code that goes over the wire.

    Args:
        code: The protocol's code.
        what: A clause without a final full stop.
        where: The member, file or event concerned.
        mend: What to do about it.
        findings: All reasons, where there are several.
        details: Further members of the error response, such as `retry_after_ms`.
    """

    def __init__(
        self,
        code: Code,
        what: str,
        *,
        where: str | None = None,
        mend: str | None = None,
        findings: Sequence[Finding] = (),
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(what, where=where, mend=mend)
        self.code = code
        self.findings = tuple(findings)
        self.details = dict(details or {})


def bad_request(what: str, where: str | None = None, *, mend: str | None = None) -> CommunityError:
    """The error for something malformed or impossible."""
    return CommunityError(Code.BAD_REQUEST, what, where=where, mend=mend)
