"""Schemas as numbered nodes, and nodes as formulas about a value of one JSON type.

Equal schemas are one node: claims are comparable by number, so that a contradiction is found at
once. Annotations (including `format` and content keywords) and unknown keywords are dropped, as in
the validator. One function per keyword, listed in RULES with its type, makes a formula of it; a
keyword says nothing about other types. In-place subschemas stay claims, so formulas are no deeper
than their node. `unevaluatedProperties` and `unevaluatedItems` are expressed without annotations.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import combinations
from typing import Any, Final, Literal, TypeAlias, cast

from accord.contracts.containment.budget import MAX_NODES, ExhaustedError
from accord.contracts.containment.formulas import (
    ANY,
    NONE,
    TRUE,
    Among,
    Bound,
    Claim,
    Count,
    EveryItem,
    EveryMember,
    Formula,
    Matches,
    Multiple,
    Named,
    Opaque,
    Others,
    SomeMember,
    Spelled,
    Unique,
    between,
    conjunction,
    disjunction,
)
from accord.kernel import canonical
from accord.kernel.canonical import pointer

JsonType: TypeAlias = Literal["null", "boolean", "number", "string", "array", "object"]
JSON_TYPES: Final[tuple[JsonType, ...]] = ("null", "boolean", "number", "string", "array", "object")
REFERENCES: Final = ("$ref", "$recursiveRef", "$dynamicRef", "$schema")
"""What makes a schema mean something that its own text does not say."""


@dataclass(frozen=True, slots=True)
class SchemaNode:
    """A schema: its asserting keywords, with subschemas as claims, and where it was first found."""

    keywords: Mapping[str, Any]
    origin: str = ""
    path: tuple[str | int, ...] = ()

    @property
    def place(self) -> str:
        """Where it was found, for people."""
        return f"{self.origin}#{pointer(*self.path)}"


def json_type_of(value: Any) -> JsonType:
    """The JSON type of a value; integers are numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def rational(value: float) -> Fraction:
    """The exact number of a value's JSON text."""
    return Fraction(value) if isinstance(value, int) else Fraction(canonical.spell(value))


class SchemaNodes:
    """The nodes and constants of one question."""

    def __init__(self) -> None:
        # Number 1 is `true`; 0 is unused.
        self._nodes: list[SchemaNode] = [SchemaNode({}), SchemaNode({})]
        self._numbers: dict[Hashable, Claim] = {(): TRUE}
        self._constants: dict[bytes, int] = {}
        self.values: list[Any] = []

    def __getitem__(self, claim: Claim) -> SchemaNode:
        return self._nodes[abs(claim)]

    def add(self, schema: Any, origin: str) -> Claim:
        """The claim that a value keeps a valid schema."""
        return self._add(schema, origin, ())

    def constant(self, value: Any) -> int:
        """The number of a constant; equal values, such as 1 and 1.0, share it."""
        key = canonical.encode(value)
        number = self._constants.setdefault(key, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number

    def find_constant(self, value: Any) -> int | None:
        """The number of a value if it is a known constant."""
        return self._constants.get(canonical.encode(value))

    def intern(
        self, keywords: Mapping[str, Any], origin: str = "", path: tuple[str | int, ...] = ()
    ) -> Claim:
        """The claim of a node with these keywords, whose subschemas are already claims."""
        key = tuple(sorted(keywords.items(), key=lambda item: item[0]))
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._nodes)
            if number > MAX_NODES:
                raise ExhaustedError(f"the schemas hold more than {MAX_NODES} different subschemas")
            self._nodes.append(SchemaNode(keywords, origin, path))
        return number

    def equal_to(self, value: Any) -> Claim:
        """The claim that a value equals this one."""
        return self.intern({"enum": frozenset((self.constant(value),))})

    def _add(self, schema: Any, origin: str, path: tuple[str | int, ...]) -> Claim:
        if isinstance(schema, bool):
            return TRUE if schema else -TRUE
        keywords: dict[str, Any] = {}
        if path and "$schema" in schema:  # another dialect, in which keywords may mean otherwise
            return self.intern({"$schema": f"{origin}#{pointer(*path)}"})
        # A value that breaks the schema is looked for in this order, the same on every machine:
        # `required` before `properties`, as what is missing is told with the least work.
        for name in sorted(schema.keys() & _KNOWN, reverse=True):
            if name in _PLAIN_READERS:
                read = _PLAIN_READERS[name](schema[name])
            else:
                read = _READERS[name](self, schema[name], origin, (*path, name))
            if read is not None:
                keywords[name] = read
        if "const" in keywords:
            only = keywords.pop("const")
            keywords["enum"] = only & keywords.get("enum", only)
        for name in ("anyOf", "oneOf"):
            self._join_constants(keywords, name)
        for name in REFERENCES:
            if name in schema and name != "$schema":
                keywords[name] = f"{origin}#{pointer(*path)}"
        # A lone `not` is the opposite claim. Not so `not` of `not`: the schema inside would then
        # count as having evaluated members, which `not` never does.
        if keywords.keys() == {"not"} and (keywords["not"] > 0 or keywords["not"] == -TRUE):
            return -cast("Claim", keywords["not"])
        return self.intern(keywords, origin, path)

    def _join_constants(self, keywords: dict[str, Any], name: str) -> None:
        """Rewrite alternatives that are constants (an enumeration with titles) as `enum`."""
        alternatives = [
            self[claim].keywords if claim > TRUE else {} for claim in keywords.get(name, ())
        ]
        if not alternatives or any(node.keys() != {"enum"} for node in alternatives):
            return
        joined: frozenset[int] = frozenset().union(*(node["enum"] for node in alternatives))
        if name == "anyOf" or sum(len(node["enum"]) for node in alternatives) == len(joined):
            keywords["enum"] = joined & keywords.get("enum", joined)
            del keywords[name]


_Path: TypeAlias = tuple[str | int, ...]
_Reader: TypeAlias = Callable[[SchemaNodes, Any, str, _Path], Any]


def _read_schema(nodes: SchemaNodes, value: Any, origin: str, path: _Path) -> Claim:
    return nodes._add(value, origin, path)  # noqa: SLF001  the readers are the rest of Nodes


def _read_schemas(nodes: SchemaNodes, value: Any, origin: str, path: _Path) -> tuple[Claim, ...]:
    return tuple(_read_schema(nodes, item, origin, (*path, i)) for i, item in enumerate(value))


def _read_items(nodes: SchemaNodes, value: Any, origin: str, path: _Path) -> Any:
    read = _read_schemas if isinstance(value, list) else _read_schema
    return read(nodes, value, origin, path)


def _map(nodes: SchemaNodes, value: Any, origin: str, path: _Path) -> Any:
    claims = (
        (name, _read_schema(nodes, value[name], origin, (*path, name))) for name in sorted(value)
    )
    return tuple(claims) or None


def _dependencies(nodes: SchemaNodes, value: Any, origin: str, path: _Path) -> Any:
    def read(name: str) -> Claim:
        needs = value[name]
        if isinstance(needs, list):
            return nodes.intern({"required": frozenset(needs)}) if needs else TRUE
        return _read_schema(nodes, needs, origin, (*path, name))

    return tuple((name, read(name)) for name in sorted(value)) or None


_READERS: Final[Mapping[str, _Reader]] = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _read_schemas),
    **dict.fromkeys(("not", "if", "then", "else", "contains", "propertyNames"), _read_schema),
    **dict.fromkeys(("additionalItems", "unevaluatedItems"), _read_schema),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties"), _read_schema),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _map),
    **dict.fromkeys(("dependentRequired", "dependencies"), _dependencies),
    "items": _read_items,
    "enum": lambda nodes, value, _origin, _path: frozenset(map(nodes.constant, value)),
    "const": lambda nodes, value, _origin, _path: frozenset((nodes.constant(value),)),
}
_PLAIN_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("minLength", "minItems", "minProperties"), lambda value: int(value) or None),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), int),
    **dict.fromkeys(("minContains", "maxContains"), int),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), rational),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), rational),
    "type": lambda value: frozenset([value] if isinstance(value, str) else value),
    "required": lambda value: frozenset(value) or None,
    "pattern": lambda value: value,
    "uniqueItems": lambda value: value or None,
}
_KNOWN: Final = _READERS.keys() | _PLAIN_READERS.keys()


MAX_CONDITIONS: Final = 6
"""Above this many conditional regions an unevaluated keyword is not analysed."""


@dataclass(frozen=True, slots=True)
class Region:
    """What a subschema evaluates: members by name and pattern, a prefix of items, or everything."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    prefix: int = 0
    everything: bool = False

    def __or__(self, other: "Region") -> "Region":
        return Region(
            self.names | other.names,
            self.patterns | other.patterns,
            max(self.prefix, other.prefix),
            self.everything or other.everything,
        )


class _NotAnalysedError(Exception):
    """What a subschema evaluates cannot be read from its text."""


# What in-place subschemas evaluate depends on which of them hold. Each conditional one gives a
# *region* that counts when its conditions hold. For every set A of conditional regions: if all
# conditions outside A fail, then everything outside the regions of A keeps the claim. These clauses
# together are the keyword, and being a formula they can be negated.
def _clauses(nodes: SchemaNodes, number: Claim, claim: Claim, keyword: str) -> Formula:
    if claim == TRUE:
        return ANY
    regions: dict[Formula, Region] = {}
    try:
        for condition, region in _regions(nodes, number, (), keyword, outermost=True):
            regions[condition] = regions.get(condition, Region()) | region
    except _NotAnalysedError as error:
        return Opaque(f"`{keyword}` beside {error}", number)
    always = regions.pop(ANY, Region())
    regions = {condition: region for condition, region in regions.items() if region != Region()}
    if len(regions) > MAX_CONDITIONS:
        what = f"`{keyword}` over more than {MAX_CONDITIONS} conditions at {nodes[number].place}"
        return Opaque(what, number)
    clauses = []
    for size in range(len(regions) + 1):
        for chosen in combinations(regions, size):
            covered = reduce(Region.__or__, (regions[condition] for condition in chosen), always)
            others = (condition for condition in regions if condition not in chosen)
            clauses.append(disjunction((*others, _beyond(covered, claim, keyword))))
    return conjunction(clauses)


def _beyond(covered: Region, claim: Claim, keyword: str) -> Formula:
    if covered.everything:
        return ANY
    if keyword == "unevaluatedItems":
        return EveryItem(claim, covered.prefix)
    return EveryMember(Others(covered.names, covered.patterns), claim)


def _regions(
    nodes: SchemaNodes,
    claim: Claim,
    given: tuple[Formula, ...],
    keyword: str,
    *,
    outermost: bool = False,
) -> Iterator[tuple[Formula, Region]]:
    if claim < 0 or claim == TRUE:
        return  # a failing schema evaluates nothing, nor does `not`
    keywords = nodes[claim].keywords
    for name in REFERENCES:
        if name in keywords:
            raise _NotAnalysedError(f"`{name}` at {keywords[name]}")
    if keyword == "unevaluatedItems" and "contains" in keywords:
        # Drafts and validators differ on whether `contains` evaluates.
        raise _NotAnalysedError(f"`contains` at {nodes[claim].place}")
    own = _own_items(keywords) if keyword == "unevaluatedItems" else _own_members(keywords)
    if keyword in keywords and not outermost:
        own = Region(everything=True)
    yield conjunction(given), own
    for part in keywords.get("allOf", ()):
        yield from _regions(nodes, part, given, keyword)
    for part in (*keywords.get("anyOf", ()), *keywords.get("oneOf", ())):
        yield from _regions(nodes, part, (*given, part), keyword)
    if "if" in keywords:
        test = keywords["if"]
        yield from _regions(nodes, test, (*given, test), keyword)
        yield from _regions(nodes, keywords.get("then", TRUE), (*given, test), keyword)
        yield from _regions(nodes, keywords.get("else", TRUE), (*given, -test), keyword)
    for name, part in keywords.get("dependentSchemas", ()):
        present = SomeMember(Named(name), TRUE) if keyword == "unevaluatedProperties" else NONE
        yield from _regions(nodes, part, (*given, present), keyword)


def _own_members(keywords: Mapping[str, Any]) -> Region:
    return Region(
        names=frozenset(name for name, _ in keywords.get("properties", ())),
        patterns=frozenset(pattern for pattern, _ in keywords.get("patternProperties", ())),
        everything="additionalProperties" in keywords,
    )


def _own_items(keywords: Mapping[str, Any]) -> Region:
    items = keywords.get("items")
    if isinstance(items, tuple):
        return Region(prefix=len(items), everything="additionalItems" in keywords)
    return Region(everything=items is not None)


MAX_ONE_OF: Final = 48
"""Above this many alternatives, that only one of them holds is not analysed."""

Keywords: TypeAlias = Mapping[str, Any]
Rule: TypeAlias = Callable[[SchemaNodes, Claim, Keywords, Any], Formula]


def translate(nodes: SchemaNodes, number: Claim, kind: JsonType) -> Formula:
    """What the node asserts of a value of this type."""
    if number == TRUE:
        return ANY
    keywords = nodes[number].keywords
    if "type" in keywords and _type(keywords["type"], kind) is NONE:
        return NONE
    parts: list[Formula] = []
    for name, value in keywords.items():
        if name == "type":
            parts.append(_type(value, kind))
        elif name == "enum":
            fitting = frozenset(c for c in value if json_type_of(nodes.values[c]) == kind)
            parts.append(Among(fitting) if fitting else NONE)
        elif name in REFERENCES:
            parts.append(Opaque(f"`{name}` at {value}", number))
        elif name in RULES:
            speaks_of, rule = RULES[name]
            if speaks_of in (None, kind):
                parts.append(rule(nodes, number, keywords, value))
    return conjunction(parts)


def _type(types: frozenset[str], kind: JsonType) -> Formula:
    if kind in types:
        return ANY
    return Multiple(rational(1)) if kind == "number" and "integer" in types else NONE


def _properties(_n: SchemaNodes, _c: Claim, _k: Keywords, members: Any) -> Formula:
    return conjunction(EveryMember(Named(name), claim) for name, claim in members if claim != TRUE)


def _one_of(nodes: SchemaNodes, number: Claim, _k: Keywords, claims: tuple[Claim, ...]) -> Formula:
    if len(claims) > MAX_ONE_OF:
        what = f"`oneOf` with more than {MAX_ONE_OF} alternatives at {nodes[number].place}"
        return conjunction((disjunction(claims), Opaque(what, number)))
    pairs = (disjunction((-one, -other)) for one, other in combinations(claims, 2))
    return conjunction((disjunction(claims), *pairs))


def _if(_n: SchemaNodes, _c: Claim, keywords: Keywords, claim: Claim) -> Formula:
    then = disjunction((-claim, keywords.get("then", TRUE)))
    return conjunction((then, disjunction((claim, keywords.get("else", TRUE)))))


def _items(_n: SchemaNodes, _c: Claim, _k: Keywords, items: Claim | tuple[Claim, ...]) -> Formula:
    if isinstance(items, int):
        return ANY if items == TRUE else EveryItem(items)
    return conjunction(EveryItem(c, i, i + 1) for i, c in enumerate(items) if c != TRUE)


def _additional_items(_n: SchemaNodes, _c: Claim, keywords: Keywords, claim: Claim) -> Formula:
    items = keywords.get("items")
    return EveryItem(claim, len(items)) if isinstance(items, tuple) and claim != TRUE else ANY


def _contains(_n: SchemaNodes, _c: Claim, keywords: Keywords, claim: Claim) -> Formula:
    low, high = keywords.get("minContains", 1), keywords.get("maxContains")
    if high is not None and high < low:
        return NONE
    return ANY if low == 0 and high is None else Count(claim, low, high)


def _pattern_properties(nodes: SchemaNodes, _c: Claim, _k: Keywords, members: Any) -> Formula:
    return conjunction(
        EveryMember(Spelled(nodes.intern({"pattern": pattern})), claim)
        for pattern, claim in members
        if claim != TRUE
    )


def _additional_properties(_n: SchemaNodes, _c: Claim, keywords: Keywords, claim: Claim) -> Formula:
    names = frozenset(name for name, _ in keywords.get("properties", ()))
    patterns = frozenset(pattern for pattern, _ in keywords.get("patternProperties", ()))
    return ANY if claim == TRUE else EveryMember(Others(names, patterns), claim)


def _required(_n: SchemaNodes, _c: Claim, _k: Keywords, names: frozenset[str]) -> Formula:
    return conjunction(SomeMember(Named(name), TRUE) for name in sorted(names))


def _dependent(_n: SchemaNodes, _c: Claim, _k: Keywords, claims: Any) -> Formula:
    return conjunction(disjunction((EveryMember(Named(name), -TRUE), c)) for name, c in claims)


def _property_names(_n: SchemaNodes, _c: Claim, _k: Keywords, claim: Claim) -> Formula:
    return ANY if claim == TRUE else EveryMember(Spelled(-claim), -TRUE)


def _bound(*, lower: bool, strict: bool) -> Rule:
    return lambda _n, _c, _k, limit: Bound(limit, lower, strict)


def _unevaluated(keyword: str) -> Rule:
    return lambda nodes, number, _k, claim: _clauses(nodes, number, claim, keyword)


def _at_least(_n: SchemaNodes, _c: Claim, _k: Keywords, low: int) -> Formula:
    return between(low, None)


def _at_most(_n: SchemaNodes, _c: Claim, _k: Keywords, high: int) -> Formula:
    return between(0, high)


RULES: Final[Mapping[str, tuple[JsonType | None, Rule]]] = {
    "allOf": (None, lambda _n, _c, _k, claims: conjunction(claims)),
    "anyOf": (None, lambda _n, _c, _k, claims: disjunction(claims)),
    "oneOf": (None, _one_of),
    "not": (None, lambda _n, _c, _k, claim: -claim),
    "if": (None, _if),
    "minimum": ("number", _bound(lower=True, strict=False)),
    "exclusiveMinimum": ("number", _bound(lower=True, strict=True)),
    "maximum": ("number", _bound(lower=False, strict=False)),
    "exclusiveMaximum": ("number", _bound(lower=False, strict=True)),
    "multipleOf": ("number", lambda _n, _c, _k, of: Multiple(of)),
    "minLength": ("string", _at_least),
    "maxLength": ("string", _at_most),
    "pattern": ("string", lambda _n, _c, _k, pattern: Matches(pattern)),
    "minItems": ("array", _at_least),
    "maxItems": ("array", _at_most),
    "items": ("array", _items),
    "additionalItems": ("array", _additional_items),
    "contains": ("array", _contains),
    "uniqueItems": ("array", lambda _n, _c, _k, _value: Unique()),
    "unevaluatedItems": ("array", _unevaluated("unevaluatedItems")),
    "minProperties": ("object", _at_least),
    "maxProperties": ("object", _at_most),
    "properties": ("object", _properties),
    "patternProperties": ("object", _pattern_properties),
    "additionalProperties": ("object", _additional_properties),
    "propertyNames": ("object", _property_names),
    "required": ("object", _required),
    "dependentRequired": ("object", _dependent),
    "dependentSchemas": ("object", _dependent),
    "dependencies": ("object", _dependent),
    "unevaluatedProperties": ("object", _unevaluated("unevaluatedProperties")),
}
