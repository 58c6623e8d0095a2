"""What a contract asks for, and how far that goes beyond what was accepted.

Asking for more than was accepted is an update. What may break, lose or duplicate something for
users of the contract is a migration (sections 6.2, 10 and 15). A blocker means that no plan could
be accepted now.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias

from accord.authority.rules.errors import Code
from accord.authority.rules.records import Classification, Compatibility, Deployment, Desired
from accord.contracts import CompatibilityReport, EffectiveContract, Resolution, compare
from accord.contracts.compatibility import Relation
from accord.contracts.effective import HEALTH, Use
from accord.contracts.manifest import JOB_DEFAULTS, KV_DEFAULTS, STORE_DEFAULTS
from accord.contracts.permissions import USED
from accord.contracts.surfaces import wildcard
from accord.kernel.canonical import pointer
from accord.kernel.errors import Finding

ResourceKey: TypeAlias = tuple[str, str, str]
"""Kind (kv, store, consumer or job), contract id and alias."""

Descriptor: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Needs:
    """What one contract asks for; surfaces are written by `surface_key`."""

    surfaces: frozenset[str]
    optional: frozenset[str]
    capabilities: frozenset[str]
    optional_capabilities: frozenset[str]
    resources: Mapping[ResourceKey, Descriptor]
    unresolved: Mapping[str, Finding]


def surface_key(contract: str, section: str, name: str, action: str) -> str:
    """A surface as it is written in the desired state."""
    return f"{contract} {section} {name} {action}"


def used_surface(use: Use) -> str:
    """The key of the surface of a use."""
    return surface_key(use.contract, use.surface.section, use.surface.name, use.action)


def declared_surfaces(contract: Mapping[str, Any]) -> frozenset[str]:
    """The surfaces that a contract says it uses, whether or not they exist."""
    return frozenset(
        surface_key(use["contract"], section, name, action)
        for aliases in contract.get("uses", {}).values()
        for use in aliases.values()
        for section, selected in use.items()
        if isinstance(selected, Mapping)
        for action, names in selected.items()
        for name in names
    )


def derive_needs(contract: Mapping[str, Any], resolution: Resolution) -> Needs:
    """What a normalised contract asks for, given its resolved uses."""
    required = [use for use in resolution.uses if not is_optional(use)]
    optional = [use for use in resolution.uses if is_optional(use)]
    filters = dict(_filters(contract, resolution))
    return Needs(
        surfaces=frozenset(map(used_surface, required)),
        optional=frozenset(map(used_surface, optional)),
        capabilities=_capabilities(required),
        optional_capabilities=_capabilities(optional),
        resources=dict(_resources(contract, filters)),
        unresolved={group: found for group, found in filters.items() if isinstance(found, Finding)},
    )


def is_optional(use: Use) -> bool:
    """Whether a use is optional."""
    return use.pointer.startswith("/uses/optional/")


def _capabilities(uses: list[Use]) -> frozenset[str]:
    """The capabilities of every action of the uses, for reviewers of a plan."""
    return frozenset(
        capability
        for use in uses
        for rule in USED
        if (rule.section, rule.selector) == (use.surface.section, use.action)
        for capability in use.surface.gates.get(rule.gate, ())
    )


def _resources(
    contract: Mapping[str, Any], filters: Mapping[str, list[str] | Finding]
) -> Iterator[tuple[ResourceKey, Descriptor]]:
    identity = contract["id"]
    resources = contract.get("resources", {})
    for kind, entries, defaults in (
        ("kv", resources.get("kv", {}), KV_DEFAULTS),
        ("store", resources.get("store", {}), STORE_DEFAULTS),
        ("job", contract.get("jobs", {}), JOB_DEFAULTS),
    ):
        for alias, entry in entries.items():
            yield (kind, identity, alias), {**defaults, **_plain(entry)}
    for group, entry in contract.get("eventConsumers", {}).items():
        found = filters[group]
        if not isinstance(found, Finding):
            yield ("consumer", identity, group), {**_plain(entry), "filters": found}


def _plain(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {member: value for member, value in entry.items() if member != "docs"}


def _filters(
    contract: Mapping[str, Any], resolution: Resolution
) -> Iterator[tuple[str, list[str] | Finding]]:
    """The subjects of each consumer group, or why they are not known."""
    subscribed = {
        (use.alias, use.surface.name): use.surface.subject
        for use in resolution.uses
        if use.action == "subscribe" and use.surface.section == "events"
    }
    events = contract.get("events", {})
    for group, entry in contract.get("eventConsumers", {}).items():
        subjects = {wildcard(events[name]["subject"]) for name in entry.get("self", ())}
        missing: Finding | None = None
        for alias, names in entry.get("uses", {}).items():
            for name in names:
                if (alias, name) in subscribed:
                    subjects.add(subscribed[alias, name])
                    continue
                missing = Finding(
                    "consumer.dependency-not-active",
                    pointer("eventConsumers", group, "uses", alias),
                    f"nothing active offers {name!r}, which the group {group!r} takes",
                )
        yield group, missing or sorted(subjects)


MAX_HISTORY: Final = 64
"""How many values of a key a bucket keeps at most."""


def unsafe_requests(contract: Mapping[str, Any]) -> Iterator[Finding]:
    """The requests of a normalised contract that contradict each other or server limits."""
    resources = contract.get("resources", {})
    for alias, bucket in resources.get("kv", {}).items():
        if bucket.get("history", 1) > MAX_HISTORY:
            yield Finding(
                "resource.history",
                pointer("resources", "kv", alias, "history"),
                f"a bucket keeps at most {MAX_HISTORY} values of a key",
            )
    stores = resources.get("store", {})
    for alias, store in stores.items():
        if _exceeds(store.get("maxObjectBytes"), store.get("maxTotalBytes")):
            yield Finding(
                "resource.object-size",
                pointer("resources", "store", alias, "maxObjectBytes"),
                "one object may be larger than the whole store",
            )
    for name, operation in contract.get("operations", {}).items():
        transfer = operation.get("transfer", {})
        store = stores.get(transfer.get("store"), {})
        if _exceeds(transfer.get("maxBytes"), store.get("maxObjectBytes")):
            yield Finding(
                "resource.transfer-size",
                pointer("operations", name, "transfer", "maxBytes"),
                "more may be sent than one object of the store holds",
            )


def _exceeds(part: int | None, whole: int | None) -> bool:
    return part is not None and whole is not None and part > whole


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

_CODES: Final = {"uses.unknown-contract": Code.DEPENDENCY_UNKNOWN}


class Blocker(NamedTuple):
    """Why no plan can be accepted now."""

    code: Code
    finding: Finding


@dataclass(frozen=True, slots=True)
class ProposalFacts:
    """What is known when a contract is presented to a deployment.

    The deployment offers the digests `running`, others offer `beside`, here or elsewhere, and other
    deployments were accepted to implement `elsewhere`. `shapes` are the digests for dependencies
    that are not active. A digest that is not in `manifests` cannot be compared.
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

    It ends the digests `ends`. It `is_optional` if only optional uses need it, so that the instance
    can start. `accepted_by` is what accepts it without an operator: `mutable-dev` or `grant`; else
    None.
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
        "contract": {"id": facts.contract["id"], "digest": facts.digest, "previous": facts.latest},
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
