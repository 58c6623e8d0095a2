"""The types of events, with the schemas of their data: section 7.2 of the specification.

Schemas are data files, one for each type. A type that is not known here, or a newer version of
one that is, has no schema yet: it is kept, and the fold refuses it for as long as nobody knows it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from importlib.resources import files
from typing import Any, Final

from accord.community.errors import Code, CommunityError
from accord.kernel.schema import Schema, compile_schema


class Stage(Enum):
    """In which stage of the fold a type is decided."""

    MEMBERSHIP = "membership"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class Kind:
    """One type of events.

    Attributes:
        event_type: Its name.
        version: The schema version that this code writes and knows.
        stage: Where the fold decides it.
        schema: What its data must be.
    """

    event_type: str
    version: int
    stage: Stage
    schema: Schema


def _load() -> dict[str, Kind]:
    folder = files("accord.community").joinpath("data", "events")
    found: dict[str, Kind] = {}
    for file in sorted(folder.iterdir(), key=lambda each: each.name):
        event_type = file.name.removesuffix(".json")
        is_membership = event_type.startswith("community.")
        found[event_type] = Kind(
            event_type,
            1,
            Stage.MEMBERSHIP if is_membership else Stage.CONTENT,
            compile_schema(json.loads(file.read_bytes())),
        )
    return found


KINDS: Final[Mapping[str, Kind]] = _load()
"""Every type that this code knows."""


def version(event_type: str) -> int:
    """The schema version in which events of a type are written.

    Raises:
        CommunityError: The type is not known: `bad_request`.
    """
    kind = KINDS.get(event_type)
    if kind is None:
        raise CommunityError(Code.BAD_REQUEST, f"there is no event type {event_type[:80]!r}")
    return kind.version


def check(event_type: str, schema_version: int, data: Any) -> None:
    """Check the data of an event against the schema of its type, where it is known.

    Raises:
        CommunityError: `bad_request`, with the first thing that is wrong and all findings.
    """
    kind = KINDS.get(event_type)
    if kind is None or schema_version > kind.version or kind.schema.is_valid(data):
        return
    findings = kind.schema.findings(data)
    raise CommunityError(
        Code.BAD_REQUEST,
        findings[0].message,
        where=f"/data{findings[0].pointer}",
        findings=findings,
    )
