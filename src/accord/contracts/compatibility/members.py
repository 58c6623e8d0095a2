"""What a schema says at one place, all parts of its `allOf` taken together."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from accord.kernel import canonical

_RESTS: Final = ("additionalProperties", "unevaluatedProperties")
_OBJECT: Final = ("properties", "patternProperties", "required", *_RESTS)
_FEW: Final[dict[str, tuple[Any, ...]]] = {"null": (None,), "boolean": (False, True)}

Conjuncts = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Object:
    """The members of an object.

    Attributes:
        properties: What named members keep.
        patterns: What members keep whose names match a pattern.
        required: The names of members that are always there.
        rest: What other members keep: True if they may be anything, False if there are none.
    """

    properties: dict[str, Any]
    patterns: dict[str, Any]
    required: frozenset[str]
    rest: Any


def conjuncts(schema: Any) -> Conjuncts:
    """The schema and everything in its `allOf`, each of which a payload keeps."""
    found = []
    pending = [schema]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            found.append(part)
            pending.extend(reversed(part.get("allOf", ())))
    return found


def joined(schemas: list[Any]) -> Any:
    """Several schemas as one."""
    return schemas[0] if len(schemas) == 1 else {"allOf": schemas}


def read_object(parts: Conjuncts) -> Object | None:
    """What the parts of a schema say about objects; None if they say nothing."""
    if not any("object" in _types(part) or any(k in part for k in _OBJECT) for part in parts):
        return None
    rests = [part[key] for part in parts for key in _RESTS if part.get(key, True) not in (True, {})]
    return Object(
        properties=_merged(part.get("properties", {}) for part in parts),
        patterns=_merged(part.get("patternProperties", {}) for part in parts),
        required=frozenset(name for part in parts for name in part.get("required", ())),
        rest=False if False in rests else joined(rests) if rests else True,
    )


def listed_values(parts: Conjuncts) -> dict[bytes, Any] | None:
    """The values that a schema lists by `enum` or `const`, by canonical text; None if it does not.

    Alternatives list values when each of them does; null and the booleans count beside others.
    """
    for part in parts:
        values = _listed(part)
        if values is not None:
            return {canonical.encode(value): value for value in values}
    return None


def _listed(part: dict[str, Any]) -> list[Any] | None:
    if "const" in part:
        return [part["const"]]
    if "enum" in part:
        return list(part["enum"])
    for keyword in ("anyOf", "oneOf"):
        if keyword in part:
            lists = [listed_values(conjuncts(branch)) for branch in part[keyword]]
            few = [_few(branch) for branch in part[keyword]]
            if any(lists) and all(x is not None or y for x, y in zip(lists, few, strict=True)):
                named = [value for values in lists if values for value in values.values()]
                return named + [value for values in few for value in values]
    return None


def _few(schema: Any) -> tuple[Any, ...]:
    """The values of a schema that is nothing but the type null or boolean."""
    if isinstance(schema, dict) and len(schema) == 1 and isinstance(schema.get("type"), str):
        return _FEW.get(schema["type"], ())
    return ()


def _types(part: dict[str, Any]) -> list[str]:
    declared = part.get("type", [])
    return [declared] if isinstance(declared, str) else declared


def _merged(maps: Iterable[dict[str, Any]]) -> dict[str, Any]:
    members: dict[str, list[Any]] = {}
    for part in maps:
        for name, schema in part.items():
            members.setdefault(name, []).append(schema)
    return {name: joined(schemas) for name, schemas in members.items()}
