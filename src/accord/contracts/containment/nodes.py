"""Schemas as numbered nodes, without annotations; equal schemas are one node.

Interning makes claims comparable by number, so that a contradiction is found at once. Annotations
(including `format` and content keywords) and unknown keywords are dropped, as in the validator.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal, TypeAlias, cast

from accord.contracts.containment.budget import MAX_NODES, ExhaustedError
from accord.contracts.containment.formulas import TRUE, Claim
from accord.kernel import canonical
from accord.kernel.finding import pointer

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
        self._nodes: list[SchemaNode] = [
            SchemaNode({}),
            SchemaNode({}),
        ]  # number 1 is `true`; 0 is unused
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
        for name in sorted(schema.keys() & _READERS.keys(), reverse=True):
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


def _schema(nodes: SchemaNodes, value: Any, origin: str, path: _Path) -> Claim:
    return nodes._add(value, origin, path)  # noqa: SLF001  the readers are the rest of Nodes


def _schemas(nodes: SchemaNodes, value: Any, origin: str, path: _Path) -> tuple[Claim, ...]:
    return tuple(_schema(nodes, item, origin, (*path, i)) for i, item in enumerate(value))


def _items(nodes: SchemaNodes, value: Any, origin: str, path: _Path) -> Any:
    read = _schemas if isinstance(value, list) else _schema
    return read(nodes, value, origin, path)


def _map(nodes: SchemaNodes, value: Any, origin: str, path: _Path) -> Any:
    claims = ((name, _schema(nodes, value[name], origin, (*path, name))) for name in sorted(value))
    return tuple(claims) or None


def _dependencies(nodes: SchemaNodes, value: Any, origin: str, path: _Path) -> Any:
    def read(name: str) -> Claim:
        needs = value[name]
        if isinstance(needs, list):
            return nodes.intern({"required": frozenset(needs)}) if needs else TRUE
        return _schema(nodes, needs, origin, (*path, name))

    return tuple((name, read(name)) for name in sorted(value)) or None


def _strings(_nodes: SchemaNodes, value: Any, _origin: str, _path: _Path) -> Any:
    return frozenset(value) or None


def _types(_nodes: SchemaNodes, value: Any, _origin: str, _path: _Path) -> Any:
    return frozenset([value] if isinstance(value, str) else value)


def _constants(nodes: SchemaNodes, value: Any, _origin: str, _path: _Path) -> Any:
    return frozenset(nodes.constant(member) for member in value)


def _constant(nodes: SchemaNodes, value: Any, _origin: str, _path: _Path) -> Any:
    return frozenset((nodes.constant(value),))


def _rational(_nodes: SchemaNodes, value: Any, _origin: str, _path: _Path) -> Any:
    return rational(value)


def _integer(_nodes: SchemaNodes, value: Any, _origin: str, _path: _Path) -> Any:
    return int(value)


def _low(_nodes: SchemaNodes, value: Any, _origin: str, _path: _Path) -> Any:
    return int(value) or None


def _flag(_nodes: SchemaNodes, value: Any, _origin: str, _path: _Path) -> Any:
    return value or None


_READERS: Final[Mapping[str, _Reader]] = {
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _schemas),
    **dict.fromkeys(("not", "if", "then", "else", "contains", "propertyNames"), _schema),
    **dict.fromkeys(("additionalItems", "unevaluatedItems"), _schema),
    **dict.fromkeys(("additionalProperties", "unevaluatedProperties"), _schema),
    **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), _map),
    **dict.fromkeys(("dependentRequired", "dependencies"), _dependencies),
    **dict.fromkeys(("minLength", "minItems", "minProperties"), _low),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), _integer),
    **dict.fromkeys(("minContains", "maxContains"), _integer),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _rational),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _rational),
    "items": _items,
    "type": _types,
    "enum": _constants,
    "const": _constant,
    "required": _strings,
    "pattern": lambda _nodes, value, _origin, _path: value,
    "uniqueItems": _flag,
}
