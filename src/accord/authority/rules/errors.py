"""The error type of the authority, with its codes."""

from collections.abc import Sequence
from enum import Enum
from typing import Final

from accord.kernel.errors import AccordError, Finding


class Code(Enum):
    """Why the authority refuses or withholds something."""

    BAD_REQUEST = "bad_request"
    """It is not well formed, or says something impossible."""
    TOO_LARGE = "too_large"
    """The body is longer than it may be."""
    INVALID_CONTRACT = "invalid_contract"
    """The manifest breaks rules of validity, which are listed."""
    DIGEST_MISMATCH = "digest_mismatch"
    """The manifest has another digest than the one that was signed."""
    INVALID_PROOF = "invalid_proof"
    """The signature does not hold for this session and this request."""
    EXPIRED_PROOF = "expired_proof"
    """The proof was made too long ago, or by a clock that is wrong."""
    UNKNOWN_SESSION = "unknown_session"
    """Nobody enrolled this key, or the session has run out."""
    REVOKED = "revoked"
    """The session was ended for good."""
    FORBIDDEN = "forbidden"
    """The session is known and may not do this."""
    NOT_FOUND = "not_found"
    """There is no such record."""
    CONFLICT = "conflict"
    """It was decided or changed meanwhile, or is there already."""
    RATE_LIMITED = "rate_limited"
    """It was asked too often."""
    SUBJECT_COLLISION = "subject_collision"
    """A contract of another lineage has one of its subjects."""
    RESOURCE_CONFLICT = "resource_conflict"
    """What the contract asks for cannot be made, or is there and somebody else's."""
    MANIFEST_REQUIRED = "manifest_required"
    """The digest is not known here; show the manifest too."""
    AUTHORITY_UPDATE_REQUIRED = "authority_update_required"
    """The contract asks for more than was accepted, and a plan waits."""
    AUTHORITY_MIGRATION_REQUIRED = "authority_migration_required"
    """The change could lose or break something, and a plan waits."""
    AUTHORITY_RECONCILIATION_PENDING = "authority_reconciliation_pending"
    """What was accepted is not made real yet."""
    DEPENDENCY_UNKNOWN = "dependency_unknown"
    """It needs a contract that nobody has presented."""
    DEPENDENCY_NOT_ACTIVE = "dependency_not_active"
    """It needs a contract that nobody offers now."""
    CONSENT_REQUIRED = "consent_required"
    """The person has not agreed to what the client asks for."""
    CONTRACT_CHANGED = "contract_changed"
    """A migration has ended this contract, or the session is of another one."""
    DISABLED = "disabled"
    """The deployment or the instance was switched off."""
    UNAVAILABLE = "unavailable"
    """The authority cannot do it now: its NATS is away, or too much waits."""

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
    """The authority refuses: `code` says why to programs, `what` to people."""

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
