"""The shape of a payload: its structure without its values. Pure.

A shape is JSON itself: an object has the shapes of its members, an array the distinct shapes of its
elements, anything else is the name of its type. Only names that a contract declares are kept.
"""

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any, Final

from accord.kernel import canonical
from accord.pipeline.checks.contracts import place_of

MOST_SHAPES: Final = 16
"""Of the distinct shapes of an array's elements, or of members without a name."""

OTHER: Final = "*"
MORE: Final = "..."

_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}


def shape(value: Any, names: Collection[str]) -> Any:
    """The shape of a JSON value, with these member names and no others."""
    if isinstance(value, dict):
        members = {name: shape(each, names) for name, each in value.items() if name in names}
        others = [shape(each, names) for name, each in value.items() if name not in names]
        return {**members, OTHER: _distinct(others)} if others else members
    if isinstance(value, list):
        return _distinct([shape(each, names) for each in value])
    return "null" if value is None else _TYPES[type(value)]


def declared_names(schema: Any) -> frozenset[str]:
    """Every member name that a schema declares, wherever in it."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            properties = part.get("properties")
            if isinstance(properties, dict):
                found.update(properties)
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return frozenset(found)


def read_shape(row: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """From a recorded call beside its contract's manifest to a row with the payload's shape."""
    call = canonical.decode(row["body"])
    if "payload" not in call:
        return
    place = (call["kind"], call["surface"], call["part"])
    names = _names(row["manifest"]).get(place_of(*place), frozenset())
    written = canonical.encode(shape(call["payload"], names)).decode()
    yield call["contract_id"], call["digest"], *place, written, row["recorded_at"]


@lru_cache(maxsize=256)
def _names(manifest: str) -> dict[tuple[str, ...], frozenset[str]]:
    from accord.contracts.manifest.references import schema_references

    contract = canonical.decode(manifest)
    schemas = {name: declared_names(each) for name, each in contract.get("schemas", {}).items()}
    return {place: schemas[name] for place, name in schema_references(contract) if name in schemas}


def _distinct(shapes: list[Any]) -> list[Any]:
    """Each shape once, in the order of their canonical text; of many, the first ones."""
    known = {canonical.encode(each): each for each in shapes}
    some = [known[text] for text in sorted(known)]
    return some if len(some) <= MOST_SHAPES else [*some[:MOST_SHAPES], MORE]
