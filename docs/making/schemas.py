"""A JSON Schema as rows for people: each member with its place, type and limits. Pure.

It shows shape, not every keyword: what it leaves out (conditions between members) is in the schema
itself, which decides.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from docs.making.markdown import code, table

_REFERENCE: Final = "#/$defs/"
_SAFE_INTEGER: Final = 2**53 - 1
_LIMITS: Final = (
    ("minimum", "≥ {}"),
    ("maximum", "≤ {}"),
    ("exclusiveMinimum", "> {}"),
    ("exclusiveMaximum", "< {}"),
    ("minLength", "at least {} characters"),
    ("maxLength", "at most {} characters"),
    ("minItems", "at least {} items"),
    ("maxItems", "at most {} items"),
    ("maxProperties", "at most {} members"),
)


class Member(NamedTuple):
    """One member of what a schema describes."""

    path: str
    kind: str
    required: bool


def members(schema: Any, definitions: Mapping[str, Any] | None = None) -> Iterator[Member]:
    """The members of an object, those of objects within it below their own."""
    yield from _members(schema, definitions or {}, "")


def members_table(schema: Any, definitions: Mapping[str, Any] | None = None) -> str:
    """The members as a table; a sentence where there are none."""
    found = list(members(schema, definitions))
    if not found:
        return "It has no members."
    rows = [(code(each.path), each.kind, "yes" if each.required else "") for each in found]
    return table(("member", "type", "required"), rows)


def _members(schema: Any, definitions: Mapping[str, Any], path: str) -> Iterator[Member]:
    schema, _ = _resolved(schema, definitions)
    required = schema.get("required", ())
    for name, member in schema.get("properties", {}).items():
        place = f"{path}.{name}" if path else name
        yield Member(place, _kind(member, definitions), name in required)
        yield from _within(member, definitions, place)


def _within(schema: Any, definitions: Mapping[str, Any], path: str) -> Iterator[Member]:
    schema, _ = _resolved(schema, definitions)
    if schema.get("properties"):
        yield from _members(schema, definitions, path)
    elif isinstance(schema.get("items"), dict):
        yield from _within(schema["items"], definitions, f"{path}[]")
    elif isinstance(schema.get("additionalProperties"), dict):
        yield from _within(schema["additionalProperties"], definitions, f"{path}.*")
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _within(branch, definitions, path)


def _kind(schema: Any, definitions: Mapping[str, Any]) -> str:
    schema, name = _resolved(schema, definitions)
    default = [f"default {code(schema['default'])}"] if "default" in schema else []
    return ", ".join([_type(schema, definitions, name), *_limits(schema), *default])


def _limits(schema: Mapping[str, Any]) -> Iterator[str]:
    for key, text in _LIMITS:
        limit = schema.get(key)
        if limit == 1 and key in ("minLength", "minItems"):
            yield "not empty"
        elif limit is not None and limit != _SAFE_INTEGER and (limit or key == "minimum"):
            yield text.format(limit)


def _type(schema: Any, definitions: Mapping[str, Any], name: str | None) -> str:
    if "const" in schema:
        return code(_plain(schema["const"]))
    if "enum" in schema:
        return " or ".join(code(_plain(each)) for each in schema["enum"])
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(_kind(each, definitions) for each in branches)
    kinds = schema.get("type", "any JSON value")
    told = " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
    if kinds == "array" and isinstance(schema.get("items"), dict):
        return f"array of {_type(*_with_name(schema['items'], definitions))}"
    return f"{told} ({name})" if name and kinds == "string" else told


def _with_name(
    schema: Any, definitions: Mapping[str, Any]
) -> tuple[Any, Mapping[str, Any], str | None]:
    resolved, name = _resolved(schema, definitions)
    return resolved, definitions, name


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> tuple[Any, str | None]:
    name = None
    while isinstance(schema, dict) and "$ref" in schema:
        name = schema["$ref"].removeprefix(_REFERENCE)
        schema = definitions.get(name, {})
    return (schema if isinstance(schema, dict) else {}), name


def _plain(value: object) -> str:
    return "null" if value is None else str(value)
