"""`union`: the effective active contract of several digests of one lineage.

It decides by coexistence, which holds when callers built against either digest may be answered by
either (specification, sections 6.2 and 13). It fails closed: what may not stand together offers
nothing. It invents no digest for the union.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from accord.contracts.compatibility import Report, compare
from accord.contracts.manifest import digest
from accord.contracts.surface import SECTIONS, Section, Surface, surfaces
from accord.kernel.finding import Finding, pointer

Surfaces = Mapping[Section, Mapping[str, Surface]]

_PLATFORM: Final = "trellis."
_BLOCKING: Final = ("breaking", "unproven")


@dataclass(frozen=True, slots=True)
class Effective:
    """What the active digests of one lineage offer together.

    Attributes:
        id: The contract id; empty where the contracts have no single one.
        digests: What was put together, in order.
        surfaces: The merged surfaces by section and name; none unless `ok`.
        findings: Why the digests may not be active together.
    """

    id: str
    digests: tuple[str, ...] = ()
    surfaces: Surfaces = field(default_factory=lambda: _arranged(()))
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the digests may be active together."""
        return not self.findings


Lineage = Mapping[str, Mapping[str, Any]]
"""Valid contracts by digest, in the order of the digests."""


def union(contracts: Sequence[Any]) -> Effective:
    """Put the contracts of one lineage together, or say why not; their order does not matter.

    Raises:
        ContractError: One of them is not a valid contract; it carries the findings.
    """
    presented = {digest(contract): contract for contract in contracts}
    lineage = {key: presented[key] for key in sorted(presented)}
    ids = {contract["id"] for contract in lineage.values()}
    identity = ids.pop() if len(ids) == 1 else ""
    findings = next(filter(None, (tuple(rule.check(lineage)) for rule in RULES)), ())
    merged = () if findings else _merged(lineage).values()
    return Effective(identity, tuple(lineage), _arranged(merged), findings)


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is asked of contracts that shall be active together.

    Attributes:
        id: Stable, and what a finding names, unless it passes on one of the comparison.
        category: What the rule is about.
        purpose: One sentence for a person.
        check: Yields the findings; it may rely on the rules before it.
    """

    id: str
    category: str
    purpose: str
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


def _hindrances(report: Report) -> int:
    return sum(finding.category in _BLOCKING for finding in report.findings)


def _passed_on(report: Report, pair: str) -> Iterator[Finding]:
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
    Rule(identity, "effective", (check.__doc__ or "").strip(), check)
    for identity, check in (
        ("effective.no-contract", _some),
        ("effective.different-ids", _one_id),
        ("effective.several-platform-digests", _one_platform_digest),
        ("effective.not-coexisting", _coexisting),
        ("effective.divergent-surface", _mergeable),
    )
)
"""Every rule, in order: the first that has findings ends it."""


def _merged(lineage: Lineage) -> dict[tuple[Section, str], Surface | None]:
    """Every surface that any of them has; None where they diverge."""
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
