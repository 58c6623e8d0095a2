"""Forms from JSON Schemas: the fields that a schema asks for, and the JSON value of what was typed.

Pure. Members with simple types get fields of their own; anything else is typed as JSON.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from accord.kernel.errors import AccordError

Input = Literal["text", "number", "checkbox", "select", "json"]

WHOLE: Final = "$"
"""The name of the one field of a schema that is no object with simple members."""

_MOST_FIELDS: Final = 40
_INPUTS: Final[Mapping[str, Input]] = {
    "string": "text",
    "integer": "number",
    "number": "number",
    "boolean": "checkbox",
}


class FormError(AccordError):
    """A text is not a value of its field; `where` is the field's name."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a form."""

    name: str
    input: Input
    is_required: bool
    text: str = ""  # what it holds at first
    help: str = ""
    choices: Sequence[str] = ()
    is_integer: bool = False


def fields_of(schema: Any) -> list[Field]:
    """The fields of a payload's form."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    is_object = isinstance(schema, Mapping) and schema.get("type") == "object"
    if not is_object or not isinstance(properties, Mapping) or len(properties) > _MOST_FIELDS:
        text = "{}" if is_object else ""
        return [] if is_object and not properties else [Field(WHOLE, "json", True, text)]
    required = schema.get("required", ())
    return [_field(name, part, name in required) for name, part in properties.items()]


def _field(name: str, schema: Any, is_required: bool) -> Field:
    schema = schema if isinstance(schema, Mapping) else {}
    schema = {**_not_null(schema), **{k: v for k, v in schema.items() if k != "anyOf"}}
    default, choices = schema.get("default"), schema.get("enum")
    about = str(schema.get("description") or _bounds(schema))
    if isinstance(choices, list) and all(isinstance(each, str) for each in choices):
        return Field(name, "select", is_required, str(default or ""), about, tuple(choices))
    kind = schema.get("type")
    shape = _INPUTS.get(kind, "json") if isinstance(kind, str) else "json"
    if default is None:
        text = ""
    else:
        text = default if isinstance(default, str) else json.dumps(default, ensure_ascii=False)
    return Field(name, shape, is_required, text, about, is_integer=kind == "integer")


def _not_null(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one alternative of `anyOf` beside null, as optional members have it."""
    given = schema.get("anyOf")
    if not isinstance(given, list):
        return schema
    others = [each for each in given if each != {"type": "null"}]
    return others[0] if len(others) == 1 and isinstance(others[0], Mapping) else {}


def _bounds(schema: Mapping[str, Any]) -> str:
    said = {
        "minimum": "at least {}",
        "maximum": "at most {}",
        "minLength": "at least {} characters",
        "maxLength": "at most {} characters",
        "pattern": "matches {}",
        "format": "{}",
    }
    return ", ".join(text.format(schema[name]) for name, text in said.items() if name in schema)


def read_value(fields: Sequence[Field], texts: Mapping[str, str]) -> Any:
    """The JSON value of what was typed; optional members without text are left out.

    Raises FormError. Whether the value keeps the schema is not checked here.
    """
    if fields and fields[0].name == WHOLE:
        return _json(fields[0], texts.get(WHOLE, ""))
    value: dict[str, Any] = {}
    for field in fields:
        text = texts.get(field.name, "")
        if field.input == "checkbox":
            if text or field.is_required or field.text == "true":
                value[field.name] = bool(text)
        elif field.input == "text" and field.is_required:
            value[field.name] = text
        elif text.strip():
            value[field.name] = _read(field, text)
        elif field.is_required:
            raise FormError("this field is needed", where=field.name)
    return value


def _read(field: Field, text: str) -> Any:
    if field.input in ("text", "select"):
        return text
    if field.input == "json":
        return _json(field, text)
    try:
        return int(text) if field.is_integer else float(text)
    except ValueError:
        what = "a whole number" if field.is_integer else "a number"
        raise FormError(f"this is not {what}", where=field.name) from None


def _json(field: Field, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise FormError("this is not JSON", where=field.name) from None
