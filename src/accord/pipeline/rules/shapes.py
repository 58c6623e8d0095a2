"""The shape of a payload: its structure without its values."""

from collections.abc import Collection, Iterator
from functools import lru_cache
from typing import Any, Final

from accord.kernel import canonical
from accord.pipeline.rules.checks import payload_path

MOST_SHAPES: Final = 16
"""The most distinct shapes of an array's elements, or of members that no schema names."""

OTHER: Final = "*"
MORE: Final = "..."

_TYPES: Final = {str: "string", bool: "boolean", int: "integer", float: "number"}


def shape(value: Any, names: Collection[str]) -> Any:
    """The shape of a JSON value; member names that are not in `names` are replaced."""
    if isinstance(value, dict):
        members = {name: shape(each, names) for name, each in value.items() if name in names}
        others = [shape(each, names) for name, each in value.items() if name not in names]
        return {**members, OTHER: _distinct(others)} if others else members
    if isinstance(value, list):
        return _distinct([shape(each, names) for each in value])
    return "null" if value is None else _TYPES[type(value)]


def declared_names(schema: Any) -> frozenset[str]:
    """Every member name that a schema declares, at any depth."""
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
    """A row with the shape of a recorded call's payload."""
    call = canonical.decode(row["body"])
    if "payload" not in call:
        return
    place = (call["kind"], call["surface"], call["part"])
    names = _names(row["manifest"]).get(payload_path(*place), frozenset())
    written = canonical.encode(shape(call["payload"], names)).decode()
    yield call["contract_id"], call["digest"], *place, written, row["recorded_at"]


@lru_cache(maxsize=256)
def _names(manifest: str) -> dict[tuple[str, ...], frozenset[str]]:
    from accord.contracts.manifest.projection import schema_references

    contract = canonical.decode(manifest)
    schemas = {name: declared_names(each) for name, each in contract.get("schemas", {}).items()}
    return {place: schemas[name] for place, name in schema_references(contract) if name in schemas}


def _distinct(shapes: list[Any]) -> list[Any]:
    """Distinct shapes in the order of their canonical text, up to a limit."""
    known = {canonical.encode(each): each for each in shapes}
    some = [known[text] for text in sorted(known)]
    return some if len(some) <= MOST_SHAPES else [*some[:MOST_SHAPES], MORE]
