"""The effective contract of a lineage, and the uses of others that resolve to such contracts.

`union` merges the active digests of a lineage. It requires coexistence: callers built against
either digest may be answered by either (specification, sections 6.2 and 13). `collisions` counts
overlapping subjects, not only equal ones: a subscription to `a.*` receives what is sent to `a.b`
(section 15).

A required use that cannot be resolved blocks; an optional one just grants nothing. Baseline uses,
which a contract's kind adds, are added by authoring, never when a manifest is digested.
"""

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from accord.contracts.compatibility import CompatibilityReport, compare
from accord.contracts.errors import ContractError
from accord.contracts.manifest import digest
from accord.contracts.surfaces import (
    SECTIONS,
    Section,
    Surface,
    effective_subjects,
    overlap,
    surfaces,
)
from accord.kernel.canonical import pointer
from accord.kernel.errors import Finding

MAX_COLLISIONS: Final = 100
"""How many collisions are listed at most."""

# Limit of compared tokens: a constant, and some for each token.
_EFFORT: Final = 500_000
_EFFORT_PER_TOKEN: Final = 20
_SECTION: Final = {"operation": "operations", "control": "operations", "event": "events"}


class _Owner(NamedTuple):
    contract: str
    kind: str
    name: str

    def __str__(self) -> str:
        return f"the {self.kind} {self.name!r} of {self.contract}"

    @property
    def pointer(self) -> str:
        section = "feeds" if self.kind == "feed" else _SECTION.get(self.kind, self.kind)
        return pointer(self.contract, section, self.name, "subject")


def collisions(contracts: Iterable[Any]) -> list[Finding]:
    """Every two surfaces that collide, at most MAX_COLLISIONS; the order does not matter.

    A finding's pointer begins with a contract id. Raises ContractError, with the
    findings, if a contract is not valid.
    """
    owners: defaultdict[str, set[_Owner]] = defaultdict(set)
    for contract in contracts:
        digest(contract)
        for owned in effective_subjects(contract):
            owners[owned.subject].add(_Owner(contract["id"], owned.kind, owned.name))
    found: list[Finding] = []
    for finding in _collisions({subject: sorted(owners[subject]) for subject in sorted(owners)}):
        if len(found) == MAX_COLLISIONS:
            break
        found.append(finding)
    return found


def _collisions(owners: dict[str, list[_Owner]]) -> Iterator[Finding]:
    for subject, (first, *others) in owners.items():
        for other in others:
            yield Finding(
                "collision.same-subject", other.pointer, f"{subject!r}, of {other}, is {first}"
            )
    for pair in _overlaps(owners):
        if pair is None:
            yield Finding(
                "collision.unproven",
                "",
                "there are too many subjects with templates at the same places to tell whether"
                " they overlap; put the names before the templates",
            )
            return
        subject, wildcard = pair
        for other in owners[subject]:
            for first in owners[wildcard]:
                if other != first:
                    yield Finding(
                        "collision.overlapping-subjects",
                        other.pointer,
                        f"{subject!r}, of {other}, overlaps {wildcard!r}, of {first}",
                    )


def _overlaps(subjects: Iterable[str]) -> Iterator[tuple[str, str] | None]:
    """Pairs of different subjects that overlap, the second with a wildcard; None to give up.

    Overlapping subjects have, at each position, the same token or a wildcard. Subjects are indexed
    by length and token, and only the position with the fewest candidates is searched.
    """
    index: defaultdict[tuple[int, int, str], list[str]] = defaultdict(list)
    tokens = {subject: subject.split(".") for subject in subjects}
    lengths = {len(parts) for parts in tokens.values() if "*" in parts}
    for subject, parts in tokens.items():
        if len(parts) in lengths:
            for place, part in enumerate(parts):
                index[len(parts), place, part].append(subject)
    effort = _EFFORT + _EFFORT_PER_TOKEN * sum(map(len, tokens.values()))
    for subject, parts in tokens.items():
        if "*" not in parts:
            continue
        places = [
            (index[len(parts), place, part], index.get((len(parts), place, "*"), []))
            for place, part in enumerate(parts)
            if part != "*"
        ]
        for candidates in min(places, key=lambda lists: len(lists[0]) + len(lists[1])):
            for candidate in candidates:
                effort -= len(parts)
                if effort < 0:
                    yield None
                    return
                # Two subjects with wildcards meet twice but are reported once.
                if ("*" not in tokens[candidate] or candidate > subject) and overlap(
                    candidate, subject
                ):
                    yield candidate, subject


Surfaces = Mapping[Section, Mapping[str, Surface]]

_PLATFORM: Final = "trellis."
_BLOCKING: Final = ("breaking", "unproven")


@dataclass(frozen=True, slots=True)
class EffectiveContract:
    """What the active digests of one lineage offer together."""

    id: str  # empty if the contracts do not share one
    digests: tuple[str, ...] = ()  # sorted
    # By section and name; empty unless `ok`.
    surfaces: Surfaces = field(default_factory=lambda: _arranged(()))
    findings: tuple[Finding, ...] = ()  # why the digests may not be active together

    @property
    def ok(self) -> bool:
        """Whether the digests may be active together."""
        return not self.findings


Lineage = Mapping[str, Mapping[str, Any]]
"""Valid contracts by digest, in the order of the digests."""


def union(contracts: Sequence[Any]) -> EffectiveContract:
    """Merge the contracts of a lineage, in any order, or say why not; may raise ContractError."""
    presented = {digest(contract): contract for contract in contracts}
    lineage = {key: presented[key] for key in sorted(presented)}
    ids = {contract["id"] for contract in lineage.values()}
    identity = ids.pop() if len(ids) == 1 else ""
    findings = next(filter(None, (tuple(rule.check(lineage)) for rule in RULES)), ())
    merged = () if findings else _merged(lineage).values()
    return EffectiveContract(identity, tuple(lineage), _arranged(merged), findings)


@dataclass(frozen=True, slots=True)
class EffectiveRule:
    """A requirement on contracts that are active together."""

    id: str  # stable; named by findings, except those passed on from the comparison
    category: str
    purpose: str  # one sentence for people
    # Yields the findings; it may rely on earlier rules.
    check: Callable[[Lineage], Iterator[Finding]]


def _some(lineage: Lineage) -> Iterator[Finding]:
    """There is at least one contract."""
    if not lineage:
        yield Finding("effective.no-contract", "", "there is no contract to put together")


def _one_id(lineage: Lineage) -> Iterator[Finding]:
    """They are of one lineage."""
    ids = sorted({contract["id"] for contract in lineage.values()})
    if len(ids) > 1:
        yield Finding(
            "effective.different-ids",
            "/id",
            f"contracts of different lineages have no union: {', '.join(ids[:10])}",
        )


def _one_platform_digest(lineage: Lineage) -> Iterator[Finding]:
    """The platform's own contracts are active in one digest only (section 6.1)."""
    identity = next(iter(lineage.values()))["id"]
    if identity.startswith(_PLATFORM) and len(lineage) > 1:
        yield Finding(
            "effective.several-platform-digests",
            "/id",
            f"{identity} is the platform's own, and only one digest of it may be active",
        )


def _coexisting(lineage: Lineage) -> Iterator[Finding]:
    """Each two may answer at once (section 6.2)."""
    for (one, ours), (other, theirs) in itertools.combinations(lineage.items(), 2):
        # Which of them is the older one is not known here: either may be what the other adds to.
        forth = compare(ours, theirs, "coexistence")
        if not forth.compatible:
            back = compare(theirs, ours, "coexistence")
            yield from _passed_on(min(forth, back, key=_hindrances), f"{one} and {other}")


def _hindrances(report: CompatibilityReport) -> int:
    return sum(finding.category in _BLOCKING for finding in report.findings)


def _passed_on(report: CompatibilityReport, pair: str) -> Iterator[Finding]:
    for finding in report.findings:
        if finding.category in _BLOCKING:
            yield Finding(finding.rule, finding.pointer, f"between {pair}: {finding.message}")


def _mergeable(lineage: Lineage) -> Iterator[Finding]:
    """What they declare of the same surface is one and the same authority."""
    for (section, name), surface in _merged(lineage).items():
        if surface is None:
            yield Finding(
                "effective.divergent-surface",
                pointer(section, name),
                f"the contracts differ in subject, capabilities or transfer of {name!r}",
            )


RULES: Final = tuple(
    EffectiveRule(identity, "effective", (check.__doc__ or "").strip(), check)
    for identity, check in (
        ("effective.no-contract", _some),
        ("effective.different-ids", _one_id),
        ("effective.several-platform-digests", _one_platform_digest),
        ("effective.not-coexisting", _coexisting),
        ("effective.divergent-surface", _mergeable),
    )
)
"""Every rule in order; the first one with findings is the last."""


def _merged(lineage: Lineage) -> dict[tuple[Section, str], Surface | None]:
    """Every surface of any contract; None where they diverge."""
    merged: dict[tuple[Section, str], Surface | None] = {}
    for key, contract in lineage.items():
        for surface in surfaces(contract, (key,)):
            place = surface.section, surface.name
            merged[place] = _together(merged[place], surface) if place in merged else surface
    return merged


def _together(one: Surface | None, other: Surface) -> Surface | None:
    if one is None or (one.subject, one.transfer) != (other.subject, other.transfer):
        return None
    # An action that only one of them has was added: the other refuses it by itself.
    if any(one.gates[action] != other.gates[action] for action in one.gates.keys() & other.gates):
        return None
    gates = {**one.gates, **other.gates}
    return dataclasses.replace(one, gates=gates, digests=(*one.digests, *other.digests))


def _arranged(merged: Iterable[Surface | None]) -> Surfaces:
    arranged: dict[Section, dict[str, Surface]] = {section: {} for section in SECTIONS}
    for surface in merged:
        if surface is not None:
            arranged[surface.section][surface.name] = surface
    return arranged


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
        result["uses"] = _with_use(result.get("uses", {}), use)
    return result


def _with_use(uses: Mapping[str, Any], use: Baseline) -> dict[str, Any]:
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
