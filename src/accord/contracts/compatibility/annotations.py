"""A schema without its annotations, which say nothing about payloads."""

from typing import Any, Final

from accord.contracts import keywords

ANNOTATIONS: Final = frozenset(
    {"title", "description", "examples", "default", "$comment", "deprecated", "readOnly"}
    | {"writeOnly"}
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
        holds_schemas = keyword in keywords.LISTS or keyword == keywords.ONE_OR_LIST
        return [bare(item) for item in value] if holds_schemas else value
    if not isinstance(value, dict):
        return value
    if keyword in keywords.MAPS:
        return {name: bare(item) for name, item in value.items()}
    return bare(value) if keyword in keywords.ONE or keyword == keywords.ONE_OR_LIST else value
