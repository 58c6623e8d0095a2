"""JSON Schemas of Python types, draft 2019-09, without references.

A type has one schema, that of what it reads, whichever side sends it. Class names, field titles and
docstrings are left out, so that renaming them does not change the digest; what the author sets on
purpose (`Field(description=...)`) stays.
"""

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from accord.contracts import schemas
from accord.contracts.errors import ContractError

if TYPE_CHECKING:
    from pydantic.json_schema import GenerateJsonSchema

_DEFINITIONS: Final = "#/$defs/"
# An inlined definition is repeated wherever it is used, so a small type can have a huge schema.
_MAX_PARTS: Final = 50_000


def schema_of(annotation: Any) -> Any:
    """The JSON Schema of a type that pydantic understands.

    Raises:
        ContractError: The type is recursive, its schema too large, or it cannot be described.
    """
    from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter

    name = getattr(annotation, "__name__", "the type")
    try:
        written = TypeAdapter(annotation).json_schema(schema_generator=_generator())
    except (PydanticUserError, PydanticSchemaGenerationError) as error:
        raise ContractError(
            f"the type has no JSON Schema: {error.message.splitlines()[0]}",
            where=name,
            mend="use a pydantic model, a dataclass, a TypedDict, or a schema written by hand",
        ) from None
    except RecursionError:
        raise ContractError("the type is nested too deeply", where=name) from None
    return _Inliner(name, written.pop("$defs", {})).inlined(written, ())


class _Inliner:
    """Replaces references by their definitions, in the keywords of draft 2019-09."""

    def __init__(self, name: str, definitions: Mapping[str, Any]) -> None:
        self._name = name
        self._definitions = definitions
        self._parts = 0

    def inlined(self, schema: Any, inside: tuple[str, ...]) -> Any:
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise ContractError(
                f"the schema has more than {_MAX_PARTS} parts when definitions are written out",
                where=self._name,
            )
        if not isinstance(schema, Mapping):
            return schema
        result = self._definition(schema["$ref"], inside) if "$ref" in schema else {}
        for keyword, value in schema.items():
            if keyword in schemas.SCHEMA_KEYWORDS:
                result[keyword] = self.inlined(value, inside)
            elif keyword in schemas.SCHEMA_MAP_KEYWORDS:
                result[keyword] = {name: self.inlined(part, inside) for name, part in value.items()}
            elif keyword in schemas.SCHEMA_LIST_KEYWORDS:
                result[keyword] = [self.inlined(part, inside) for part in value]
            elif keyword == "prefixItems":
                result["items"] = [self.inlined(part, inside) for part in value]
            elif keyword == "items":
                after = "additionalItems" if "prefixItems" in schema else "items"
                result[after] = self.inlined(value, inside)
            elif keyword not in ("$ref", "discriminator"):
                result[keyword] = value
        return result

    def _definition(self, reference: str, inside: tuple[str, ...]) -> dict[str, Any]:
        name = reference.removeprefix(_DEFINITIONS)
        if name in inside:
            raise ContractError(
                f"the type contains itself, through {name}",
                where=self._name,
                mend="a manifest has no references; refer to the inner value by an id instead",
            )
        inner: dict[str, Any] = self.inlined(self._definitions[name], (*inside, name))
        return inner


def _generator() -> "type[GenerateJsonSchema]":
    """pydantic's generator without generated titles and descriptions."""
    from pydantic.json_schema import GenerateJsonSchema

    class Plain(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def generate_inner(self, schema: Any) -> dict[str, Any]:
            written = super().generate_inner(schema)
            cls = schema.get("cls")
            if isinstance(cls, type):
                named = (
                    self.get_schema_from_definitions(written["$ref"])
                    if "$ref" in written
                    else written
                )
                _drop_names(named or {}, cls)
            return written

    return Plain


def _drop_names(schema: dict[str, Any], cls: type) -> None:
    made_up = {"title": cls.__name__, "description": inspect.cleandoc(cls.__doc__ or "")}
    for keyword, text in made_up.items():
        if schema.get(keyword) == text:
            del schema[keyword]
