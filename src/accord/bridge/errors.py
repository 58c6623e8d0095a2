"""What the bridge refuses by itself, and how an error of one side is said on the other.

Pure. Neither side's code is lost: a code of the community travels as a declared error of the
contract, a type of the fabric travels beside the code that comes nearest to it.
"""

from collections.abc import Mapping
from typing import Any, Final

from accord.community.errors import Code, CommunityError
from accord.fabric.errors import (
    ConflictError,
    DeadlineError,
    FabricError,
    NotFoundError,
    RemoteError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
)
from accord.kernel.errors import AccordError

COMMUNITY_ERROR: Final = "CommunityError"
"""The error that every RPC of the bridge declares."""

SERVICE_ERROR: Final = "service_error"
"""The detail of a refusal on the bus under which a service's own error stands."""

ERROR_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "type": {"const": COMMUNITY_ERROR},
        "message": {"type": "string"},
        "code": {"enum": sorted(code.value for code in Code)},
        "retryable": {"type": "boolean"},
        "details": {"type": "object"},
    },
    "required": ["type", "message", "code", "retryable"],
}

_NEAREST: Final[tuple[tuple[type[FabricError], Code], ...]] = (
    (ValidationError, Code.BAD_REQUEST),
    (UnauthorizedError, Code.UNAUTHORIZED),
    (NotFoundError, Code.NOT_FOUND),
    (ConflictError, Code.BAD_REQUEST),
    (DeadlineError, Code.TIMEOUT),
    (UnavailableError, Code.PARTITION),
    (RemoteError, Code.BAD_REQUEST),
)


class BridgeError(AccordError):
    """The bridge cannot be built as it was asked for."""


def to_fabric(error: CommunityError) -> RemoteError:
    """A refusal of the community, as a caller on the fabric hears it."""
    said = {"code": error.code.value, "retryable": error.code.retryable}
    details = {"details": error.details} if error.details else {}
    return RemoteError(COMMUNITY_ERROR, str(error), {**said, **details})


def to_community(error: FabricError) -> CommunityError:
    """An error of a service, as a member of the community hears it."""
    code = _told_code(error) or next(
        (code for kind, code in _NEAREST if isinstance(error, kind)), Code.INTERNAL_ERROR
    )
    said = error.members()
    return CommunityError(code, error.what, mend=error.mend, details={SERVICE_ERROR: said})


def _told_code(error: FabricError) -> Code | None:
    """The code of an error that was the community's before it came to the fabric."""
    told = error.members().get("code") if error.type == COMMUNITY_ERROR else None
    return next((code for code in Code if code.value == told), None)
