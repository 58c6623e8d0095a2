"""The analysis of a contract for administrators (specification, section 13).

It lists every permission that the contract can lead to, by the rules of `permissions`, and grants
nothing. Physical names are unknown yet and stand in braces. A capability list of null admits
nobody, an empty one everybody.
"""

import dataclasses
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from accord.contracts.manifest import JOB_DEFAULTS, KV_DEFAULTS, STORE_DEFAULTS, digest, normalize
from accord.contracts.permissions import BOUND, OWNED, USED, BoundRule, SurfaceRule
from accord.contracts.surfaces import SECTIONS, Surface, control_subject, surfaces

OWNER: Final = "service"
"""Replaces the capabilities where the owning service gets the permission."""

_CONTROLS: Final = (
    ("get", "observe"),
    ("wait", "observe"),
    ("watch", "observe"),
    ("cancel", "cancel"),
    ("signal", "control"),
)
_TOKEN: Final = re.compile(r"(?:[^.{}]++|\{[^{}]*+\})++")

_RULES: Final = {
    section: [rule for rule in (*USED, *OWNED) if rule.section == section] for section in SECTIONS
}

Json = dict[str, Any]


def analyze(contract: Any) -> Json:
    """The `analysisSummary` with counts, and the `analysis`; raises ContractError with findings."""
    identity = digest(contract)
    contract = normalize(contract)
    owned = sorted(surfaces(contract), key=lambda surface: surface.name)
    by_section = {
        section: [surface for surface in owned if surface.section == section]
        for section in SECTIONS
    }
    operations = [_operation(contract, surface) for surface in by_section["operations"]]
    controls = [control for surface in by_section["operations"] for control in _controls(surface)]
    resources = contract.get("resources", {})
    rules = list(_rules(contract, owned))
    analysis: Json = {
        "rpc": {"methods": [_surface(contract, one, "call") for one in by_section["rpc"]]},
        "operations": {"operations": operations, "control": controls},
        "events": {
            "events": [
                _surface(contract, one, "publish", "subscribe") for one in by_section["events"]
            ]
        },
        "feeds": {"feeds": [_surface(contract, one, "subscribe") for one in by_section["feeds"]]},
        "eventConsumers": _entries(contract.get("eventConsumers", {}), {}),
        "resources": {
            "kv": _entries(resources.get("kv", {}), KV_DEFAULTS),
            "store": _entries(resources.get("store", {}), STORE_DEFAULTS),
            "jobs": _entries(contract.get("jobs", {}), JOB_DEFAULTS),
        },
        "nats": {
            permission: [rule for given, rule in rules if given == permission]
            for permission in ("publish", "subscribe")
        },
    }
    summary = {
        "rpcMethods": len(by_section["rpc"]),
        "operations": len(operations),
        "operationControls": len(controls),
        "events": len(by_section["events"]),
        "feeds": len(by_section["feeds"]),
        "eventConsumers": len(analysis["eventConsumers"]),
        "natsPublish": len(analysis["nats"]["publish"]),
        "natsSubscribe": len(analysis["nats"]["subscribe"]),
        "kvResources": len(analysis["resources"]["kv"]),
        "storeResources": len(analysis["resources"]["store"]),
        "jobsQueues": len(analysis["resources"]["jobs"]),
    }
    return {
        "id": contract["id"],
        "digest": identity,
        "analysisSummary": summary,
        "analysis": analysis,
    }


def _surface(contract: Mapping[str, Any], surface: Surface, *actions: str) -> Json:
    declared = contract[surface.section][surface.name]
    analyzed: Json = {
        "key": surface.name,
        "subject": declared["subject"],
        "wildcardSubject": surface.subject,
        **{f"{action}Capabilities": sorted(surface.gates[action]) for action in actions},
    }
    if surface.transfer is not None:
        analyzed["transfer"] = surface.transfer
    return analyzed


def _operation(contract: Mapping[str, Any], surface: Surface) -> Json:
    declared = contract["operations"][surface.name]
    lists = declared.get("capabilities", {})
    return {
        **_surface(contract, surface, "call", "observe"),
        "controlSubject": control_subject(declared["subject"]),
        "wildcardControlSubject": control_subject(surface.subject),
        "cancelCapabilities": sorted(set(lists["cancel"])) if "cancel" in lists else None,
        "controlCapabilities": sorted(set(lists.get("control", ()))),
        "cancel": declared.get("cancel", False),
        "signals": sorted(declared.get("signals", {})),
    }


def _controls(surface: Surface) -> Iterator[Json]:
    """The control actions of an operation that somebody may take."""
    for action, gate in _CONTROLS:
        if gate in surface.gates:
            yield {
                "key": surface.name,
                "action": action,
                "subject": control_subject(surface.subject),
                "wildcardSubject": control_subject(surface.subject),
                "requiredCapabilities": sorted(surface.gates[gate]),
            }


def _entries(declared: Mapping[str, Mapping[str, Any]], defaults: Mapping[str, Any]) -> list[Json]:
    """Entries of a map with defaults filled in and texts for people left out."""
    return [
        {
            "alias": alias,
            **defaults,
            **{name: value for name, value in declared[alias].items() if name != "docs"},
        }
        for alias in sorted(declared)
    ]


def _rules(contract: Mapping[str, Any], owned: list[Surface]) -> Iterator[tuple[str, Json]]:
    """Every permission that the contract can lead to: `publish` or `subscribe`, and the rule."""
    for surface in owned:
        subject = contract[surface.section][surface.name]["subject"]
        written = dataclasses.replace(surface, subject=subject)
        for rule in _RULES[surface.section]:
            found = rule.subject(written, "{session}")
            needed = surface.gates.get(rule.gate) if rule.gate else {OWNER}
            if found is not None and needed is not None:
                yield rule.permission, _rule(rule, surface.name, found, needed)
    for bound in BOUND:
        for alias in sorted(bound.declared(contract)):
            for subject in bound.subjects:
                yield "publish", _rule(bound, alias, subject, {OWNER})
            for subject in bound.heard:
                yield "subscribe", _rule(bound, alias, subject, {OWNER})


def _rule(
    rule: SurfaceRule | BoundRule, key: str, subject: str, capabilities: Collection[str]
) -> Json:
    return {
        "rule": rule.id,
        "kind": rule.category,
        "key": key,
        "subject": subject,
        "wildcardSubject": _TOKEN.sub(_wild, subject) if "{" in subject else subject,
        "requiredCapabilities": sorted(capabilities),
    }


def _wild(part: re.Match[str]) -> str:
    return "*" if "{" in part[0] else part[0]
