"""The uses of a contract: resolution, and the baseline uses that its kind adds.

A required use that cannot be resolved blocks; an optional one just grants nothing. Baseline uses
are added by authoring, never when a manifest is digested.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.contracts.effective import EffectiveContract
from accord.contracts.errors import ContractError
from accord.contracts.manifest import digest
from accord.contracts.surfaces import Section, Surface
from accord.kernel.finding import Finding, pointer


@dataclass(frozen=True, slots=True)
class Baseline:
    """A use that the platform adds: alias, contract, and selected names."""

    alias: str
    contract: str
    section: str
    action: str
    names: tuple[str, ...]


HEALTH: Final = Baseline("health", "trellis.health@v1", "events", "publish", ("Health.Heartbeat",))
AUTH: Final = Baseline(
    "auth", "trellis.auth@v1", "rpc", "call", ("Auth.Sessions.Me", "Auth.Sessions.Logout")
)
STATE: Final = Baseline(
    *("state", "trellis.state@v1", "rpc", "call"),
    names=("State.Get", "State.Put", "State.Delete", "State.List"),
)


def baseline(manifest: Mapping[str, Any]) -> list[Baseline]:
    """The baseline uses for a manifest's kind and sections."""
    kind = manifest.get("kind")
    uses = []
    if kind in ("service", "device") and manifest.get("id") != HEALTH.contract:
        uses.append(HEALTH)
    if kind in ("app", "agent", "device"):
        uses.append(AUTH)
    if "state" in manifest:
        uses.append(STATE)
    return uses


def with_baseline(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with baseline uses; raises ContractError if an alias names another contract."""
    result = dict(manifest)
    for use in baseline(manifest):
        result["uses"] = _merged(result.get("uses", {}), use)
    return result


def _merged(uses: Mapping[str, Any], use: Baseline) -> dict[str, Any]:
    # Where an alias is in both groups, the required one counts.
    group = next((g for g in ("required", "optional") if use.alias in uses.get(g, {})), "required")
    aliases = uses.get(group, {})
    written = aliases.get(use.alias, {"contract": use.contract})
    if written["contract"] != use.contract:
        raise ContractError(
            f"the alias {use.alias!r} is kept for {use.contract}",
            where=f"/uses/{group}/{use.alias}",
            mend="give the use another alias",
        )
    selector = written.get(use.section, {})
    names = list(dict.fromkeys((*selector.get(use.action, ()), *use.names)))
    merged = {**written, use.section: {**selector, use.action: names}}
    return {**uses, group: {**aliases, use.alias: merged}}


_SELECTORS: Final[tuple[tuple[Section, str], ...]] = (
    ("rpc", "call"),
    ("operations", "call"),
    ("events", "publish"),
    ("events", "subscribe"),
    ("feeds", "subscribe"),
)
_NOTHING: Final[Mapping[str, EffectiveContract]] = {}


@dataclass(frozen=True, slots=True)
class Use:
    """A used surface of another contract."""

    alias: str
    contract: str  # the id of the other contract
    action: str  # the list that selects it: `call`, `publish` or `subscribe`
    surface: Surface  # as in the effective contract
    pointer: str  # where the use is declared


@dataclass(frozen=True, slots=True)
class Resolution:
    """The resolved uses of one contract."""

    digest: str  # of the contract
    uses: tuple[Use, ...] = ()  # sorted by pointer
    blockers: tuple[Finding, ...] = ()  # why required uses were not resolved
    absent: tuple[Finding, ...] = ()  # why optional uses were not resolved

    @property
    def ok(self) -> bool:
        """Whether all required uses were resolved."""
        return not self.blockers


def resolve_uses(
    contract: Any,
    active: Mapping[str, EffectiveContract],
    *,
    accepted: Mapping[str, EffectiveContract] = _NOTHING,
    known: Collection[str] | None = None,
) -> Resolution:
    """Resolve the uses of a valid manifest.

    `active` and `accepted` are effective contracts by id; `accepted` are dependencies that a
    deployment has accepted. Required uses may resolve to them while nothing of that id is active;
    optional ones may not (section 6.2). `known` are ids with a known manifest, so that blockers
    tell unknown contracts from inactive ones. Raises ContractError if the contract is not valid, or
    a contract has a wrong id.
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


def _check_ids(contracts: Mapping[str, EffectiveContract]) -> None:
    for identity, effective in contracts.items():
        if effective.ok and effective.id != identity:
            raise ContractError(
                f"the effective contract under {identity} is {effective.id}",
                mend="file each effective contract under its own id",
            )


def _resolve(
    group: str,
    aliases: Mapping[str, Any],
    sources: tuple[Mapping[str, EffectiveContract], ...],
    known: Collection[str] | None,
    uses: list[Use],
) -> tuple[Finding, ...]:
    """Add the resolved uses of a group to `uses`; returns why others were not resolved."""
    missing: list[Finding] = []
    for alias, use in aliases.items():
        target = _target(use["contract"], sources, known)
        if isinstance(target, EffectiveContract):
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
    identity: str,
    sources: tuple[Mapping[str, EffectiveContract], ...],
    known: Collection[str] | None,
) -> EffectiveContract | tuple[str, str]:
    """The effective contract of an id, or rule and sentence why there is none."""
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
    path: tuple[str, str, str], use: Mapping[str, Any], target: EffectiveContract
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
