"""The terms of one contract, ready to be kept: subjects, compiled schemas, gates.

A client holds the terms of what it calls, a service those of what it answers. Pure; it takes
contracts that `validate` accepts and refuses others.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from accord.contracts import ContractError, digest, normalize
from accord.contracts.authoring import Contract
from accord.contracts.subjects import template_pointers, wildcard
from accord.contracts.surface import Surface, surfaces
from accord.fabric.errors import FabricError, NotFoundError
from accord.kernel.schema import Schema, SchemaError, compile_schema

Manifest = Mapping[str, Any]

# How many names an error offers instead, the nearest first.
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
    """What is published; `pointers` lead to the values that fill the subject in."""

    name: str
    subject: str
    wildcard: str
    pointers: tuple[str, ...]
    event: Schema
    gates: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Feed:
    """A request, and the stream that answers it."""

    name: str
    subject: str
    input: Schema
    event: Schema
    gates: Mapping[str, frozenset[str]]


class Terms:
    """What one contract says.

    Args:
        contract: A manifest, or a contract being authored.

    Attributes:
        manifest: The normalised manifest.
        id: The contract's id.
        digest: The contract's digest.
        rpc: The RPCs, by name; `events` and `feeds` likewise.

    Raises:
        FabricError: The contract is not valid.
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
        """The compiled schema that a reference such as `{"schema": "User"}` names."""
        return compile_schema(self.manifest["schemas"][reference["schema"]])

    def surface(self, section: str, name: str) -> Surface:
        """A surface by the section that declares it and its name.

        Raises:
            NotFoundError: The contract declares none.
        """
        found = self._surfaces.get((section, name))
        if found is None:
            known = [each for group, each in self._surfaces if group == section]
            raise missing(self.id, section, name, known)
        return found

    def uses(self, contract_id: str, section: str, action: str, name: str) -> bool:
        """Whether the contract declares that it uses a surface of another."""
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
        """The schema of a declared error: a reference, or one that stands where it is declared."""
        for declared in self.manifest.get("errors", {}).values():
            if declared["type"] == kind and "schema" in declared:
                schema = declared["schema"]
                if isinstance(schema, dict) and isinstance(schema.get("schema"), str):
                    return self.schema(schema)
                return compile_schema(schema)
        return None


def missing(contract_id: str, section: str, name: str, known: Iterable[str] = ()) -> NotFoundError:
    """The error for a surface that a contract does not declare, with those that it does."""
    near = get_close_matches(name, list(known), n=_OFFERED, cutoff=0.0)
    mend = f"use one of {', '.join(near)}" if near else None
    return NotFoundError(f"{contract_id} has no {name!r} among its {section}", mend=mend)
