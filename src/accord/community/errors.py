"""The one error type of the community, with the codes that its protocol knows.

Owns the codes and their HTTP statuses. Pure: it is raised by decisions and by servers alike.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any

from accord.kernel.errors import AccordError
from accord.kernel.finding import Finding


class Code(Enum):
    """Why the community refuses something: section 9 of the specification."""

    BAD_REQUEST = "bad_request"
    SCHEMA_MISMATCH = "schema_mismatch"
    INVALID_SIGNATURE = "invalid_signature"
    UNAUTHORIZED = "unauthorized"
    REVOKED = "revoked"
    EXPIRED = "expired"
    NOT_FOUND = "not_found"
    NOT_IMPLEMENTED = "not_implemented"
    TIMEOUT = "timeout"
    PARTITION = "partition"
    CAPACITY_EXCEEDED = "capacity_exceeded"
    RATE_LIMITED = "rate_limited"
    INTERNAL_ERROR = "internal_error"

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
    """Something that the community refuses, with the code that goes over the wire.

    Args:
        code: The protocol's code.
        what: A clause without a final full stop.
        where: The member, file or event concerned.
        mend: What to do about it.
        findings: Every reason, where there are several.
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
