"""Models: conversion between JSON values and annotated types. Pure.

A model is a pydantic model, a dataclass, a TypedDict, a `msgspec.Struct`, or any other type that
pydantic understands. The contract's schema is checked on the JSON value; a model adds what a schema
cannot say, such as validators and types of Python.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from accord.contracts.authoring import is_struct
from accord.fabric.rules.errors import FabricError, ValidationError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Model(Generic[T]):
    """Reads JSON values as a type, and writes them."""

    _read: Callable[[Any], T]
    _write: Callable[[T], Any]

    def read(self, value: Any, what: str) -> T:
        """The value as the type; raises ValidationError if a validator of the type refuses it."""
        try:
            return self._read(value)
        except ValueError as error:  # both pydantic's and msgspec's errors are
            raise ValidationError(f"{what} is refused", issues=_issues(error)) from error

    def write(self, value: T, what: str) -> Any:
        """The JSON value; raises TypeError if it is not a value of the type."""
        try:
            return self._write(value)
        except (ValueError, TypeError) as error:
            raise TypeError(f"{what} is not what was declared: {error}") from error


def _identity(value: Any) -> Any:
    return value


RAW: Final[Model[Any]] = Model(_identity, _identity)
"""JSON values as they are."""


def model_of(annotation: Any) -> Model[Any]:
    """The model of a type; raises FabricError if there is none."""
    if annotation is Any:
        return RAW
    if is_struct(annotation):
        return _struct(annotation)
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

    try:
        adapter = TypeAdapter(annotation)
    except (PydanticUserError, PydanticSchemaGenerationError) as error:
        raise FabricError(
            f"{annotation!r} is not a type of payloads: {error.message.splitlines()[0]}",
            mend="use a pydantic model, a dataclass, a TypedDict or a msgspec.Struct",
        ) from None

    def write(value: Any) -> Any:
        return adapter.dump_python(value, mode="json", by_alias=True, warnings="error")

    return Model(adapter.validate_python, write)


def _struct(annotation: Any) -> Model[Any]:
    import msgspec

    def write(value: Any) -> Any:
        if not isinstance(value, annotation):
            raise TypeError(f"expected {annotation.__name__}, got {type(value).__name__}")
        return msgspec.to_builtins(value)

    return Model(lambda value: msgspec.convert(value, annotation), write)


def _issues(error: ValueError) -> list[dict[str, str]]:
    listed = getattr(error, "errors", None)
    if listed is None:
        return [{"path": "", "message": str(error)}]
    return [
        {"path": "".join(f"/{step}" for step in each["loc"]), "message": each["msg"]}
        for each in listed(include_url=False, include_input=False, include_context=False)
    ]
