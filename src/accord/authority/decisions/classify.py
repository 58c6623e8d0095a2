"""How far a proposal goes beyond what was accepted: nothing, an update, a migration, or blocked.

What a contract asks for and does not have is an update. What may fail, lose or double something of
those who rely on the contract is a migration: replacement against the latest accepted digest,
coexistence with every other active offer (sections 6.2, 10 and 15). A blocker ends it: no plan
could be accepted now. Accepting gives the new desired state; making it real is somebody else's.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from accord.authority.decisions.needs import Descriptor, Needs, ResourceKey, declared, needs
from accord.authority.decisions.resources import unsafe
from accord.authority.errors import Code
from accord.authority.records import Classification, Deployment, Desired
from accord.contracts import Effective, Report, Resolution, compare
from accord.contracts.compatibility import Relation
from accord.kernel.finding import Finding

MAX_FINDINGS: Final = 100
"""Findings that a plan keeps for those who review it."""

Compare = Callable[[str, str, Relation], Report]
"""Compares an old digest with a new one in a relation."""

_CODES: Final = {
    "uses.unknown-contract": Code.DEPENDENCY_UNKNOWN,
}


class Blocker(NamedTuple):
    """Why no plan can be accepted now."""

    code: Code
    finding: Finding


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when a contract is presented to a deployment.

    Attributes:
        deployment: Where it is presented.
        contract: The normalised manifest.
        digest: Its digest.
        resolution: What its uses lead to.
        effective: The effective active contracts, by id.
        manifests: Valid manifests of this lineage, by digest; what is missing cannot be compared.
        running: Digests of the lineage that the deployment offers now.
        beside: Digests of the lineage that others offer now, here or on other deployments.
        collisions: Subjects that somebody else owns.
        shapes: Digests that count for dependencies which nothing active offers, by contract id.
    """

    deployment: Deployment
    contract: Mapping[str, Any]
    digest: str
    resolution: Resolution
    effective: Mapping[str, Effective] = field(default_factory=dict)
    manifests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    running: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    collisions: tuple[Finding, ...] = ()
    shapes: Mapping[str, str] = field(default_factory=dict)

    @property
    def latest(self) -> str | None:
        """The latest accepted digest of the lineage on this deployment."""
        return self.deployment.desired.contracts.get(self.contract["id"])


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a presented contract means for a deployment.

    Attributes:
        classification: Whether a plan is needed, and of which kind.
        delta: What would be added, changed and removed, and why; JSON.
        desired: What is desired once it is accepted.
        blockers: Why it cannot be accepted now.
        ends: Digests of the lineage on this deployment that cannot go on beside it.
        is_optional: Whether only optional uses want it, so that nobody has to wait.
    """

    classification: Classification
    delta: Mapping[str, Any]
    desired: Desired
    blockers: tuple[Blocker, ...] = ()
    ends: frozenset[str] = frozenset()
    is_optional: bool = False


def classify(facts: Facts, compared: Compare | None = None) -> Proposal:
    """Classify a proposal.

    Args:
        facts: What is known.
        compared: How two digests of `facts.manifests` compare, where that is remembered.
    """
    desired = facts.deployment.desired
    asked = needs(facts.contract, facts.resolution)
    resources = _asked_resources(facts, asked)
    is_new = facts.digest != facts.latest and facts.digest not in facts.running
    findings = list(_risks(facts, compared or _comparer(facts))) if is_new else []
    accepted = _accepted(facts, asked, resources, is_migration=bool(findings), is_new=is_new)
    surfaces, capabilities = asked.surfaces, asked.capabilities
    wanted = bool(
        surfaces - desired.surfaces
        or capabilities - desired.capabilities
        or facts.latest is None
        or accepted.resources != desired.resources
    )
    more = accepted.surfaces - desired.surfaces or accepted.capabilities - desired.capabilities
    if findings:
        classification = Classification.MIGRATION
    elif wanted or more:
        classification = Classification.UPDATE
    else:
        classification = Classification.NONE
    return Proposal(
        classification,
        _delta(facts, accepted, findings),
        accepted,
        tuple(_blockers(facts, asked, resources)),
        frozenset(each["against"] for each in findings) & {*facts.running, facts.latest},
        is_optional=not wanted and not findings,
    )


def _asked_resources(facts: Facts, asked: Needs) -> dict[ResourceKey, Descriptor]:
    """What is asked for; a group whose dependency is away keeps what was accepted for it."""
    kept = facts.deployment.desired.resources
    identity = facts.contract["id"]
    groups = (("consumer", identity, group) for group in asked.unresolved)
    return {**asked.resources, **{key: kept[key] for key in groups if key in kept}}


def _accepted(
    facts: Facts,
    asked: Needs,
    resources: Mapping[ResourceKey, Descriptor],
    *,
    is_migration: bool,
    is_new: bool,
) -> Desired:
    """What is desired once the proposal is accepted."""
    desired, identity = facts.deployment.desired, facts.contract["id"]
    surfaces = desired.surfaces | asked.surfaces | asked.optional
    if is_migration:
        surfaces -= _no_longer_declared(facts)
    more = dataclasses.replace(
        desired,
        surfaces=surfaces,
        capabilities=desired.capabilities | asked.capabilities | asked.optional_capabilities,
        shapes={**desired.shapes, **_shapes(facts)},
    )
    # A digest that still runs beside a newer one takes nothing of the newer one away.
    if not is_new and facts.latest is not None:
        return more
    others = {key: value for key, value in desired.resources.items() if key[1] != identity}
    return dataclasses.replace(
        more,
        contracts={**desired.contracts, identity: facts.digest},
        resources={**others, **resources},
    )


def _no_longer_declared(facts: Facts) -> frozenset[str]:
    """Surfaces of the contract that is replaced which neither the new one nor another uses."""
    kept = declared(facts.contract)
    for identity, digest in facts.deployment.desired.contracts.items():
        if identity != facts.contract["id"] and digest in facts.manifests:
            kept |= declared(facts.manifests[digest])
    old = facts.manifests.get(facts.latest or "", {})
    return declared(old) - kept


def _shapes(facts: Facts) -> dict[str, str]:
    """For each dependency, the digest that its users were accepted against."""
    chosen: dict[str, str] = {}
    for identity in sorted({use.contract for use in facts.resolution.uses}):
        effective = facts.effective.get(identity)
        if effective is not None and effective.digests:
            # What every used surface has, where there is one; the first stands for the others.
            offering = [
                set(use.surface.digests)
                for use in facts.resolution.uses
                if use.contract == identity and use.surface.digests
            ]
            common = set(effective.digests).intersection(*offering)
            chosen[identity] = min(common or effective.digests)
        elif identity in facts.shapes:
            chosen[identity] = facts.shapes[identity]
    return chosen


def _comparer(facts: Facts) -> Compare:
    contracts = {**facts.manifests, facts.digest: facts.contract}

    def compared(old: str, new: str, relation: Relation) -> Report:
        return compare(contracts[old], contracts[new], relation)

    return compared


def _risks(facts: Facts, compared: Compare) -> Iterator[Mapping[str, Any]]:
    """What makes it a migration, as JSON."""
    replaced = [] if facts.latest is None else [facts.latest]
    beside = sorted(facts.beside - {facts.digest})
    relations: tuple[tuple[Relation, list[str]], ...] = (
        ("replacement", replaced),
        ("coexistence", beside),
    )
    for relation, digests in relations:
        for other in digests:
            if other not in facts.manifests:
                message = f"the manifest of {other} is not known any more, so nothing is proven"
                yield {
                    "rule": "contract.unknown-before",
                    "category": "unproven",
                    "pointer": "",
                    "message": message,
                    "relation": relation,
                    "against": other,
                }
                continue
            report = compared(other, facts.digest, relation)
            is_risk = not report.compatible
            if relation == "replacement":
                is_risk = report.classification == "migration"
            if is_risk:
                for change in report.findings:
                    if change.category != "note":
                        yield {**change.to_dict(), "relation": relation, "against": other}


def _blockers(
    facts: Facts, asked: Needs, resources: Mapping[ResourceKey, Descriptor]
) -> Iterator[Blocker]:
    for finding in facts.collisions:
        yield Blocker(Code.SUBJECT_COLLISION, finding)
    for finding in unsafe(facts.contract):
        yield Blocker(Code.RESOURCE_CONFLICT, finding)
    for finding in facts.resolution.blockers:
        yield Blocker(_CODES.get(finding.rule, Code.DEPENDENCY_NOT_ACTIVE), finding)
    for group, finding in asked.unresolved.items():
        if ("consumer", facts.contract["id"], group) not in resources:
            yield Blocker(Code.DEPENDENCY_NOT_ACTIVE, finding)


def _delta(facts: Facts, accepted: Desired, findings: list[Mapping[str, Any]]) -> Mapping[str, Any]:
    desired = facts.deployment.desired
    old, new = desired.resources, accepted.resources
    return {
        "contract": {
            "id": facts.contract["id"],
            "digest": facts.digest,
            "previous": facts.latest,
        },
        "surfaces": _sets(desired.surfaces, accepted.surfaces),
        "capabilities": _sets(desired.capabilities, accepted.capabilities),
        "resources": {
            "added": [_named(key, new[key]) for key in sorted(new.keys() - old.keys())],
            "changed": [
                {**_named(key, new[key]), "before": dict(old[key])}
                for key in sorted(new.keys() & old.keys())
                if new[key] != old[key]
            ],
            "removed": [_named(key, old[key]) for key in sorted(old.keys() - new.keys())],
        },
        "findings": findings[:MAX_FINDINGS],
    }


def _sets(old: frozenset[str], new: frozenset[str]) -> dict[str, list[str]]:
    return {"added": sorted(new - old), "removed": sorted(old - new)}


def _named(key: ResourceKey, descriptor: Descriptor) -> dict[str, Any]:
    kind, contract, alias = key
    return {"kind": kind, "contract": contract, "alias": alias, "descriptor": dict(descriptor)}
