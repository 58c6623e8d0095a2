"""For whom a change would fail: the users of a contract whose surfaces it touches."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.contracts.compatibility.comparison import CompatibilityReport, ContractChange
from accord.contracts.surfaces import SECTIONS
from accord.kernel.canonical import pointer

_GRAVE: Final = ("breaking", "unproven", "migration")

UsedSurface = tuple[str, str]
"""The section and the name of a surface."""


@dataclass(frozen=True, slots=True)
class ContractUser:
    """Who relies on a contract: `uses` some of its surfaces, or `implements` it."""

    name: str
    role: str
    contract: str  # the contract under which it does so, by id
    digest: str
    surfaces: frozenset[UsedSurface] = frozenset()  # empty for who implements the contract
    live: int = 0  # instances or sessions that are there now


@dataclass(frozen=True, slots=True)
class Affected:
    """A user with the changes that concern it, the gravest first."""

    user: ContractUser
    changes: tuple[ContractChange, ...]

    @property
    def fails(self) -> bool:
        """Whether one of them is breaking, unproven or a migration."""
        return any(change.category in _GRAVE for change in self.changes)


def used_surfaces(manifest: Mapping[str, Any], contract: str) -> frozenset[UsedSurface]:
    """The surfaces of a contract that a valid manifest uses."""
    found: set[UsedSurface] = set()
    for group in manifest.get("uses", {}).values():
        for use in group.values():
            if use["contract"] == contract:
                for section in SECTIONS:
                    for names in use.get(section, {}).values():
                        found |= {(section, name) for name in names}
    return frozenset(found)


def impact(
    report: CompatibilityReport, manifest: Mapping[str, Any], users: Iterable[ContractUser]
) -> list[Affected]:
    """What the findings of a comparison mean for each user; `manifest` is the old contract.

    Who uses a contract is concerned by findings on the surfaces that it uses, on the errors that
    these declare, and on the contract as a whole; who implements it, by every finding.
    """
    return [
        Affected(user, tuple(each for each in report.findings if _concerns(each, user, manifest)))
        for user in users
    ]


def _concerns(change: ContractChange, user: ContractUser, manifest: Mapping[str, Any]) -> bool:
    if user.role == "implements" or change.pointer in ("", "/id", "/kind"):
        return True
    places = [pointer(*surface) for surface in user.surfaces]
    places += [pointer("errors", name) for name in _errors(user.surfaces, manifest)]
    return any(
        change.pointer == place or change.pointer.startswith(f"{place}/") for place in places
    )


def _errors(surfaces: Iterable[UsedSurface], manifest: Mapping[str, Any]) -> set[str]:
    """The names of the errors that surfaces declare."""
    types = {
        error["type"]
        for section, name in surfaces
        for error in manifest.get(section, {}).get(name, {}).get("errors", ())
    }
    return {name for name, error in manifest.get("errors", {}).items() if error["type"] in types}
