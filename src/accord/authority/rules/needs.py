"""What a contract asks for: surfaces of others, the capabilities they need, and resources.

Resource requests have the defaults of the specification filled in (sections 8a to 10a), consumer
groups their subjects. Requests that no server can fulfil (section 15) are found here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from accord.contracts import Resolution
from accord.contracts.permissions import USED
from accord.contracts.surfaces import wildcard
from accord.contracts.uses import Use
from accord.kernel.finding import Finding, pointer

ResourceKey: TypeAlias = tuple[str, str, str]
"""Kind (kv, store, consumer or job), contract id and alias."""

Descriptor: TypeAlias = Mapping[str, Any]

_KV: Final = {"required": True, "history": 1, "ttlMs": 0}
_STORE: Final = {"required": True, "ttlMs": 0}
_JOB: Final = {
    "maxDeliver": 5,
    "backoffMs": [5000, 30000, 120000, 600000, 1800000],
    "ackWaitMs": 300000,
    "progress": True,
    "logs": True,
    "dlq": True,
    "concurrency": 1,
}


@dataclass(frozen=True, slots=True)
class Needs:
    """What one contract asks for.

    Attributes:
        surfaces: The surfaces of its required uses, as `surface_key` writes them.
        optional: The surfaces of its optional uses.
        capabilities: What the surfaces of required uses need.
        optional_capabilities: What those of optional uses need.
        unresolved: Consumer groups with an event that nothing offers, by alias.
    """

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
        ("kv", resources.get("kv", {}), _KV),
        ("store", resources.get("store", {}), _STORE),
        ("job", contract.get("jobs", {}), _JOB),
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
