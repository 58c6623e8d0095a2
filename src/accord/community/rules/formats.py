"""Text forms and JSON schemas of everything that is signed, and the event types.

Section 7.2 of the specification lists the event types; they are read from data files.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import lru_cache
from importlib.resources import files
from ipaddress import ip_address
from typing import Any, Final, Self

from accord.community.errors import Code, CommunityError, bad_request
from accord.kernel import canonical, signing
from accord.kernel.canonical import pointer
from accord.kernel.clock import TimestampError, parse_time
from accord.kernel.schema import Schema, compile_schema

_PREFIX: Final = "ed25519:"
_ID_LENGTH: Final = len(_PREFIX) + 43
_MAX_HOST: Final = 253
_LABEL: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)
# What some systems take for an IPv4 address, such as 127.1, 2130706433 or 0x7f.1.
_NUMBER: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*", re.ASCII)


def is_id(value: Any) -> bool:
    """Whether this is the full id of a node or a community."""
    return public_key(value) is not None


def public_key(value: Any) -> bytes | None:
    """The public key in a full id; None if it is malformed."""
    if not isinstance(value, str) or len(value) != _ID_LENGTH:
        return None
    return _public_key(value)


@lru_cache(maxsize=4096)  # a log has few authors and many events
def _public_key(text: str) -> bytes | None:
    try:
        return signing.parse_id(text)
    except signing.SigningError:
        return None


def is_time(value: Any) -> bool:
    """Whether this is a timestamp such as 2026-05-26T08:14:22Z."""
    if not isinstance(value, str):
        return False
    try:
        parse_time(value)
    except TimestampError:
        return False
    return True


def is_host(value: Any) -> bool:
    """Whether this is a DNS name or an IP address, and nothing else."""
    if not isinstance(value, str) or not 0 < len(value) <= _MAX_HOST:
        return False
    try:
        ip_address(value)
    except ValueError:
        labels = value.split(".")
        return all(map(_LABEL.fullmatch, labels)) and not _NUMBER.fullmatch(labels[-1])
    return "%" not in value


def write_signature(signature: bytes) -> str:
    """A signature as text."""
    return _PREFIX + canonical.encode_base64url(signature)


def read_signature(value: Any) -> bytes | None:
    """The 64 bytes of a signature; None if it is malformed."""
    if not isinstance(value, str) or not value.startswith(_PREFIX):
        return None
    try:
        signature = canonical.decode_base64url(value.removeprefix(_PREFIX))
    except canonical.Base64Error:
        return None
    return signature if len(signature) == signing.SIGNATURE_SIZE else None


def signed_bytes(payload: Mapping[str, Any]) -> bytes:
    """The canonical bytes that a payload's signature covers; `bad_request` if there are none."""
    try:
        return signing.signed_bytes(payload)
    except canonical.CanonicalError as error:
        raise bad_request(error.what, where=error.where) from None


class Level(IntEnum):
    """Trust levels; a higher one includes the lower ones."""

    UNKNOWN = 0
    MEMBER = 1
    TRUSTED = 2
    ANCHOR = 3

    @property
    def text(self) -> str:
        """The level in its protocol form."""
        return self.name.lower()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a level; raises `bad_request`."""
        for level in cls:
            if level.text == text:
                return level
        raise bad_request(
            f"there is no trust level {text[:40]!r}",
            mend="expected unknown, member, trusted or anchor",
        )


def display_id(node_id: str) -> str:
    """An id for people: its first ten bytes in four groups of four; `bad_request` if malformed.

    Not for decisions: keys can be generated until these ten bytes match.
    """
    try:
        public = signing.parse_id(node_id)
    except signing.SigningError as error:
        raise bad_request(error.what, mend=error.mend) from None
    text = base64.b32encode(public[:10]).decode("ascii")
    return "-".join(text[start : start + 4] for start in range(0, 16, 4))


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
        raise bad_request(f"there is no event type {event_type[:80]!r}")
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
        if moment is not None and not is_time(moment):
            raise bad_request("this is not a valid time", where=f"/data{pointer(*path)}")
