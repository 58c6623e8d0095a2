"""The language of a sender: a schema whose undeclared members are absent.

`sender_language` closes the objects that declare `properties`. Where closing could remove something
that is declared, an object stays open: too wide a reading only makes a comparison stricter, too
narrow a one would hide a witness.

- Declared are members of `properties`, `patternProperties`, `required`, the dependent keywords and
  `if`, and all members if `additionalProperties` has a schema.
- Subschemas for the same object (`allOf`, `anyOf`, `oneOf`, `then`, `else`, `dependentSchemas`)
  are closed once around all of them by `unevaluatedProperties`. Nested members and items that
  several of them describe stay open.
- `not`, `if` and `contains` are tests and stay as they are. So does an object with references,
  constants, `dependencies`, `unevaluatedProperties` or too large a `minProperties`.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

from accord.contracts.containment.budget import MAX_VALUES, compile_usable
from accord.contracts.containment.nodes import REFERENCES
from accord.contracts.errors import ContractError

_Path: TypeAlias = tuple[Any, ...]
_Spoken: TypeAlias = frozenset[str | int]

_ITEMS: Final = 0
_UNNAMED: Final = 1
"""Besides names of members, which are texts: the items, and members that are not listed."""

_EVERYTHING: Final = 2
"""Stands for what many subschemas speak of, which is not sorted out."""

_MAX_GROUPS: Final = 64
_REST: Final = ("additionalProperties", "unevaluatedProperties")
_STAYS: Final = (*REFERENCES, "dependencies", "enum", "const")


def sender_language(schema: Any) -> Any:
    """What a sender sends, as a schema narrower than `schema`; raises ContractError."""
    if compile_usable(schema, "the schema") is None:
        raise ContractError(f"the schema holds more than {MAX_VALUES} values")
    closed = _Closing().close(schema)
    # Closing one alternative of `oneOf` may leave another as the only one that holds.
    return {"allOf": [schema, closed]} if closed != schema and _has_one_of(schema) else closed


def _groups(schema: dict[str, Any]) -> list[list[_Path]]:
    """Subschemas of the same place, grouped by alternatives."""
    groups: list[list[_Path]] = [[("allOf", i)] for i in range(len(schema.get("allOf", ())))]
    groups += [[(k, i) for i in range(len(schema[k]))] for k in ("anyOf", "oneOf") if k in schema]
    if "if" in schema:
        groups.append([(keyword,) for keyword in ("then", "else") if keyword in schema])
    groups += [[("dependentSchemas", name)] for name in schema.get("dependentSchemas", ())]
    return groups


def _at(schema: Any, path: _Path) -> Any:
    for step in path:
        schema = schema[step]
    return schema


def _changed(schema: dict[str, Any], changes: Iterable[tuple[_Path, Any]]) -> dict[str, Any]:
    """The schema with subschemas replaced at some paths."""
    changed = dict(schema)
    copied: set[str] = set()
    for (keyword, *rest), value in changes:
        if not rest:
            changed[keyword] = value
            continue
        if keyword not in copied:
            old = changed[keyword]
            changed[keyword] = dict(old) if isinstance(old, dict) else list(old)
            copied.add(keyword)
        changed[keyword][rest[0]] = value
    return changed


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    """A schema and all its subschemas for the same place."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            yield part
            todo += [_at(part, path) for group in _groups(part) for path in group]


def _can_be_closed(schema: dict[str, Any]) -> bool:
    names: set[str] = set()
    least, listed, patterns = 0, False, False
    for part in _parts(schema):
        if any(keyword in part for keyword in _STAYS):
            return False
        if not _is_open(part.get("unevaluatedProperties", True)):
            return False
        names |= _named(part)
        least = max(least, part.get("minProperties", 0))
        listed = listed or bool(part.get("properties"))
        patterns = patterns or "patternProperties" in part
    return listed and (patterns or least <= len(names))


def _declaring(schema: Any) -> Any:
    """The schema with its declarations made explicit, so that closing keeps them."""
    if not isinstance(schema, dict):
        return schema
    spelled = {k: v for k, v in schema.items() if k not in _REST or not _is_open(v)}
    if "additionalProperties" not in spelled:
        properties = schema.get("properties", {})
        missing = dict.fromkeys(sorted(_named(schema) - properties.keys()), True)
        if properties or missing:
            spelled["properties"] = {**properties, **missing}
    paths = [path for group in _groups(schema) for path in group]
    return _changed(spelled, [(path, _declaring(_at(schema, path))) for path in paths])


def _named(schema: dict[str, Any]) -> set[str]:
    """The members that a schema itself names or tests."""
    names = {*schema.get("properties", ()), *schema.get("required", ())}
    names |= {*schema.get("dependentRequired", ()), *schema.get("dependentSchemas", ())}
    names = names.union(*schema.get("dependentRequired", {}).values())
    for part in _parts(schema.get("if")):
        names |= _named(part)
    return names


class _Closing:
    def __init__(self) -> None:
        self._spoken: dict[int, _Spoken] = {}  # by the identity of subschemas, which all live on

    def close(self, schema: Any) -> Any:
        """Close the object at this place, and nested ones."""
        if not isinstance(schema, dict):
            return schema
        inside = self._inside(schema, frozenset())
        if not _can_be_closed(schema):
            return inside
        closed = _declaring(inside)
        keyword = "unevaluatedProperties" if _groups(schema) else "additionalProperties"
        closed.setdefault(keyword, False)
        return closed

    def _inside(self, schema: Any, elsewhere: _Spoken) -> Any:
        """Close nested objects, unless `elsewhere` describes them, too."""
        if not isinstance(schema, dict):
            return schema
        groups = _groups(schema)
        spoken: list[_Spoken] = [frozenset((_EVERYTHING,))] * len(groups)
        if len(groups) <= _MAX_GROUPS:
            spoken = [self._together(schema, group) for group in groups]
        around = elsewhere.union(*spoken, self._speaks(schema.get("if")))
        changes = [(p, self.close(_at(schema, p))) for p in _closable(schema, around)]
        own = elsewhere | self._speaks_itself(schema)
        for i, group in enumerate(groups):
            others = own.union(*spoken[:i], *spoken[i + 1 :])
            changes += [(path, self._inside(_at(schema, path), others)) for path in group]
        return _changed(schema, changes)

    def _speaks(self, schema: Any) -> _Spoken:
        """The members and items that a schema and its subschemas for the same place describe."""
        if not isinstance(schema, dict):
            return frozenset()
        if id(schema) not in self._spoken:
            groups = (self._together(schema, group) for group in _groups(schema))
            self._spoken[id(schema)] = self._speaks_itself(schema).union(*groups)
        return self._spoken[id(schema)]

    def _together(self, schema: dict[str, Any], group: list[_Path]) -> _Spoken:
        nothing: _Spoken = frozenset()
        return nothing.union(*(self._speaks(_at(schema, path)) for path in group))

    def _speaks_itself(self, schema: dict[str, Any]) -> _Spoken:
        spoken: set[str | int] = set(schema.get("properties", ()))
        if "patternProperties" in schema or any(not _is_open(schema.get(k, True)) for k in _REST):
            spoken.add(_UNNAMED)
        if any(k in schema for k in ("items", "additionalItems", "unevaluatedItems", "contains")):
            spoken.add(_ITEMS)
        return self._speaks(schema.get("if")) | spoken


def _closable(schema: dict[str, Any], elsewhere: _Spoken) -> Iterator[_Path]:
    """The subschemas for members and items that nothing else describes."""
    if _EVERYTHING in elsewhere:
        return
    patterns = schema.get("patternProperties", {})
    members = elsewhere - {_ITEMS}
    if not patterns and _UNNAMED not in elsewhere:
        yield from (("properties", n) for n in schema.get("properties", ()) if n not in elsewhere)
    if not members:
        if len(patterns) == 1 and not schema.get("properties"):
            yield from (("patternProperties", pattern) for pattern in patterns)
        if "additionalProperties" in schema:
            yield ("additionalProperties",)
    if _ITEMS not in elsewhere and "contains" not in schema:
        if isinstance(schema.get("items"), list):
            yield from (("items", i) for i in range(len(schema["items"])))
            yield from (("additionalItems",) for _ in range("additionalItems" in schema))
        elif "items" in schema:
            yield ("items",)


def _is_open(schema: Any) -> bool:
    return schema is True or schema == {}


def _has_one_of(schema: Any) -> bool:
    todo = [schema]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if "oneOf" in value:
                return True
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)
    return False
