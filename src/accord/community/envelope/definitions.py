"""The schemas of what is signed, read from data files.

What several of them share stands once, in `definitions.json`, and is put in place where a schema
refers to it. A reference also tells what a value *is*: so `places` finds every time, manifest or
list of co-signers inside an event, and code need not name them a second time.
"""

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final

from accord.community.errors import Code, CommunityError
from accord.kernel.schema import Schema, compile_schema

Path = tuple[str, ...]

_DATA: Final = files("accord.community").joinpath("data")
_REFERENCE: Final = "#/$defs/"
_DEFINITIONS: Final = json.loads(_DATA.joinpath("definitions.json").read_bytes())["$defs"]


def event_types() -> list[str]:
    """Every type of events that has a schema."""
    return sorted(file.name.removesuffix(".json") for file in _DATA.joinpath("events").iterdir())


def event_schema(event_type: str) -> Any:
    """The schema of an event's data, with its references as they are written."""
    return json.loads(_DATA.joinpath("events", f"{event_type}.json").read_bytes())


def definition(name: str) -> Schema:
    """A shared definition, compiled."""
    return compiled(_DEFINITIONS[name])


def compiled(schema: Any) -> Schema:
    """A schema with every reference put in place, compiled."""
    return compile_schema(_inlined(schema))


def places(schema: Any, name: str) -> tuple[Path, ...]:
    """Where the objects that a schema describes hold values of a shared definition."""
    return tuple(_places(schema, _REFERENCE + name, ()))


def check(schema: Schema, value: Any, where: str = "") -> None:
    """Check a value against its schema.

    Raises:
        CommunityError: `bad_request`, with the first thing that is wrong and all findings.
    """
    if schema.is_valid(value):
        return
    findings = schema.findings(value)
    raise CommunityError(
        Code.BAD_REQUEST,
        findings[0].message,
        where=f"{where}{findings[0].pointer}" or None,
        findings=findings,
    )


def _places(schema: Any, reference: str, path: Path) -> Iterator[Path]:
    written = schema.get("$ref")
    if written == reference:
        yield path
        return
    if written is not None:
        schema = _DEFINITIONS[written.removeprefix(_REFERENCE)]
    for name, member in schema.get("properties", {}).items():
        yield from _places(member, reference, (*path, name))


def _inlined(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_inlined(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    written = schema.get("$ref")
    if written is not None:
        return _inlined(_DEFINITIONS[written.removeprefix(_REFERENCE)])
    return {name: _inlined(member) for name, member in schema.items()}
