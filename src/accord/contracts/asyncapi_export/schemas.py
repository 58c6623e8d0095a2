"""Schemas in the words that AsyncAPI knows: its own dialect, a superset of draft 7.

What a contract's schema says beyond it is left out, and so is what a reader of AsyncAPI would take
for something else: a pattern that ECMAScript does not read, a plain value or a member that looks
like a reference. The contract is what counts; this documents it.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

# Patterns that ECMAScript reads too: no flags, named groups or classes of its own making.
_ESCAPED: Final = r"\\[dDwWsStnrfv.*+?^${}()|\[\]\\/]"
_IN_CLASS: Final = rf"(?:[^\\\[\]-]-[^\\\[\]-]|[^\\\[\]-]|{_ESCAPED})"
_ATOM: Final = rf"(?:[^\\()\[\]{{}}*+?|^$]|{_ESCAPED}|\[\^?+-?{_IN_CLASS}*+-?\]|\))"
_TIMES: Final = r"(?:(?:[*+?]|\{[0-9]{1,4}(?:,[0-9]{0,4})?\})\??+)?+"
_PORTABLE: Final = re.compile(rf"(?:{_ATOM}{_TIMES}|\((?:\?:)?+|[|^$]|\\[bB])*+")


def documented(schema: Any) -> Any:
    """A schema as AsyncAPI writes it."""
    if isinstance(schema, bool):
        return schema
    written = {
        keyword: _COPIES[keyword](value)
        for keyword, value in schema.items()
        if keyword in _COPIES and not _is_misread(keyword, value)
    }
    dependencies: dict[str, Any] = {}
    for keyword in _DEPENDENCIES:
        dependencies |= _members(schema.get(keyword, {}))
    return {**written, "dependencies": dependencies} if dependencies else written


def _same(value: Any) -> Any:
    return value


def _each(value: list[Any]) -> list[Any]:
    return [documented(part) for part in value]


def _items(value: Any) -> Any:
    return _each(value) if isinstance(value, list) else documented(value)


def _members(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: part if isinstance(part, list) else documented(part)
        for name, part in value.items()
        if name != "$ref"
    }


def _patterns(value: Mapping[str, Any]) -> dict[str, Any]:
    return _members({name: part for name, part in value.items() if _PORTABLE.fullmatch(name)})


_DEPENDENCIES: Final = ("dependentRequired", "dependencies", "dependentSchemas")
_VALUES: Final = ("const", "enum", "default", "examples")
_COPIES: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(
        (
            *("type", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
            *("maxLength", "minLength", "maxItems", "minItems", "uniqueItems", "pattern"),
            *("maxProperties", "minProperties", "required", "title", "description", "format"),
            *("readOnly", "writeOnly", "contentMediaType", "contentEncoding", "deprecated"),
            *_VALUES,
        ),
        _same,
    ),
    **dict.fromkeys(
        (
            *("additionalItems", "contains", "additionalProperties", "propertyNames"),
            *("if", "then", "else", "not"),
        ),
        documented,
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _each),
    "items": _items,
    "properties": _members,
    "patternProperties": _patterns,
}


def _is_misread(keyword: str, value: Any) -> bool:
    if keyword == "pattern":
        return _PORTABLE.fullmatch(value) is None
    return keyword in _VALUES and _refers(value)


def _refers(value: Any) -> bool:
    """Whether a reader could take something in a plain value for a reference."""
    if isinstance(value, Mapping):
        return "$ref" in value or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))
