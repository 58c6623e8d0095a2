"""The terms of a contract, ready for use: subjects, schemas, capability gates, state. Pure.

Clients hold the terms of what they call, services those of what they answer. Payloads are checked
against the schema of their surface on both ends. A state entry of an older version is validated by
that version's schema, migrated by the program's function, and validated again.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, Generic

from typing_extensions import TypeVar

from accord.contracts import ContractError, digest, normalize
from accord.contracts.authoring import Contract
from accord.contracts.surfaces import (
    Surface,
    escape_token,
    overlap,
    surfaces,
    template_pointers,
    wildcard,
)
from accord.fabric.rules.errors import FabricError, NotFoundError, ValidationError
from accord.kernel import canonical
from accord.kernel.schema import Schema, SchemaError, compile_schema


def write_payload(schema: Schema, value: Any, what: str) -> bytes:
    """A payload's bytes; raises ValidationError if it is not JSON or breaks the schema."""
    try:
        data = canonical.encode(value)
    except canonical.CanonicalError as error:
        raise ValidationError(f"{what} is not JSON: {error}") from None
    _check(schema, value, data, what)
    return data


def read_payload(schema: Schema, data: bytes, what: str) -> Any:
    """The payload of a message; raises ValidationError if it is not JSON or breaks the schema."""
    value = parse_json(data, what)
    if not schema.is_valid(value):
        raise broken_payload(schema, value, what)
    return value


def parse_json(data: bytes, what: str) -> Any:
    """Parse strict JSON; raises ValidationError."""
    try:
        return canonical.decode(data)
    except canonical.CanonicalError as error:
        raise ValidationError(f"{what} is not JSON: {error}") from None


def _check(schema: Schema, value: Any, data: bytes, what: str) -> None:
    """Raise ValidationError if a value breaks the schema; `data` is the encoded value."""
    try:
        kept = schema.is_valid(value)
    except (TypeError, ValueError):  # tuples and enums, which only the encoder accepts
        value = canonical.decode(data, max_bytes=len(data))
        kept = schema.is_valid(value)
    if not kept:
        raise broken_payload(schema, value, what)


def broken_payload(schema: Schema, value: Any, what: str) -> ValidationError:
    """The error that says how a value breaks a schema."""
    findings = schema.findings(value)
    return ValidationError.of(f"{what} does not keep the contract", findings)


Manifest = Mapping[str, Any]

# How many similar names an error suggests.
_OFFERED: Final = 8


@dataclass(frozen=True, slots=True)
class Rpc:
    """A request and its reply."""

    name: str
    subject: str
    input: Schema
    output: Schema
    gates: Mapping[str, frozenset[str]]
    errors: Mapping[str, Schema | None]


@dataclass(frozen=True, slots=True)
class Event:
    """An event; `pointers` lead to the payload values that are filled into the subject."""

    name: str
    subject: str
    wildcard: str
    pointers: tuple[str, ...]
    event: Schema
    gates: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Feed:
    """A request that is answered by a stream."""

    name: str
    subject: str
    input: Schema
    event: Schema
    gates: Mapping[str, frozenset[str]]


class Terms:
    """The terms of a contract; raises FabricError if it is not valid."""

    def __init__(self, contract: Manifest | Contract) -> None:
        try:
            given = contract.manifest() if isinstance(contract, Contract) else contract
            self.digest = digest(given)
            self.manifest: dict[str, Any] = normalize(given)
            self.id: str = self.manifest["id"]
            self._surfaces: dict[tuple[str, str], Surface] = {
                (each.section, each.name): each for each in surfaces(self.manifest)
            }
            self.rpc = {name: self._rpc(name, it) for name, it in self._section("rpc")}
            self.events = {name: self._event(name, it) for name, it in self._section("events")}
            self.feeds = {name: self._feed(name, it) for name, it in self._section("feeds")}
        except (ContractError, SchemaError) as error:
            raise FabricError(f"the contract cannot be used: {error}") from error

    def schema(self, reference: Mapping[str, Any]) -> Schema:
        """The compiled schema of a reference such as `{"schema": "User"}`."""
        return compile_schema(self.manifest["schemas"][reference["schema"]])

    def surface(self, section: str, name: str) -> Surface:
        """A surface by section and name; raises NotFoundError."""
        found = self._surfaces.get((section, name))
        if found is None:
            known = [each for group, each in self._surfaces if group == section]
            raise missing_surface(self.id, section, name, known)
        return found

    def uses(self, contract_id: str, section: str, action: str, name: str) -> bool:
        """Whether the contract declares that it uses a surface of another contract."""
        groups = self.manifest.get("uses", {})
        return any(
            use["contract"] == contract_id and name in use.get(section, {}).get(action, ())
            for group in ("required", "optional")
            for use in groups.get(group, {}).values()
        )

    def _section(self, section: str) -> list[tuple[str, dict[str, Any]]]:
        return list(self.manifest.get(section, {}).items())

    def _rpc(self, name: str, declared: Mapping[str, Any]) -> Rpc:
        return Rpc(
            name,
            declared["subject"],
            self.schema(declared["input"]),
            self.schema(declared["output"]),
            self.surface("rpc", name).gates,
            {each["type"]: self._error(each["type"]) for each in declared.get("errors", ())},
        )

    def _event(self, name: str, declared: Mapping[str, Any]) -> Event:
        subject = declared["subject"]
        return Event(
            name,
            subject,
            wildcard(subject),
            tuple(template_pointers(subject)),
            self.schema(declared["event"]),
            self.surface("events", name).gates,
        )

    def _feed(self, name: str, declared: Mapping[str, Any]) -> Feed:
        return Feed(
            name,
            declared["subject"],
            self.schema(declared["input"]),
            self.schema(declared["event"]),
            self.surface("feeds", name).gates,
        )

    def _error(self, kind: str) -> Schema | None:
        """The schema of a declared error, given by reference or inline."""
        for declared in self.manifest.get("errors", {}).values():
            if declared["type"] == kind and "schema" in declared:
                schema = declared["schema"]
                if isinstance(schema, dict) and isinstance(schema.get("schema"), str):
                    return self.schema(schema)
                return compile_schema(schema)
        return None


def missing_surface(
    contract_id: str, section: str, name: str, known: Iterable[str] = ()
) -> NotFoundError:
    """The error for an undeclared surface; it suggests similar names of `known`."""
    near = get_close_matches(name, list(known), n=_OFFERED, cutoff=0.0)
    mend = f"use one of {', '.join(near)}" if near else None
    return NotFoundError(f"{contract_id} has no {name!r} among its {section}", mend=mend)


_TEMPLATE: Final = re.compile(r"\{([^{}]*)\}")


def event_subject(event: Event, payload: Any) -> str:
    """The subject filled in from the payload; ValidationError if a value is missing or unfit."""

    def token(pointer: str) -> str:
        found = _token(payload, pointer)
        if found is None:
            raise ValidationError(
                f"{event.name} needs a text or a number at {pointer} for its subject",
                issues=[{"path": pointer, "message": "no text and no number"}],
            )
        return found

    return _filled(event, token)


def event_pattern(event: Event, where: Mapping[str, str | int | float] | None) -> str:
    """The subject to listen on, narrowed by pointer; ValidationError for an unknown pointer."""
    given = where or {}
    if unknown := set(given) - set(event.pointers):
        raise ValidationError(
            f"the subject of {event.name} has no {min(unknown)}",
            mend=f"choose from {', '.join(event.pointers) or 'none'}",
        )
    return _filled(event, lambda pointer: _written(given.get(pointer)) or "*")


def event_on(subject: str, events: Iterable[Event]) -> Event | None:
    """The event that is published on a subject, or None."""
    return next((event for event in events if overlap(event.wildcard, subject)), None)


def _filled(event: Event, token: Callable[[str], str]) -> str:
    return _TEMPLATE.sub(lambda found: token(found[1]), event.subject)


def _token(payload: Any, pointer: str) -> str | None:
    value = payload
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return _written(value)


def _written(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return escape_token(value if isinstance(value, str) else canonical.encode(value).decode())


Migration = Callable[[Any], Any]
"""Converts a value of an older version to the current one."""


T = TypeVar("T", default=Any)


@dataclass(frozen=True, slots=True)
class StateEntry(Generic[T]):
    """A stored value."""

    value: T
    revision: int
    updated_at: float  # seconds since the epoch
    key: str | None = None  # None in a store of one value
    # The older version under which it is stored until it is put again.
    migrated_from: str | None = None


class StateTerms:
    """A state store as declared; `migrations` are functions by older version.

    Raises NotFoundError if it is not declared, ValidationError if a migration is missing or
    unknown.
    """

    def __init__(
        self, terms: Terms, name: str, migrations: Mapping[str, Migration] | None = None
    ) -> None:
        declared = terms.manifest.get("state", {}).get(name)
        if declared is None:
            raise NotFoundError(f"{terms.id} has no {name!r} among its state")
        self.name = name
        self.is_map: bool = declared["kind"] == "map"
        self.version: str = declared.get("stateVersion", "v1")
        self.schema: Schema = terms.schema(declared["schema"])
        self._older: dict[str, tuple[Schema, Migration]] = {}
        accepted = declared.get("acceptedVersions", {})
        given = dict(migrations or {})
        if set(given) != set(accepted):
            odd = ", ".join(sorted(set(given) ^ set(accepted)))
            raise ValidationError(
                f"the state {name!r} needs one migration for each older version: {odd}",
                mend="give a function for each of `acceptedVersions`, and for no other",
            )
        for version, reference in accepted.items():
            self._older[version] = (terms.schema(reference), given[version])

    def read(self, answer: Mapping[str, Any]) -> StateEntry[Any]:
        """An entry from an answer, migrated to the current version; raises ValidationError."""
        try:
            value, version = answer["value"], answer["stateVersion"]
            revision, at = answer["revision"], float(answer["updatedAt"])
        except (KeyError, TypeError, ValueError):
            raise ValidationError("the answer is not a state entry") from None
        if version == self.version:
            self.check(value)
            return StateEntry(value, revision, at, answer.get("key"))
        older = self._older.get(version)
        if older is None:
            raise ValidationError(
                f"the entry is of version {str(version)[:80]!r}, which the contract does not know",
                mend="accept that version in the contract, with a migration",
            )
        schema, migrate = older
        if not schema.is_valid(value):
            raise broken_payload(schema, value, f"the entry of version {version}")
        carried = migrate(value)
        self.check(carried)
        return StateEntry(carried, revision, at, answer.get("key"), version)

    def check(self, value: Any) -> None:
        """Raise ValidationError if a value breaks the current schema."""
        write_payload(self.schema, value, f"the state {self.name}")
