"""`resolve_uses`: what the declared dependencies of a contract lead to.

A required use that leads nowhere blocks; an optional one that does blocks nothing and grants
nothing (specification, "Declared dependencies"). Only what it is handed is looked at: it searches
no history, and decides nothing about capabilities.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.contracts.effective import Effective
from accord.contracts.errors import ContractError
from accord.contracts.manifest import digest
from accord.contracts.surface import Section, Surface
from accord.kernel.finding import Finding, pointer

_SELECTORS: Final[tuple[tuple[Section, str], ...]] = (
    ("rpc", "call"),
    ("operations", "call"),
    ("events", "publish"),
    ("events", "subscribe"),
    ("feeds", "subscribe"),
)
_NOTHING: Final[Mapping[str, Effective]] = {}


@dataclass(frozen=True, slots=True)
class Use:
    """One surface of another contract that a contract uses, and that there is.

    Attributes:
        alias: The name under which the contract uses the other.
        contract: The id of the other contract.
        action: The list that selects the surface: `call`, `publish` or `subscribe`.
        surface: The surface, as the effective contract has it.
        pointer: Where the use is declared.
    """

    alias: str
    contract: str
    action: str
    surface: Surface
    pointer: str


@dataclass(frozen=True, slots=True)
class Resolution:
    """What the uses of one contract lead to.

    Attributes:
        digest: The contract whose uses they are.
        uses: Every use that leads to a surface, in the order of pointers.
        blockers: Why required uses lead nowhere.
        absent: Why optional uses lead nowhere, which blocks nothing.
    """

    digest: str
    uses: tuple[Use, ...] = ()
    blockers: tuple[Finding, ...] = ()
    absent: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every required use leads to a surface."""
        return not self.blockers


def resolve_uses(
    contract: Any,
    active: Mapping[str, Effective],
    *,
    accepted: Mapping[str, Effective] = _NOTHING,
    known: Collection[str] | None = None,
) -> Resolution:
    """Resolve the uses of a contract.

    Args:
        contract: A valid manifest.
        active: The effective active contracts, by id.
        accepted: Dependency shapes that a deployment has accepted, by id. Required uses may lead
            there while nothing of that id is active; optional ones may not (section 6.2).
        known: The ids of which a manifest is known, active or not, where a blocker shall tell an
            unknown contract from an inactive one.

    Raises:
        ContractError: The contract is not valid, or an effective contract is filed under another
            id than its own.
    """
    for contracts in (active, accepted):
        _check_ids(contracts)
    identity = digest(contract)
    declared = contract.get("uses", {})
    required, optional = declared.get("required", {}), declared.get("optional", {})
    # Where an alias is in both groups, the required one counts.
    merely_optional = {alias: use for alias, use in optional.items() if alias not in required}
    uses: list[Use] = []
    blockers = _resolve("required", required, (active, accepted), known, uses)
    absent = _resolve("optional", merely_optional, (active,), known, uses)
    uses.sort(key=lambda use: use.pointer)
    return Resolution(identity, tuple(uses), blockers, absent)


def _check_ids(contracts: Mapping[str, Effective]) -> None:
    for identity, effective in contracts.items():
        if effective.ok and effective.id != identity:
            raise ContractError(
                f"the effective contract under {identity} is {effective.id}",
                mend="file each effective contract under its own id",
            )


def _resolve(
    group: str,
    aliases: Mapping[str, Any],
    sources: tuple[Mapping[str, Effective], ...],
    known: Collection[str] | None,
    uses: list[Use],
) -> tuple[Finding, ...]:
    """Add what the aliases of a group lead to, and say which lead nowhere, and why."""
    missing: list[Finding] = []
    for alias, use in aliases.items():
        target = _target(use["contract"], sources, known)
        if isinstance(target, Effective):
            for found in _selected(("uses", group, alias), use, target):
                if isinstance(found, Use):
                    uses.append(found)
                else:
                    missing.append(found)
        else:
            rule, message = target
            missing.append(Finding(rule, pointer("uses", group, alias, "contract"), message))
    return tuple(sorted(missing, key=lambda finding: finding.pointer))


def _target(
    identity: str, sources: tuple[Mapping[str, Effective], ...], known: Collection[str] | None
) -> Effective | tuple[str, str]:
    """The first effective contract of an id, or the rule and the sentence why there is none."""
    for source in sources:
        found = source.get(identity)
        if found is not None and found.digests:
            if found.ok:
                return found
            return (
                "uses.incompatible-offers",
                f"the active contracts of {identity} do not stand together: {found.findings[0]}",
            )
    if known is not None and identity not in known:
        return "uses.unknown-contract", f"no contract {identity} is known"
    return "uses.dependency-not-active", f"nothing active offers {identity}"


def _selected(
    path: tuple[str, str, str], use: Mapping[str, Any], target: Effective
) -> Iterator[Use | Finding]:
    for section, action in _SELECTORS:
        for at, name in enumerate(use.get(section, {}).get(action, ())):
            place = pointer(*path, section, action, at)
            surface = target.surfaces[section].get(name)
            if surface is None:
                yield Finding(
                    "uses.unknown-surface",
                    place,
                    f"{target.id} has no {name!r} among its {section}",
                )
            else:
                yield Use(path[2], target.id, action, surface, place)
