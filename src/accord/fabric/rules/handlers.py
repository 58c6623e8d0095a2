"""Handlers: what the annotations of a function say about the surface that it serves. Pure.

One parameter is the payload. Every other one has a type that the fabric provides, such as `Caller`
or `KeyValue[Stock]`; `Annotated[KeyValue[Stock], "stock"]` names the resource where a type is used
by several.
"""

import inspect
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Collection
from dataclasses import dataclass
from typing import Annotated, Any, Final, get_args, get_origin, get_type_hints

from accord.fabric.rules.errors import FabricError

_STREAMS: Final = (AsyncIterator, AsyncGenerator, AsyncIterable)


@dataclass(frozen=True, slots=True)
class Dependency:
    """A parameter that the fabric provides."""

    parameter: str
    kind: type
    of: Any = None  # the type in brackets
    alias: str | None = None


@dataclass(frozen=True, slots=True)
class Handler:
    """A function with the types of what it takes and gives; None stands for nothing."""

    function: Callable[..., Any]
    parameter: str | None  # the one that takes the payload
    payload: Any
    result: Any
    dependencies: tuple[Dependency, ...]

    @property
    def docs(self) -> str | None:
        """The docstring."""
        return inspect.getdoc(self.function) or None

    def of_kind(self, kind: type) -> list[Dependency]:
        """The dependencies of a kind."""
        return [each for each in self.dependencies if each.kind is kind]


def read_handler(
    function: Callable[..., Any], provided: Collection[type], *, is_stream: bool = False
) -> Handler:
    """Read a handler's annotations; raises FabricError that says what to write.

    `provided` are the types of parameters that the surface can provide.
    """
    where = getattr(function, "__qualname__", repr(function))
    if is_stream and not inspect.isasyncgenfunction(function):
        raise FabricError("the handler of a feed must yield", where=where, mend=_STREAM)
    if not is_stream and not inspect.iscoroutinefunction(function):
        raise FabricError("a handler is an `async def` function", where=where)
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise FabricError(f"an annotation cannot be resolved: {error}", where=where) from None
    payloads: dict[str, Any] = {}
    dependencies = []
    for parameter in inspect.signature(function).parameters.values():
        name = parameter.name
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise FabricError(f"the parameter {name!r} cannot be provided", where=where)
        if name not in hints:
            raise FabricError(f"the parameter {name!r} has no annotation", where=where)
        found = _dependency(name, hints[name], provided)
        if found is None:
            payloads[name] = hints[name]
        else:
            dependencies.append(found)
    if len(payloads) > 1:
        raise FabricError(
            f"{', '.join(payloads)}: only one parameter can be the payload",
            where=where,
            mend="put the members into one model; here the fabric provides "
            + ", ".join(sorted(each.__name__ for each in provided)),
        )
    if "return" not in hints:
        raise FabricError("the handler does not say what it returns", where=where, mend=_RETURN)
    result = _yielded(hints["return"], where) if is_stream else hints["return"]
    return Handler(
        function,
        next(iter(payloads), None),
        next(iter(payloads.values()), None),
        None if result is type(None) else result,
        tuple(dependencies),
    )


@dataclass(frozen=True, slots=True)
class MigrationFunction:
    """A function from an older version of some state to the current one, with both types.

    `state` and `version` are None where the types alone say which state is meant.
    """

    function: Callable[[Any], Any]
    older: Any
    newer: Any
    state: str | None
    version: str | None

    def is_for(self, state: str, newer: Any, version: str, older: Any) -> bool:
        """Whether it converts that version; types that are not declared match by name only."""
        named = self.state is not None
        return (
            self.state in (None, state)
            and self.version in (None, version)
            and (newer == self.newer or (newer is None and named))
            and (older == self.older or (older is None and named))
        )


def read_migration(
    function: Callable[..., Any], state: str | None, version: str | None
) -> MigrationFunction:
    """Read a migration's annotations; raises FabricError that says what to write."""
    where = getattr(function, "__qualname__", repr(function))
    if inspect.iscoroutinefunction(function):
        raise FabricError("a migration is a plain function", where=where, mend=_MIGRATION)
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise FabricError(f"an annotation cannot be resolved: {error}", where=where) from None
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 1 or set(hints) != {*parameters, "return"}:
        raise FabricError(
            "a migration takes one annotated value and says what it returns",
            where=where,
            mend=_MIGRATION,
        )
    return MigrationFunction(function, hints[parameters[0]], hints["return"], state, version)


_MIGRATION: Final = "write `def …(older: OldModel) -> Model:`"
_STREAM: Final = "write `async def …(…) -> AsyncIterator[Model]:` with `yield`"
_RETURN: Final = "annotate it: `-> Model`, or `-> None`"


def _dependency(name: str, annotation: Any, provided: Collection[type]) -> Dependency | None:
    alias = None
    if get_origin(annotation) is Annotated:
        annotation, *notes = get_args(annotation)
        alias = next((note for note in notes if isinstance(note, str)), None)
    kind = get_origin(annotation) or annotation
    if kind not in provided:
        return None
    return Dependency(name, kind, next(iter(get_args(annotation)), None), alias)


def _yielded(annotation: Any, where: str) -> Any:
    if get_origin(annotation) not in _STREAMS:
        raise FabricError("a feed returns an AsyncIterator", where=where, mend=_STREAM)
    return get_args(annotation)[0]
