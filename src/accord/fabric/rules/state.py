"""State entries, migrated to the current version of the contract. Pure.

An entry of an older version is validated by that version's schema, migrated by the program's
function, and validated again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accord.fabric.rules import payloads
from accord.fabric.rules.errors import NotFoundError, ValidationError
from accord.fabric.rules.terms import Terms
from accord.kernel.schema import Schema

Migration = Callable[[Any], Any]
"""Converts a value of an older version to the current one."""


@dataclass(frozen=True, slots=True)
class StateEntry:
    """A stored value."""

    value: Any
    revision: int
    updated_at: float  # seconds since the epoch
    key: str | None = None  # None in a store of one value
    # The older version under which it is stored until it is put again.
    migrated_from: str | None = None


class StateTerms:
    """A state store as declared; `migrations` are functions by older version.

    Raises:
        NotFoundError: The contract declares no such store.
        ValidationError: A migration is missing, or for a version that is not accepted.
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

    def read(self, answer: Mapping[str, Any]) -> StateEntry:
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
            raise payloads.broken(schema, value, f"the entry of version {version}")
        carried = migrate(value)
        self.check(carried)
        return StateEntry(carried, revision, at, answer.get("key"), version)

    def check(self, value: Any) -> None:
        """Raise ValidationError if a value breaks the current schema."""
        payloads.write(self.schema, value, f"the state {self.name}")
