"""The one error of the fabric, its typed children, and how they travel.

Owns the wire form of errors: `{id, type, message, context?, traceId?}`, with `issues` for a
payload that breaks its schema. A type that is not known here is kept as it came. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from accord.kernel import canonical
from accord.kernel.errors import AccordError
from accord.kernel.finding import Finding

_LONGEST: Final = 2000


class FabricError(AccordError):
    """Something that the fabric refuses, or that went wrong on the way.

    Args:
        what: A clause without a final full stop; it travels.
        where: The surface, subject or setting concerned; it stays here.
        mend: What to do about it; it travels.
        context: More about it, as JSON; it travels.
        body: The error as it came from the other side, if it did.

    Attributes:
        type: The type by which it is known on the wire.
    """

    type: str = "UnexpectedError"

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        mend: str | None = None,
        context: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(what, where=where, mend=mend)
        self.context = dict(context or {})
        self.body = dict(body or {})

    @property
    def id(self) -> str | None:
        """By which the other side's log knows it, if it came from there."""
        found = self.body.get("id")
        return found if isinstance(found, str) else None

    def members(self) -> dict[str, Any]:
        """What it says on the wire beside its id."""
        message = f"{self.what}; {self.mend}" if self.mend else self.what
        said: dict[str, Any] = {"type": self.type, "message": message}
        return said | {"context": self.context} if self.context else said


class ValidationError(FabricError):
    """A payload breaks the schema of its surface.

    Attributes:
        issues: Where, by JSON Pointer, and how.
    """

    type = "ValidationError"

    def __init__(self, what: str, *, issues: Sequence[Mapping[str, str]] = (), **more: Any) -> None:
        super().__init__(what, **more)
        self.issues = tuple(issues)

    @classmethod
    def of(cls, what: str, findings: Sequence[Finding]) -> "ValidationError":
        """The error that lists findings."""
        issues = [{"path": each.pointer, "message": each.message} for each in findings]
        return cls(what, issues=issues)

    def members(self) -> dict[str, Any]:
        """What it says on the wire beside its id."""
        return super().members() | {"issues": [dict(issue) for issue in self.issues]}


class UnauthorizedError(FabricError):
    """The proof is not good, or the session may not do this."""

    type = "UnauthorizedError"


class NotFoundError(FabricError):
    """There is no such thing."""

    type = "NotFoundError"


class ConflictError(FabricError):
    """It was changed by someone else meanwhile, or is there already."""

    type = "ConflictError"


class DeadlineError(FabricError):
    """It took longer than it may."""

    type = "DeadlineError"


class UnavailableError(FabricError):
    """Nobody is there to answer, or the connection is not."""

    type = "UnavailableError"


class BootstrapError(FabricError):
    """The authority does not let the session in, or not within the time that it was given.

    Attributes:
        code: The authority's reason, for programs.
    """

    type = "BootstrapError"

    def __init__(self, code: str, what: str, **more: Any) -> None:
        super().__init__(what, **more)
        self.code = code


class RemoteError(FabricError):
    """An error with a type of its own: one that a contract declares, or that is not known here.

    A handler raises it for an error that its contract declares, and a caller catches it.

    Args:
        kind: The type.
        what: The message.
        members: Whatever else the error carries.
    """

    def __init__(
        self, kind: str, what: str, members: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        super().__init__(what, **more)
        self.type = kind
        self._members = dict(members or {})

    def members(self) -> dict[str, Any]:
        """What it says on the wire beside its id."""
        return self._members | super().members()


_KNOWN: Final[dict[str, type[FabricError]]] = {
    kind.type: kind
    for kind in (
        *(FabricError, UnauthorizedError, NotFoundError),
        *(ConflictError, DeadlineError, UnavailableError),
    )
}
_COMMON: Final = ("id", "type", "message", "context", "traceId")


def write_error(error: FabricError, error_id: str, trace_id: str | None = None) -> bytes:
    """An error as it travels; one whose members are no JSON travels without them."""
    said = {"id": error_id, **({"traceId": trace_id} if trace_id else {})}
    try:
        return canonical.encode(error.members() | said)
    except canonical.CanonicalError:
        plain = {"type": FabricError.type, "message": "the error cannot be written as JSON"}
        return canonical.encode(plain | said)


def read_error(data: bytes) -> FabricError:
    """The error that came; whatever it holds, it is an error."""
    try:
        body = canonical.decode(data)
    except canonical.CanonicalError:
        body = None
    if not isinstance(body, dict):
        return FabricError("the other side answered with an error that is no JSON object")
    kind, message = body.get("type"), body.get("message")
    kind = kind if isinstance(kind, str) else FabricError.type
    what = message[:_LONGEST] if isinstance(message, str) else f"the other side says {kind[:80]}"
    context = body.get("context")
    context = context if isinstance(context, dict) else None
    if kind == ValidationError.type:
        return ValidationError(what, issues=_issues(body), context=context, body=body)
    known = _KNOWN.get(kind)
    if known is not None:
        return known(what, context=context, body=body)
    members = {name: value for name, value in body.items() if name not in _COMMON}
    return RemoteError(kind, what, members, context=context, body=body)


def _issues(body: Mapping[str, Any]) -> list[dict[str, str]]:
    listed = body.get("issues")
    return [
        {"path": str(issue.get("path", "")), "message": str(issue.get("message", ""))}
        for issue in (listed if isinstance(listed, list) else ())
        if isinstance(issue, dict)
    ]
