"""What a state store holds, in the version that the contract knows now. Pure.

An entry may have been written under an older version. Then it is checked against the schema of that
version, carried over by the migration that the program gives, and checked against the new one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accord.fabric import payloads
from accord.fabric.errors import NotFoundError, ValidationError
from accord.fabric.terms import Terms
from accord.kernel.schema import Schema

Migration = Callable[[Any], Any]
"""From a value of an older version to one of the current version."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is kept.

    Attributes:
        revision: For writing only where nobody wrote meanwhile.
        updated_at: When it was written, in seconds since the epoch.
        key: Its key, in a map.
        migrated_from: The version that it was written under, where that is an older one. It is
            kept so until it is put again.
    """

    value: Any
    revision: int
    updated_at: float
    key: str | None = None
    migrated_from: str | None = None


class Declared:
    """A state store as the contract declares it.

    Args:
        terms: The contract.
        name: The store.
        migrations: For each older version that the contract accepts, what carries values over.

    Raises:
        NotFoundError: The contract declares no such store.
        ValidationError: A migration is missing, or for a version that the contract does not know.
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

    def read(self, answer: Mapping[str, Any]) -> Entry:
        """An entry that came, carried over where it is of an older version.

        Raises:
            ValidationError: It is none, of a version that the contract does not know, or breaks
                its schema.
        """
        try:
            value, version = answer["value"], answer["stateVersion"]
            revision, at = answer["revision"], float(answer["updatedAt"])
        except (KeyError, TypeError, ValueError):
            raise ValidationError("what came is no entry of a state store") from None
        if version == self.version:
            self.check(value)
            return Entry(value, revision, at, answer.get("key"))
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
        return Entry(carried, revision, at, answer.get("key"), version)

    def check(self, value: Any) -> None:
        """Refuse what is no value of the current version.

        Raises:
            ValidationError: It breaks the schema.
        """
        payloads.write(self.schema, value, f"the state {self.name}")
