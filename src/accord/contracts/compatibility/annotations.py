"""A schema without its annotations, which say nothing about payloads."""

from typing import Any, Final

ANNOTATIONS: Final = frozenset(
    {"title", "description", "examples", "default", "$comment", "deprecated", "readOnly"}
    | {"writeOnly"}
)
_SCHEMAS: Final = frozenset(
    {"additionalItems", "unevaluatedItems", "contains", "additionalProperties", "contentSchema"}
    | {"unevaluatedProperties", "propertyNames", "if", "then", "else", "not", "items"}
)
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "items"})
_MAPS: Final = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs"}
    | {"definitions"}
)


def bare(schema: Any) -> Any:
    """The schema without annotations; a member that is named like one stays."""
    if not isinstance(schema, dict):
        return schema
    return {
        keyword: _part(keyword, value)
        for keyword, value in schema.items()
        if keyword not in ANNOTATIONS
    }


def _part(keyword: str, value: Any) -> Any:
    if isinstance(value, list):
        return [bare(item) for item in value] if keyword in _LISTS else value
    if not isinstance(value, dict):
        return value
    if keyword in _MAPS:
        return {name: bare(item) for name, item in value.items()}
    return bare(value) if keyword in _SCHEMAS else value
