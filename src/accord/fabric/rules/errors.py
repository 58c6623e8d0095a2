"""The errors of the fabric and their wire form: `{id, type, message, context?, traceId?}`.

A payload that breaks its schema adds `issues`. Unknown types are kept as received. Pure.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, Self, dataclass_transform, get_type_hints

from accord.kernel import canonical
from accord.kernel.errors import AccordError, Finding

_LONGEST: Final = 2000


class FabricError(AccordError):
    """A request was refused, or failed on the way.

    `what` is a clause without a final full stop. All but `where` is sent to the caller; `body` is
    the error as received, if it came from the other side.
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
        """The id in the other side's log, if the error came from there."""
        found = self.body.get("id")
        return found if isinstance(found, str) else None

    def members(self) -> dict[str, Any]:
        """The members on the wire, without the id."""
        message = f"{self.what}; {self.mend}" if self.mend else self.what
        said: dict[str, Any] = {"type": self.type, "message": message}
        return said | {"context": self.context} if self.context else said


class ValidationError(FabricError):
    """A payload breaks the schema; each of `issues` has `path` (a JSON Pointer) and `message`."""

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
        """The members on the wire, without the id."""
        return super().members() | {"issues": [dict(issue) for issue in self.issues]}


class UnauthorizedError(FabricError):
    """The proof is invalid, or the session may not do this."""

    type = "UnauthorizedError"


class NotFoundError(FabricError):
    """What was asked for does not exist."""

    type = "NotFoundError"


class ConflictError(FabricError):
    """It exists already, or was changed by someone else in the meantime."""

    type = "ConflictError"


class DeadlineError(FabricError):
    """It took longer than allowed."""

    type = "DeadlineError"


class UnavailableError(FabricError):
    """Nobody answers, or there is no connection."""

    type = "UnavailableError"


class BootstrapError(FabricError):
    """The authority does not admit the session, or not in time; `code` is its reason."""

    type = "BootstrapError"

    def __init__(self, code: str, what: str, **more: Any) -> None:
        super().__init__(what, **more)
        self.code = code


class RemoteError(FabricError):
    """An error type that a contract declares, or that is unknown here.

    Handlers raise it for errors that their contract declares; callers catch it. `members` are sent
    with the error.
    """

    def __init__(
        self, kind: str, what: str, members: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        super().__init__(what, **more)
        self.type = kind
        self._members = dict(members or {})

    def members(self) -> dict[str, Any]:
        """The members on the wire, without the id."""
        return self._members | super().members()


@dataclass_transform(kw_only_default=True)
class _WithMembersError(FabricError):
    """Tells type checkers that annotations of subclasses are arguments."""


class DeclaredError(_WithMembersError):
    """The base of errors that a typed service declares; annotations are members of the error.

        class SoldOut(DeclaredError):
            item: str

        raise SoldOut(item="ladder")

    `type` is the class's name. `message` is what callers read, by default the first line of the
    docstring.
    """

    message: str = ""
    names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.type = cls.__name__
        own = [name for name in inspect.get_annotations(cls) if name not in ("message", "type")]
        cls.names = tuple(dict.fromkeys((*cls.names, *own)))

    def __init__(self, *, message: str = "", **members: Any) -> None:
        unknown = sorted(set(members) - set(self.names))
        lacking = [name for name in self.names if name not in members and not hasattr(self, name)]
        if unknown or lacking:
            raise TypeError(
                f"{self.type} has the members {', '.join(self.names) or 'none'}; "
                f"wrong or missing: {', '.join(unknown + lacking)}"
            )
        said = message or self.message or _first_line(type(self)) or self.type
        super().__init__(said)
        self.message = said
        for name, value in members.items():
            setattr(self, name, value)

    def members(self) -> dict[str, Any]:
        """The members on the wire, without the id."""
        return {name: getattr(self, name) for name in self.names} | super().members()

    @classmethod
    def payload(cls) -> Any:
        """The type of its members, from which its schema is made; None if it has none."""
        if not cls.names:
            return None
        # pydantic reads no TypedDict of `typing` before Python 3.12.
        from typing import NotRequired

        from typing_extensions import TypedDict

        hints = get_type_hints(cls, include_extras=True)
        return TypedDict(  # type: ignore[operator]
            cls.type,
            {
                name: NotRequired[hints[name]] if hasattr(cls, name) else hints[name]
                for name in cls.names
            },
        )

    @classmethod
    def of(cls, error: FabricError) -> Self | None:
        """This error, if it is what came from the other side."""
        if error.type != cls.type:
            return None
        members = {name: error.body[name] for name in cls.names if name in error.body}
        return cls(message=error.what, **members)


def _first_line(cls: type) -> str:
    return inspect.cleandoc(cls.__dict__.get("__doc__") or "").partition("\n")[0].removesuffix(".")


_KNOWN: Final[dict[str, type[FabricError]]] = {
    kind.type: kind
    for kind in (
        *(FabricError, UnauthorizedError, NotFoundError),
        *(ConflictError, DeadlineError, UnavailableError),
    )
}
_COMMON: Final = ("id", "type", "message", "context", "traceId")


def write_error(error: FabricError, error_id: str, trace_id: str | None = None) -> bytes:
    """An error's bytes; members that are not JSON are left out."""
    said = {"id": error_id, **({"traceId": trace_id} if trace_id else {})}
    try:
        return canonical.encode(error.members() | said)
    except canonical.CanonicalError:
        plain = {"type": FabricError.type, "message": "the error cannot be written as JSON"}
        return canonical.encode(plain | said)


def read_error(data: bytes) -> FabricError:
    """The error in an answer; malformed bytes give an error, too."""
    try:
        body = canonical.decode(data)
    except canonical.CanonicalError:
        body = None
    if not isinstance(body, dict):
        return FabricError("the other side answered with an error that is not a JSON object")
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
