"""How far a proposal goes beyond what was accepted: nothing, an update, a migration, or blocked.

Asking for more than was accepted is an update. What may break, lose or duplicate something for
users of the contract is a migration (sections 6.2, 10 and 15). A blocker means that no plan could
be accepted now.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from accord.authority.rules.errors import Code
from accord.authority.rules.needs import (
    Descriptor,
    Needs,
    ResourceKey,
    declared_surfaces,
    derive_needs,
    unsafe_requests,
)
from accord.authority.rules.records import Classification, Compatibility, Deployment, Desired
from accord.contracts import CompatibilityReport, EffectiveContract, Resolution, compare
from accord.contracts.compatibility import Relation
from accord.contracts.uses import HEALTH
from accord.kernel.finding import Finding

MAX_FINDINGS: Final = 100
"""Findings that a plan keeps for its reviewers."""

EVERY_CONTRACT: Final = "*"
"""Stands for every contract among granted calls."""

GRANTED_CALLS: Final = "grant"
"""`decided_by` of a plan that granted calls cover."""

_CALLS: Final = frozenset(
    {("rpc", "call"), ("operations", "call"), ("events", "subscribe"), ("feeds", "subscribe")}
)
_OWNED: Final = (
    *("rpc", "operations", "events", "feeds", "errors", "jobs", "eventConsumers"),
    *("state", "resources"),
)
_HEARTBEAT: Final = (HEALTH.contract, HEALTH.section, HEALTH.action, HEALTH.names)
_GROWTH: Final = frozenset({"resource.grown", "consumer.widened"})

Compare = Callable[[str, str, Relation], CompatibilityReport]
"""Compares an old digest with a new one in a relation."""

_CODES: Final = {
    "uses.unknown-contract": Code.DEPENDENCY_UNKNOWN,
}


class Blocker(NamedTuple):
    """Why no plan can be accepted now."""

    code: Code
    finding: Finding


@dataclass(frozen=True, slots=True)
class ProposalFacts:
    """What is known when a contract is presented to a deployment.

    Attributes:
        contract: The normalised manifest.
        resolution: Its resolved uses.
        effective: The effective active contracts, by id.
        manifests: Valid manifests of this contract id, by digest; others cannot be compared.
        running: The digests that the deployment offers now.
        beside: The digests that others offer now, here or on other deployments.
        collisions: Subjects that another contract owns.
        shapes: The digests to use for dependencies that are not active, by contract id.
        elsewhere: The digests that other deployments were accepted to implement.
    """

    deployment: Deployment
    contract: Mapping[str, Any]
    digest: str
    resolution: Resolution
    effective: Mapping[str, EffectiveContract] = field(default_factory=dict)
    manifests: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    running: frozenset[str] = frozenset()
    beside: frozenset[str] = frozenset()
    collisions: tuple[Finding, ...] = ()
    shapes: Mapping[str, str] = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()

    @property
    def latest(self) -> str | None:
        """The latest accepted digest of the contract id on this deployment."""
        return self.deployment.desired.contracts.get(self.contract["id"])


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a presented contract means for a deployment.

    Attributes:
        delta: What would be added, changed and removed, and why; JSON.
        desired: The desired state once it is accepted.
        ends: The digests on this deployment that cannot run beside it.
        is_optional: Whether only optional uses need it, so that the instance can start.
        accepted_by: What accepts it without an operator: `mutable-dev` or `grant`; else None.
    """

    classification: Classification
    delta: Mapping[str, Any]
    desired: Desired
    blockers: tuple[Blocker, ...] = ()
    ends: frozenset[str] = frozenset()
    is_optional: bool = False
    accepted_by: str | None = None


def classify_proposal(facts: ProposalFacts, compared: Compare | None = None) -> Proposal:
    """Classify a proposal; `compared` may be a cached comparison of digests."""
    desired = facts.deployment.desired
    asked = derive_needs(facts.contract, facts.resolution)
    resources = _asked_resources(facts, asked)
    is_new = facts.digest != facts.latest and facts.digest not in facts.running
    compared = compared or _comparer(facts)
    findings = list(_risks(facts, compared)) if is_new else []
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
    delta = _delta(facts, accepted, findings)
    accepted_by: str | None = None
    if classification is not Classification.NONE:
        if _is_granted(facts):
            accepted_by = GRANTED_CALLS
        elif facts.deployment.compatibility is Compatibility.MUTABLE_DEV and (
            _is_own_migration(facts, delta, findings, compared)
        ):
            accepted_by = Compatibility.MUTABLE_DEV.value
    return Proposal(
        classification,
        delta,
        accepted,
        tuple(_blockers(facts, asked, resources)),
        frozenset(each["against"] for each in findings) & {*facts.running, facts.latest},
        is_optional=not wanted and not findings,
        accepted_by=accepted_by,
    )


def _is_own_migration(
    facts: ProposalFacts,
    delta: Mapping[str, Any],
    findings: list[Mapping[str, Any]],
    compared: Compare,
) -> bool:
    """Whether it only breaks what this deployment offers itself, and asks for nothing."""
    if not findings or facts.latest is None or facts.latest not in facts.manifests:
        return False
    own = {*facts.running, facts.latest}
    updates = compared(facts.latest, facts.digest, "replacement").updates
    return (
        all(each["against"] in own for each in findings)
        and not any(delta[part]["added"] for part in ("surfaces", "capabilities", "resources"))
        and not any(change.rule in _GROWTH for change in updates)
    )


def _owns(contract: Mapping[str, Any]) -> bool:
    return any(contract.get(section) for section in _OWNED)


def _is_granted(facts: ProposalFacts) -> bool:
    """Whether it only calls, and only contracts whose calls the deployment was granted."""
    calls, contract = facts.deployment.calls, facts.contract
    # Nor may it use the id of a contract that somebody implements.
    named = [facts.manifests.get(each) for each in (*facts.elsewhere, *facts.beside)]
    if not calls or any(each is None or _owns(each) for each in (contract, *named)):
        return False
    return all(
        (EVERY_CONTRACT in calls or use["contract"] in calls)
        if (section, action) in _CALLS
        else (use["contract"], section, action, tuple(names)) == _HEARTBEAT
        for aliases in contract.get("uses", {}).values()
        for use in aliases.values()
        for section, selected in use.items()
        if isinstance(selected, Mapping)
        for action, names in selected.items()
        if names
    )


def _asked_resources(facts: ProposalFacts, asked: Needs) -> dict[ResourceKey, Descriptor]:
    """The requests; a group whose dependency is away keeps what was accepted."""
    kept = facts.deployment.desired.resources
    identity = facts.contract["id"]
    groups = (("consumer", identity, group) for group in asked.unresolved)
    return {**asked.resources, **{key: kept[key] for key in groups if key in kept}}


def _accepted(
    facts: ProposalFacts,
    asked: Needs,
    resources: Mapping[ResourceKey, Descriptor],
    *,
    is_migration: bool,
    is_new: bool,
) -> Desired:
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
    # A digest that runs beside a newer one removes nothing of the newer one.
    if not is_new and facts.latest is not None:
        return more
    others = {key: value for key, value in desired.resources.items() if key[1] != identity}
    return dataclasses.replace(
        more,
        contracts={**desired.contracts, identity: facts.digest},
        resources={**others, **resources},
    )


def _no_longer_declared(facts: ProposalFacts) -> frozenset[str]:
    """Surfaces of the replaced contract that neither the new one nor another uses."""
    kept = declared_surfaces(facts.contract)
    for identity, digest in facts.deployment.desired.contracts.items():
        if identity != facts.contract["id"] and digest in facts.manifests:
            kept |= declared_surfaces(facts.manifests[digest])
    old = facts.manifests.get(facts.latest or "", {})
    return declared_surfaces(old) - kept


def _shapes(facts: ProposalFacts) -> dict[str, str]:
    """For each dependency, the digest that its users were accepted against."""
    chosen: dict[str, str] = {}
    for identity in sorted({use.contract for use in facts.resolution.uses}):
        effective = facts.effective.get(identity)
        if effective is not None and effective.digests:
            # Prefer a digest that has every used surface.
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


def _comparer(facts: ProposalFacts) -> Compare:
    contracts = {**facts.manifests, facts.digest: facts.contract}

    def compared(old: str, new: str, relation: Relation) -> CompatibilityReport:
        return compare(contracts[old], contracts[new], relation)

    return compared


def _risks(facts: ProposalFacts, compared: Compare) -> Iterator[Mapping[str, Any]]:
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
    facts: ProposalFacts, asked: Needs, resources: Mapping[ResourceKey, Descriptor]
) -> Iterator[Blocker]:
    for finding in facts.collisions:
        yield Blocker(Code.SUBJECT_COLLISION, finding)
    for finding in unsafe_requests(facts.contract):
        yield Blocker(Code.RESOURCE_CONFLICT, finding)
    for finding in facts.resolution.blockers:
        yield Blocker(_CODES.get(finding.rule, Code.DEPENDENCY_NOT_ACTIVE), finding)
    for group, finding in asked.unresolved.items():
        if ("consumer", facts.contract["id"], group) not in resources:
            yield Blocker(Code.DEPENDENCY_NOT_ACTIVE, finding)


def _delta(
    facts: ProposalFacts, accepted: Desired, findings: list[Mapping[str, Any]]
) -> Mapping[str, Any]:
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
