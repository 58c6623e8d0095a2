"""The schemas of a contract as Python types.

Objects become TypedDicts, enumerations Literals. A type says what holds for every valid payload;
bounds, patterns and conditions are left out. Long types get names of their own.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, Final

from accord.contracts.export.layout import (
    UniqueNames,
    class_name,
    docstring,
    fits,
    subscript,
    text,
    union,
    used,
)
from accord.contracts.schemas import conjuncts

_LONGEST_INLINE: Final = 40
_TYPING: Final = ("Any", "Literal", "Never", "NotRequired", "TypeAlias", "TypedDict")
_SCALARS: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
}
_OBJECT: Final = ("properties", "required", "additionalProperties", "patternProperties")
# A member that would hide a type used after it needs the other syntax of TypedDict.
_HIDING: Final = frozenset(("bool", "dict", "float", "int", "list", "str"))
_MEMBER: Final = re.compile(r"(?!__)[a-z_][A-Za-z0-9_]*", re.ASCII)


def render_types(title: str, schemas: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The types module, and the type name of each schema."""
    names = UniqueNames(_TYPING)
    given = names.all((name, class_name(name)) for name in schemas)
    writer = _Writer(names)
    for name in sorted(schemas):
        writer.define(given[name], schemas[name])
    imported = used(_TYPING, "".join(writer.definitions))
    imports = [f"from typing import {', '.join(imported)}\n"] if imported else []
    parts = [docstring(title, ""), *imports, *writer.definitions]
    return parts[0] + "".join(
        ("\n\n" if "class" in (before[:5], part[:5]) else "\n") + part
        for before, part in itertools.pairwise(parts)
    ), given


@dataclass(frozen=True, slots=True)
class _Part:
    """A member of a union: a name, possibly with arguments."""

    head: str
    arguments: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.head}[{', '.join(self.arguments)}]" if self.arguments else self.head


_ANY: Final = _Part("Any")
_NEVER: Final = _Part("Never")


class _Writer:
    def __init__(self, names: UniqueNames) -> None:
        self._names = names
        self.definitions: list[str] = []

    def define(self, name: str, schema: Any) -> None:
        """Write a type definition; inner types come first."""
        members = object_members(schema)
        if members is None:
            parts = self._parts(schema, name)
            # A function that returns Never has no return, so a payload is never of that type.
            self._alias(name, [_ANY] if parts == [_NEVER] else parts)
        else:
            self._typed_dict(name, members)

    def _inline(self, schema: Any, hint: str) -> str:
        """A type short enough to be written in place, or a name."""
        members = object_members(schema)
        if members is not None:
            name = self._names.new(class_name(hint))
            self._typed_dict(name, members)
            return name
        parts = self._parts(schema, hint)
        written = " | ".join(map(str, parts))
        return written if len(written) <= _LONGEST_INLINE else self._named(hint, parts)

    def _named(self, hint: str, parts: list[_Part]) -> str:
        if len(parts) == 1 and not parts[0].arguments:
            return parts[0].head
        name = self._names.new(class_name(hint))
        self._alias(name, parts)
        return name

    def _alias(self, name: str, parts: list[_Part]) -> None:
        start = f"{name}: TypeAlias = "
        if len(parts) == 1 and parts[0].arguments:
            written = subscript(start, parts[0].head, parts[0].arguments)
        else:
            written = union(
                start,
                [
                    str(part) if len(str(part)) <= _LONGEST_INLINE else self._named(name, [part])
                    for part in parts
                ],
            )
        self.definitions.append(written)

    def _typed_dict(self, name: str, members: list[tuple[str, Any, bool]]) -> None:
        fields = [
            (key, self._inline(schema, f"{name} {key}"), required)
            for key, schema, required in members
        ]
        if all(_MEMBER.fullmatch(key) and not iskeyword(key) for key, _, _ in fields) and not (
            _HIDING.intersection(key for key, _, _ in fields)
        ):
            lines = "".join(self._field(f"    {field[0]}: ", name, field) for field in fields)
            self.definitions.append(f"class {name}(TypedDict):\n{lines}")
        else:
            lines = "".join(
                self._field(f"        {text(field[0])}: ", name, field, ",") for field in fields
            )
            self.definitions.append(
                f"{name} = TypedDict(\n    {text(name)},\n    {{\n{lines}    }},\n)\n"
            )

    def _field(self, start: str, name: str, field: tuple[str, str, bool], end: str = "") -> str:
        key, written, required = field
        if not required:
            return subscript(start, "NotRequired", (written,), end)
        if not fits(start + written + end) and not written.isidentifier():
            alias = self._names.new(class_name(name, key))
            self._alias(alias, [_Part(written)])
            written = alias
        return f"{start}{written}{end}\n"

    def _parts(self, schema: Any, hint: str) -> list[_Part]:
        """The members of a schema's union; an object is one member, its name."""
        if object_members(schema) is not None:
            return [_Part(self._inline(schema, hint))]
        parts = list(dict.fromkeys(self._union(schema, hint)))
        if _ANY in parts:
            return [_ANY]
        return [part for part in parts if part != _NEVER] or [_NEVER]

    def _union(self, schema: Any, hint: str) -> Iterator[_Part]:
        if schema is False:
            yield _NEVER
        elif schema is True:
            yield _ANY
        elif "const" in schema or "enum" in schema:
            yield from _literals(schema.get("enum", [schema.get("const")]))
        elif "type" in schema:
            kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
            for kind in kinds:
                yield self._of_kind(kind, schema, hint)
        elif "anyOf" in schema or "oneOf" in schema:
            for number, branch in enumerate(schema.get("anyOf", schema.get("oneOf")), 1):
                yield from self._parts(branch, f"{hint} {number}")
        elif "allOf" in schema:
            yield from self._first_said(schema["allOf"], hint)
        elif any(keyword in schema for keyword in _OBJECT):
            yield self._of_kind("object", schema, hint)
        else:
            yield self._of_kind("array", schema, hint) if "items" in schema else _ANY

    def _first_said(self, branches: list[Any], hint: str) -> list[_Part]:
        for branch in branches:
            parts = self._parts(branch, hint)
            if parts != [_ANY]:
                return parts
        return [_ANY]

    def _of_kind(self, kind: str, schema: Mapping[str, Any], hint: str) -> _Part:
        if kind == "object":
            return _Part("dict", ("str", self._inline(additional(schema), f"{hint} value")))
        if kind == "array":
            items = schema.get("items", True)
            if isinstance(items, list):
                items = {"anyOf": [*items, schema.get("additionalItems", True)]}
            return _Part("list", (self._inline(items, f"{hint} item"),))
        return _Part(_SCALARS[kind])


def additional(schema: Mapping[str, Any]) -> Any:
    """The schema of all members of an object that names none."""
    patterns = list(schema.get("patternProperties", {}).values())
    rest = schema.get("additionalProperties", True)
    return {"anyOf": [*patterns, rest]} if patterns else rest


def _literals(values: Iterable[Any]) -> Iterator[_Part]:
    literal: list[str] = []
    for value in values:
        if isinstance(value, str):
            literal.append(text(value))
        elif value is None or isinstance(value, bool | int):
            literal.append(repr(value))
        elif isinstance(value, float):
            yield _Part("float")
        else:
            yield _ANY
    if literal == ["None"]:
        yield _Part("None")
    elif literal:
        yield _Part("Literal", tuple(dict.fromkeys(literal)))
    else:
        yield _NEVER


def object_members(schema: Any) -> list[tuple[str, Any, bool]] | None:
    """The named members of an object schema (name, schema, required), or None."""
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        return None
    if "const" in schema or "enum" in schema:
        return None
    branches = conjuncts(schema)
    named: dict[str, list[Any]] = {}
    required: set[str] = set()
    for branch in branches:
        required.update(branch.get("required", ()))
        for name, part in branch.get("properties", {}).items():
            named.setdefault(name, []).append(part)
    if not named:
        return None
    for name in required - named.keys():
        named[name] = [True]
    return [
        (name, parts[0] if len(parts) == 1 else {"allOf": parts}, name in required)
        for name, parts in sorted(named.items())
    ]
