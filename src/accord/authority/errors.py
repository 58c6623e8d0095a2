"""The one error type of the authority, with its codes: refusals, and blockers that may pass.

Owns the codes, their HTTP statuses, and which of them a service waits out. Pure.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Final

from accord.kernel.errors import AccordError
from accord.kernel.finding import Finding


class Code(Enum):
    """Why the authority refuses or withholds something."""

    BAD_REQUEST = "bad_request"
    TOO_LARGE = "too_large"
    INVALID_CONTRACT = "invalid_contract"
    DIGEST_MISMATCH = "digest_mismatch"
    INVALID_PROOF = "invalid_proof"
    EXPIRED_PROOF = "expired_proof"
    UNKNOWN_SESSION = "unknown_session"
    REVOKED = "revoked"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    RATE_LIMITED = "rate_limited"
    SUBJECT_COLLISION = "subject_collision"
    RESOURCE_CONFLICT = "resource_conflict"
    MANIFEST_REQUIRED = "manifest_required"
    AUTHORITY_UPDATE_REQUIRED = "authority_update_required"
    AUTHORITY_MIGRATION_REQUIRED = "authority_migration_required"
    AUTHORITY_RECONCILIATION_PENDING = "authority_reconciliation_pending"
    DEPENDENCY_UNKNOWN = "dependency_unknown"
    DEPENDENCY_NOT_ACTIVE = "dependency_not_active"
    CONSENT_REQUIRED = "consent_required"
    CONTRACT_CHANGED = "contract_changed"
    DISABLED = "disabled"
    UNAVAILABLE = "unavailable"

    @property
    def status(self) -> int:
        """The HTTP status that goes with it."""
        return _STATUS.get(self, 409)

    @property
    def is_waited_out(self) -> bool:
        """Whether a service waits and asks again (section 14 of the specification)."""
        return self in _WAITED_OUT


_STATUS: Final = {
    Code.BAD_REQUEST: 400,
    Code.TOO_LARGE: 413,
    Code.INVALID_CONTRACT: 422,
    Code.DIGEST_MISMATCH: 422,
    Code.INVALID_PROOF: 401,
    Code.EXPIRED_PROOF: 401,
    Code.UNKNOWN_SESSION: 401,
    Code.REVOKED: 403,
    Code.FORBIDDEN: 403,
    Code.NOT_FOUND: 404,
    Code.RATE_LIMITED: 429,
    Code.UNAVAILABLE: 503,
}

_WAITED_OUT: Final = frozenset(
    {
        Code.AUTHORITY_UPDATE_REQUIRED,
        Code.AUTHORITY_MIGRATION_REQUIRED,
        Code.AUTHORITY_RECONCILIATION_PENDING,
        Code.DEPENDENCY_UNKNOWN,
        Code.DEPENDENCY_NOT_ACTIVE,
        Code.CONSENT_REQUIRED,
        Code.RATE_LIMITED,
        Code.UNAVAILABLE,
    }
)


class AuthorityError(AccordError):
    """The authority refuses, and says why.

    Args:
        code: The reason, for programs.
        what: The reason, for people.
        where: The pointer, record or setting concerned.
        mend: What to do about it.
        findings: Everything that is wrong, where it is more than one thing.
    """

    def __init__(
        self,
        code: Code,
        what: str,
        *,
        where: str | None = None,
        mend: str | None = None,
        findings: Sequence[Finding] = (),
    ) -> None:
        super().__init__(what, where=where, mend=mend)
        self.code = code
        self.findings = tuple(findings)
