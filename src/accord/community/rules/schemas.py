"""Event types, and the JSON schemas of everything that is signed, read from data files.

Section 7.2 of the specification lists the event types.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from typing import Any, Final

from accord.community.errors import Code, CommunityError
from accord.community.rules import formats
from accord.kernel.finding import pointer
from accord.kernel.schema import Schema, compile_schema

MemberPath = tuple[str, ...]

_DATA: Final = files("accord.community").joinpath("data")
_REFERENCE: Final = "#/$defs/"
_DEFINITIONS: Final = json.loads(_DATA.joinpath("definitions.json").read_bytes())["$defs"]


def event_type_names() -> list[str]:
    """Every event type with a schema."""
    return sorted(file.name.removesuffix(".json") for file in _DATA.joinpath("events").iterdir())


def event_schema(event_type: str) -> Any:
    """The schema of an event's data, with its references unresolved."""
    return json.loads(_DATA.joinpath("events", f"{event_type}.json").read_bytes())


def definition(name: str) -> Schema:
    """A shared definition, compiled."""
    return compiled(_DEFINITIONS[name])


def compiled(schema: Any) -> Schema:
    """A schema with all references resolved, compiled."""
    return compile_schema(_inlined(schema))


def paths_of(schema: Any, name: str) -> tuple[MemberPath, ...]:
    """The paths at which a schema uses a shared definition."""
    return tuple(_places(schema, _REFERENCE + name, ()))


def check_against(schema: Schema, value: Any, where: str = "") -> None:
    """Check a value against its schema; raises `bad_request` with all findings."""
    if schema.is_valid(value):
        return
    findings = schema.findings(value)
    raise CommunityError(
        Code.BAD_REQUEST,
        findings[0].message,
        where=f"{where}{findings[0].pointer}" or None,
        findings=findings,
    )


def _places(schema: Any, reference: str, path: MemberPath) -> Iterator[MemberPath]:
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


class Stage(Enum):
    """The stage of the fold that decides a type."""

    MEMBERSHIP = "membership"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class EventType:
    """One event type: its schema, and paths in its data.

    `version` is the one that this code writes and knows. `manifests` are the author's own, and
    `intents` are co-signatures.
    """

    event_type: str
    version: int
    stage: Stage
    schema: Schema
    times: tuple[MemberPath, ...]
    manifests: tuple[MemberPath, ...]
    intents: tuple[MemberPath, ...]


def _load_event_type(event_type: str) -> EventType:
    schema = event_schema(event_type)
    return EventType(
        event_type,
        1,
        Stage.MEMBERSHIP if event_type.startswith("community.") else Stage.CONTENT,
        compiled(schema),
        paths_of(schema, "time"),
        paths_of(schema, "node_manifest"),
        paths_of(schema, "co_signers"),
    )


EVENT_TYPES: Final[Mapping[str, EventType]] = {
    name: _load_event_type(name) for name in event_type_names()
}
"""Every type that this code knows."""


def current_version(event_type: str) -> int:
    """The schema version in which events of a type are written; `bad_request` if unknown."""
    kind = EVENT_TYPES.get(event_type)
    if kind is None:
        raise CommunityError(Code.BAD_REQUEST, f"there is no event type {event_type[:80]!r}")
    return kind.version


def find_event_type(event_type: str, schema_version: int) -> EventType | None:
    """The event type; None if this code does not know it, or not this version."""
    kind = EVENT_TYPES.get(event_type)
    return None if kind is None or schema_version > kind.version else kind


def value_at(data: Any, path: MemberPath) -> Any:
    """The value at a path in valid data; None if a member is missing."""
    for name in path:
        data = data.get(name)
        if data is None:
            return None
    return data


def check_event_data(event_type: str, schema_version: int, data: Any) -> None:
    """Check the data of an event against its schema, if known; raises `bad_request`."""
    kind = find_event_type(event_type, schema_version)
    if kind is None:
        return
    check_against(kind.schema, data, "/data")
    for path in kind.times:
        moment = value_at(data, path)
        if moment is not None and not formats.is_time(moment):
            raise CommunityError(
                Code.BAD_REQUEST, "this is not a valid time", where=f"/data{pointer(*path)}"
            )
