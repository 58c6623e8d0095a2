"""The types of events, with the schemas of their data: section 7.2 of the specification.

Schemas are data files, one for each type. A type that is not known here, or a newer version of
one that is, has no schema yet: it is kept, and the fold refuses it for as long as nobody knows it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from accord.community.envelope import definitions, forms
from accord.community.envelope.definitions import Path
from accord.community.errors import Code, CommunityError
from accord.kernel.finding import pointer
from accord.kernel.schema import Schema


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
        times: Where its data holds timestamps.
        manifests: Where its data holds a node manifest, which is its author's own.
        intents: Where its data holds co-signatures.
    """

    event_type: str
    version: int
    stage: Stage
    schema: Schema
    times: tuple[Path, ...]
    manifests: tuple[Path, ...]
    intents: tuple[Path, ...]


def _load(event_type: str) -> Kind:
    schema = definitions.event_schema(event_type)
    return Kind(
        event_type,
        1,
        Stage.MEMBERSHIP if event_type.startswith("community.") else Stage.CONTENT,
        definitions.compiled(schema),
        definitions.places(schema, "time"),
        definitions.places(schema, "node_manifest"),
        definitions.places(schema, "co_signers"),
    )


KINDS: Final[Mapping[str, Kind]] = {name: _load(name) for name in definitions.event_types()}
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


def known(event_type: str, schema_version: int) -> Kind | None:
    """The kind of an event; None when this code does not know the type, or this version of it."""
    kind = KINDS.get(event_type)
    return None if kind is None or schema_version > kind.version else kind


def at(data: Any, path: Path) -> Any:
    """What stands at a place in data that keeps its schema; None where a member is left out."""
    for name in path:
        data = data.get(name)
        if data is None:
            return None
    return data


def check(event_type: str, schema_version: int, data: Any) -> None:
    """Check the data of an event against the schema of its type, where it is known.

    Raises:
        CommunityError: `bad_request`, with the first thing that is wrong and all findings.
    """
    kind = known(event_type, schema_version)
    if kind is None:
        return
    definitions.check(kind.schema, data, "/data")
    for path in kind.times:
        moment = at(data, path)
        if moment is not None and not forms.is_time(moment):
            raise CommunityError(
                Code.BAD_REQUEST, "there is no such moment", where=f"/data{pointer(*path)}"
            )
