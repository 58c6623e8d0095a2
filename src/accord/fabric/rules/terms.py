"""The terms of a contract, ready for use: subjects, compiled schemas, capability gates. Pure.

Clients hold the terms of what they call, services those of what they answer. Contracts that
`validate` rejects are refused.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

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
    """The terms of a contract; raises FabricError if it is not valid.

    Attributes:
        manifest: The normalised manifest.
        rpc: The RPCs by name; `events` and `feeds` likewise.
    """

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
