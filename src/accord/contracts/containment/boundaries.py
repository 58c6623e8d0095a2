"""Generates payloads at and around every bound of a schema.

Used by tests, by comparisons, and as the last resort of the decision. It is independent of the
solver, so that each can reveal the other's mistakes. The validator decides which payloads are
valid.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice, zip_longest
from typing import Any, Final

from accord.contracts.containment.budget import MAX_VALUES, Budget, ExhaustedError, compile_usable
from accord.contracts.containment.formulas import Matches
from accord.contracts.containment.strings import supply as texts
from accord.contracts.errors import ContractError
from accord.kernel import canonical

_PLAIN: Final[tuple[Any, ...]] = (None, True, False, 0, 1, -1, 0.5, "", "a", "é", [], {})
_ANYTHING: Final[tuple[Any, ...]] = (0, "a", None)
_IN_PLACE: Final = ("not", "if", "then", "else")
_IN_PLACE_LISTS: Final = ("allOf", "anyOf", "oneOf")
_EVERY_ITEM: Final = ("additionalItems", "contains", "unevaluatedItems")
_EVERY_MEMBER: Final = ("additionalProperties", "unevaluatedProperties")
_LIMITS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_COUNTS: Final = ("minItems", "maxItems", "minContains", "maxContains")
_MAX_PLACES: Final = 400
_MAX_NAMES: Final = 40
_MAX_SIZE: Final = 300
_MAX_DEPTH: Final = 6


def candidates(schema: Any, limit: int) -> Iterator[Any]:
    """At most `limit` payloads around the schema's bounds, valid or not; raises ContractError."""
    if compile_usable(schema, "the schema") is None:
        raise ContractError(f"the schema holds more than {MAX_VALUES} values")
    return boundary_values([schema], limit)


def boundary_values(schemas: Iterable[Any], limit: int) -> Iterator[Any]:
    """At most `limit` different payloads around the bounds of several valid schemas."""
    return islice(_different(_payloads(schemas, 0)), limit)


@dataclass(slots=True)
class _Facts:
    """What the subschemas of one place mention, asserted or negated."""

    constants: list[Any] = field(default_factory=list)
    numbers: list[float] = field(default_factory=list)
    units: list[float] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    every_item: list[Any] = field(default_factory=list)
    items: dict[int, list[Any]] = field(default_factory=dict)
    members: dict[str, list[Any]] = field(default_factory=dict)
    required: dict[str, None] = field(default_factory=dict)
    every_member: list[Any] = field(default_factory=list)
    names: list[Any] = field(default_factory=list)

    def read(self, schema: dict[str, Any]) -> list[Any]:
        """Add a subschema, and return the further subschemas of the same place."""
        self.constants += schema.get("enum", [])
        if "const" in schema:
            self.constants.append(schema["const"])
        self.numbers += [schema[name] for name in _LIMITS if name in schema]
        self.units += [schema[name] for name in ("multipleOf",) if name in schema]
        self.lengths += [int(schema[n]) for n in ("minLength", "maxLength") if n in schema]
        self.patterns += [schema[name] for name in ("pattern",) if name in schema]
        self.counts += [int(schema[name]) for name in _COUNTS if name in schema]
        self.sizes += [int(schema[n]) for n in ("minProperties", "maxProperties") if n in schema]
        self.every_item += [schema[name] for name in _EVERY_ITEM if name in schema]
        items = schema.get("items", True)
        if isinstance(items, list):
            for position, item in enumerate(items):
                self.items.setdefault(position, []).append(item)
        else:
            self.every_item.append(items)
        self._read_members(schema)
        inside = [schema[name] for name in _IN_PLACE if name in schema]
        inside += chain.from_iterable(schema.get(name, []) for name in _IN_PLACE_LISTS)
        for name in ("dependentSchemas", "dependencies"):
            inside += schema.get(name, {}).values()
        return inside

    def _read_members(self, schema: dict[str, Any]) -> None:
        for name, member in schema.get("properties", {}).items():
            self.members.setdefault(name, []).append(member)
        self.required.update(dict.fromkeys(schema.get("required", [])))
        self.every_member += [schema[name] for name in _EVERY_MEMBER if name in schema]
        for pattern, member in schema.get("patternProperties", {}).items():
            self.names.append({"pattern": pattern})
            self.every_member.append(member)
        self.names += [schema[name] for name in ("propertyNames",) if name in schema]
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, needs in schema.get(keyword, {}).items():
                self.members.setdefault(name, [])
                for needed in needs if isinstance(needs, list) else ():
                    self.members.setdefault(needed, [])
        for name in self.required:
            self.members.setdefault(name, [])


def _payloads(schemas: Iterable[Any], depth: int) -> Iterator[Any]:
    facts = _Facts()
    todo = list(schemas)
    for schema in islice(_drain(todo), _MAX_PLACES):
        if isinstance(schema, dict):
            todo += facts.read(schema)
    yield from _in_turn(
        chain(facts.constants, _PLAIN),
        _numbers(facts),
        _strings(facts),
        _arrays(facts, depth),
        _objects(facts, depth),
    )


def _drain(todo: list[Any]) -> Iterator[Any]:
    while todo:
        yield todo.pop(0)


def _in_turn(*sources: Iterator[Any]) -> Iterator[Any]:
    missing = object()
    for values in zip_longest(*sources, fillvalue=missing):
        yield from (value for value in values if value is not missing)


def _different(values: Iterator[Any]) -> Iterator[Any]:
    seen: set[bytes] = set()
    for value in values:
        try:
            key = canonical.encode(value)
        except canonical.CanonicalError:
            continue  # a number beyond the last double, or half of a surrogate pair
        if key not in seen:
            seen.add(key)
            yield value


def _numbers(facts: _Facts) -> Iterator[float]:
    for number in facts.numbers:
        yield from (number, number + 1, number - 1, number + 0.5, number - 0.5)
        for unit in facts.units:
            factor = number // unit if number / unit < 1e15 else 0
            yield from (factor * unit, (factor + 1) * unit, (factor - 1) * unit)
    for unit in facts.units:
        yield from (unit, 2 * unit, 3 * unit, -unit, unit / 2, unit + 1)
        yield from (unit * other for other in facts.units)


def _strings(facts: _Facts) -> Iterator[str]:
    for length in facts.lengths:
        if length <= _MAX_SIZE:
            yield from ("a" * max(size, 0) for size in (length, length + 1, length - 1))
            yield "\U0001f600" * length
    for pattern in facts.patterns:
        for wanted in (True, False):
            try:
                found = texts([Matches(pattern, wanted)], frozenset(), 3, Budget(2000))
            except ExhaustedError:
                continue
            yield from found.values
            for length in facts.lengths:
                if length <= _MAX_SIZE:
                    yield from ((text * (length + 1))[: length + 1] for text in found.values)
                    yield from ((text * (length + 1))[:length] for text in found.values)


def _arrays(facts: _Facts, depth: int) -> Iterator[list[Any]]:
    told = any(map(_is_telling, facts.every_item)) or facts.items or facts.counts
    if depth >= _MAX_DEPTH or (depth and not told):
        return
    few = 12 if depth else 20
    alike = list(_inside(facts.every_item, few, depth)) or [0]
    counts = {size for count in facts.counts for size in (count, count + 1, count - 1)}
    counts |= {1, 2, len(facts.items), len(facts.items) + 1}
    for size in sorted(size for size in counts if 0 < size <= _MAX_SIZE):
        at = [
            list(_inside(facts.items[p] + facts.every_item, few, depth))
            if p in facts.items
            else alike
            for p in range(size)
        ]
        yield [(options or alike)[0] for options in at]
        yield [(options or alike)[p % len(options or alike)] for p, options in enumerate(at)]
        for value in alike:
            yield [value] * size
            yield [value, *(options[-1] for options in at[1:] if options)]
        for position, options in enumerate(at[:8]):
            for value in options:
                yield [value if p == position else (o or alike)[0] for p, o in enumerate(at)]


def _objects(facts: _Facts, depth: int) -> Iterator[dict[str, Any]]:
    told = facts.members or facts.every_member or facts.names or facts.sizes
    if depth >= _MAX_DEPTH or (depth and not told):
        return
    few = 12 if depth else 20
    names = list(islice(facts.members, _MAX_NAMES))
    fresh = [
        name
        for name in ("fresh", *_inside(facts.names, few, depth))
        if isinstance(name, str) and name not in facts.members
    ]
    for size in facts.sizes:
        fresh += [f"x{n}" for n in range(min(size + 1, _MAX_SIZE))]
    members = {
        name: list(_inside(facts.members[name] + facts.every_member, few, depth)) for name in names
    }
    others = list(_inside(facts.every_member, few, depth))
    base = {name: members[name][0] for name in names if name in facts.required and members[name]}
    full = {name: members[name][0] for name in names if members[name]}
    yield base
    yield full
    for name in names:
        yield {key: value for key, value in full.items() if key != name}
        yield {key: value for key, value in base.items() if key != name}
    for start in (base, full):
        yield from ({**start, name: value} for name in names for value in members[name])
        yield from ({**start, name: value} for name in fresh for value in others)
    for size in (size + extra for size in facts.sizes for extra in (0, 1, -1)):
        extra = islice((name for name in (*full, *fresh)), max(size, 0))
        yield {name: full.get(name, others[0] if others else 0) for name in extra}


def _inside(schemas: list[Any], few: int, depth: int) -> Iterator[Any]:
    """Payloads for a nested place."""
    telling = list(filter(_is_telling, schemas))
    if not telling:
        return iter(_ANYTHING)
    return islice(_different(_payloads(telling, depth + 1)), few)


def _is_telling(schema: Any) -> bool:
    return isinstance(schema, dict) and bool(schema)
