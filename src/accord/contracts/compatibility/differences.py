"""Differences between two schemas of one payload, as the specification names them (section 6.2).

Walks both schemas in parallel, without annotations and with `allOf` merged. Nothing is proved here;
a difference carries the claim that can be proved.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from accord.contracts import schemas
from accord.contracts.schemas import conjuncts
from accord.kernel import canonical
from accord.kernel.canonical import pointer

ANNOTATIONS: Final = frozenset(
    {"title", "description", "examples", "default", "$comment", "deprecated", "readOnly"}
    | {"writeOnly"}
)


def strip_annotations(schema: Any) -> Any:
    """The schema without annotations; properties that are named like one stay."""
    if not isinstance(schema, dict):
        return schema
    return {
        keyword: _strip_part(keyword, value)
        for keyword, value in schema.items()
        if keyword not in ANNOTATIONS
    }


def _strip_part(keyword: str, value: Any) -> Any:
    is_either = keyword == schemas.SCHEMA_OR_LIST_KEYWORD
    if isinstance(value, list) and (is_either or keyword in schemas.SCHEMA_LIST_KEYWORDS):
        return [strip_annotations(item) for item in value]
    if isinstance(value, dict) and keyword in schemas.SCHEMA_MAP_KEYWORDS:
        return {name: strip_annotations(item) for name, item in value.items()}
    if isinstance(value, dict) and (is_either or keyword in schemas.SCHEMA_KEYWORDS):
        return strip_annotations(value)
    return value


_RESTS: Final = ("additionalProperties", "unevaluatedProperties")
_OBJECT: Final = ("properties", "patternProperties", "required", *_RESTS)
_FEW: Final[dict[str, tuple[Any, ...]]] = {"null": (None,), "boolean": (False, True)}

Conjuncts = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ObjectMembers:
    """The members of an object."""

    properties: dict[str, Any]  # schemas by name
    patterns: dict[str, Any]  # schemas by name pattern
    required: frozenset[str]
    rest: Any  # the schema of all other members; True for anything, False for none


def joined(schemas: list[Any]) -> Any:
    """The conjunction of schemas."""
    return schemas[0] if len(schemas) == 1 else {"allOf": schemas}


def read_object(parts: Conjuncts) -> ObjectMembers | None:
    """The object members that the parts describe; None if they do not describe an object."""
    if not any("object" in _types(part) or any(k in part for k in _OBJECT) for part in parts):
        return None
    rests = [part[key] for part in parts for key in _RESTS if part.get(key, True) not in (True, {})]
    return ObjectMembers(
        properties=_merged(part.get("properties", {}) for part in parts),
        patterns=_merged(part.get("patternProperties", {}) for part in parts),
        required=frozenset(name for part in parts for name in part.get("required", ())),
        rest=False if False in rests else joined(rests) if rests else True,
    )


def listed_values(parts: Conjuncts) -> dict[bytes, Any] | None:
    """The values listed by `enum` or `const`, by canonical text; None if there is no list.

    Alternatives count if each of them lists its values; null and booleans count beside others.
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
    """The values of a schema that is only the type null or boolean."""
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


DifferenceKind = Literal[
    "required",
    "values",
    "format-narrowed",
    "format-widened",
    "closed",
    "grown",
    "removed",
    "required-removed",
]
Step = tuple[str, ...]
Steps = tuple[Step, ...] | None
"""The way to a place; None where no claim about the whole payload can be made of it."""

_FORMATS: Final = ("format", "contentEncoding", "contentMediaType")
_WIDER: Final = {
    "email": {"idn-email"},
    "hostname": {"idn-hostname"},
    "uri": {"iri", "uri-reference", "iri-reference"},
    "iri": {"iri-reference"},
    "uri-reference": {"iri-reference"},
}
"""Formats whose texts all have the other formats too."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference."""

    kind: DifferenceKind
    place: str  # JSON Pointer into a payload, with `*` for every item
    what: str  # the end of a sentence that begins with the place
    claim: Any = None  # a schema that all payloads of one side keep, if there is one


def differences(old: bytes, new: bytes) -> tuple[Difference, ...]:
    """The differences between two schemas, given as canonical JSON."""
    return tuple(_walk(canonical.decode(old), canonical.decode(new), (), ()))


def _walk(old: Any, new: Any, place: tuple[str, ...], steps: Steps) -> Iterator[Difference]:
    # First by ==, which is quick; but to it 1 and true are equal.
    if old == new and canonical.encode(old) == canonical.encode(new):
        return
    before, after = conjuncts(old), conjuncts(new)
    yield from _formats(before, after, place)
    narrowed = _lost_values(before, after, place, steps)
    if narrowed is not None:
        yield from narrowed
        return
    one, other = read_object(before), read_object(after)
    if one is not None and other is not None:
        yield from _member_differences(one, other, place, steps)
    yield from _items(before, after, place, steps)
    yield from _alternatives(before, after, place)


def _formats(old: Conjuncts, new: Conjuncts, place: tuple[str, ...]) -> Iterator[Difference]:
    for keyword in _FORMATS:
        before = {part[keyword] for part in old if keyword in part}
        after = {part[keyword] for part in new if keyword in part}
        for name in sorted(after - before):
            if not any(name in _WIDER.get(known, ()) for known in before):
                what = f"must have the {keyword} {name!r}, which the old contract did not ask for"
                yield Difference("format-narrowed", pointer(*place), what)
        for name in sorted(before - after):
            if not any(name in _WIDER.get(known, ()) for known in after):
                what = f"need no longer have the {keyword} {name!r}"
                yield Difference("format-widened", pointer(*place), what)


def _lost_values(
    old: Conjuncts, new: Conjuncts, place: tuple[str, ...], steps: Steps
) -> Iterator[Difference] | None:
    """Values that were removed from a list; None if there is no list."""
    after = listed_values(new)
    if after is None:
        return None
    before = listed_values(old)
    lost = () if before is None else tuple(before.keys() - after.keys())
    if before is not None and not lost:
        return iter(())
    some = ", ".join(sorted(text.decode()[:40] for text in lost)[:3])
    what = f"may no longer be {some}" if lost else "must be one of a list now"
    claim = _claim({"enum": list(after.values())}, steps)
    return iter((Difference("values", pointer(*place), what, claim),))


def _member_differences(
    old: ObjectMembers, new: ObjectMembers, place: tuple[str, ...], steps: Steps
) -> Iterator[Difference]:
    for name in sorted((old.properties.keys() & new.required) - old.required):
        what = "is required now, and was optional"
        claim = _claim({"required": [name]}, steps)
        yield Difference("required", pointer(*place, name), what, claim)
    for name in sorted(old.properties.keys() - new.properties.keys() - new.required):
        if name in old.required:
            what = "is gone; it was required"
            yield Difference("required-removed", pointer(*place, name), what)
        else:
            yield Difference("removed", pointer(*place, name), "is gone; it was optional")
    if old.rest is not True:
        for name in sorted(new.properties.keys() - old.properties.keys()):
            what = "is new, in an object that was closed to unknown members"
            claim = None if old.patterns else _claim({"properties": {name: old.rest}}, steps)
            yield Difference("grown", pointer(*place, name), what, claim)
    elif new.rest is not True:
        what = "is closed to unknown members now"
        shape = {
            "properties": dict.fromkeys(sorted(new.properties.keys() | new.required), True),
            "patternProperties": dict.fromkeys(sorted(new.patterns), True),
            "additionalProperties": new.rest,
        }
        yield Difference("closed", pointer(*place), what, _claim(shape, steps))
    for name in sorted(old.properties.keys() & new.properties.keys()):
        inner = None if steps is None else (*steps, ("properties", name))
        yield from _walk(old.properties[name], new.properties[name], (*place, name), inner)
    for name in sorted(old.patterns.keys() & new.patterns.keys()):
        yield from _walk(old.patterns[name], new.patterns[name], (*place, "*"), None)
    if isinstance(old.rest, dict) and isinstance(new.rest, dict):
        yield from _walk(old.rest, new.rest, (*place, "*"), None)


def _items(
    old: Conjuncts, new: Conjuncts, place: tuple[str, ...], steps: Steps
) -> Iterator[Difference]:
    before = [part["items"] for part in old if "items" in part]
    after = [part["items"] for part in new if "items" in part]
    if not before or not after:
        return
    lists = [items for items in (*before, *after) if isinstance(items, list)]
    if not lists:
        inner = None if steps is None else (*steps, ("items",))
        yield from _walk(joined(before), joined(after), (*place, "*"), inner)
    elif len(before) == len(after) == 1 and len(lists) == 2:
        for at, (one, other) in enumerate(zip(before[0], after[0], strict=False)):
            yield from _walk(one, other, (*place, str(at)), None)


def _alternatives(old: Conjuncts, new: Conjuncts, place: tuple[str, ...]) -> Iterator[Difference]:
    for keyword in ("anyOf", "oneOf"):
        before = [part[keyword] for part in old if keyword in part]
        after = [part[keyword] for part in new if keyword in part]
        if len(before) == len(after) == 1 and len(before[0]) == len(after[0]):
            for one, other in _pairs(before[0], after[0]):
                yield from _walk(one, other, place, None)


def _pairs(old: list[Any], new: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Changed alternatives of both sides, paired by position."""
    before = {canonical.encode(schema): schema for schema in old}
    after = {canonical.encode(schema): schema for schema in new}
    return zip(
        [schema for text, schema in before.items() if text not in after],
        [schema for text, schema in after.items() if text not in before],
        strict=False,
    )


def _claim(schema: Any, steps: Steps) -> Any:
    """The claim about one place as a claim about the whole payload."""
    if steps is None:
        return None
    for step in reversed(steps):
        schema = {"properties": {step[1]: schema}} if len(step) == 2 else {"items": schema}
    return schema
