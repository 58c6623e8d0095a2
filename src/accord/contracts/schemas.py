"""JSON Schemas of draft 2019-09: keywords with subschemas, and pointers through them.

`Tracer` decides whether a JSON Pointer leads to a value of a wanted type in every payload
(specification, section 8), with bounded work.
"""

from typing import Any, Final

SCHEMA_KEYWORDS: Final = frozenset(
    {"additionalItems", "unevaluatedItems", "contains", "additionalProperties"}
    | {"unevaluatedProperties", "propertyNames", "if", "then", "else", "not", "contentSchema"}
)
"""The value is a schema."""

SCHEMA_LIST_KEYWORDS: Final = frozenset({"allOf", "anyOf", "oneOf"})
"""The value is a list of schemas."""

SCHEMA_OR_LIST_KEYWORD: Final = "items"
"""The value is a schema, or a list of schemas."""

SCHEMA_MAP_KEYWORDS: Final = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs"}
    | {"definitions"}
)
"""The value is a map of schemas; of `dependencies`, some may be lists of names instead."""


Path = tuple[str, ...]

SCALAR: Final = frozenset({"string", "number", "integer"})
"""What can stand as a token of a subject or as a segment of a job's key."""

_EFFORT: Final = 200_000
_TYPES: Final = {str: "string", int: "integer", float: "number", dict: "object", list: "array"}


def steps(pointer: str) -> list[str]:
    """The reference tokens of a JSON Pointer (RFC 6901)."""
    tokens = pointer.split("/")[1:]
    if "~" in pointer:
        return [token.replace("~1", "/").replace("~0", "~") for token in tokens]
    return tokens


def conjuncts(schema: Any) -> list[dict[str, Any]]:
    """The schema and everything in its `allOf`."""
    found = []
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            found.append(part)
            pending.extend(reversed(part.get("allOf", ())))
    return found


class Tracer:
    """Follows pointers through schemas; refuses to go on after a fixed amount of work."""

    def __init__(self) -> None:
        self._effort = _EFFORT

    def fault(
        self, schema: Any, pointer: str, wanted: frozenset[str], *, declared: bool = True
    ) -> str | None:
        """Why a pointer does not lead to a value of a wanted JSON type; None if it does.

        With `declared`, it is a fault if the schema says nothing about the place.
        """
        exposed, fault = self._follow(schema, steps(pointer), 0, wanted)
        if fault is None and declared and not exposed:
            return "leads to nothing that the schema declares for every payload"
        return fault

    def _follow(
        self, schema: Any, path: list[str], at: int, wanted: frozenset[str]
    ) -> tuple[bool, str | None]:
        """Whether the schema constrains the place, and what is wrong there."""
        self._effort -= 1
        if self._effort < 0:
            return False, "takes too many branches of the schema to follow"
        if not isinstance(schema, dict):
            return False, None
        exposed, fault = (
            self._through(schema, path, at, wanted) if at < len(path) else _arrive(schema, wanted)
        )
        for branch in schema.get("allOf", ()):
            if fault is None:
                shown, fault = self._follow(branch, path, at, wanted)
                exposed = exposed or shown
        # Any variant may be the one that a payload keeps, so all must show the place.
        for keyword in ("anyOf", "oneOf"):
            everywhere = keyword in schema
            for variant in schema.get(keyword, ()):
                if fault is None and (everywhere or exposed):
                    shown, fault = self._follow(variant, path, at, wanted)
                    everywhere = everywhere and shown
            exposed = exposed or everywhere
        return exposed, fault

    def _through(
        self, schema: dict[str, Any], path: list[str], at: int, wanted: frozenset[str]
    ) -> tuple[bool, str | None]:
        if "type" in schema and _types(schema["type"]) != {"object"}:
            return False, "leads through a value that need not be an object"
        properties = schema.get("properties", {})
        if path[at] not in properties:
            return False, None
        return self._follow(properties[path[at]], path, at + 1, wanted)


def _arrive(schema: dict[str, Any], wanted: frozenset[str]) -> tuple[bool, str | None]:
    if "type" in schema:
        types = _types(schema["type"])
    elif "const" in schema:
        types = {_type_of(schema["const"])}
    elif "enum" in schema:
        types = set(map(_type_of, schema["enum"]))
    else:
        return False, None
    if types <= wanted:
        return True, None
    return True, f"leads to a value that may be of type {min(types - wanted)}"


def _types(declared: str | list[str]) -> set[str]:
    return {declared} if isinstance(declared, str) else set(declared)


def _type_of(value: Any) -> str:
    return _TYPES.get(type(value), "boolean or null")
