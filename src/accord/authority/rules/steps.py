"""The steps that make JetStream as desired: what is observed against what is wanted.

With one conflict there are no steps at all. What is as desired is adopted; what is ours and has
drifted is updated; what belongs to somebody else, or could only be changed by deleting data, is a
conflict.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from accord.authority.rules.resources import OWNER, Resource, ResourceRef
from accord.kernel.finding import Finding

_FIXED: Final = frozenset(
    {
        *("name", "storage", "retention", "sealed", "deny_delete"),  # of streams
        *("durable_name", "ack_policy", "replay_policy", "deliver_subject"),  # of consumers
    }
)
"""Members that the server cannot change afterwards."""

_BEGINNING: Final = "deliver_policy"
"""Where a consumer begins, which the server cannot change either."""

_SETS: Final = frozenset({"subjects", "filter_subjects"})


class StepAction(StrEnum):
    """What a step does."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class ReconcileStep:
    """One change; `config` is empty for a deletion, `why` names what differs in an update."""

    action: StepAction
    place: ResourceRef
    config: Mapping[str, Any]
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        changed = f" ({', '.join(self.why)})" if self.why else ""
        return f"{self.action} {self.place}{changed}"


@dataclass(frozen=True, slots=True)
class ReconcilePlan:
    """The steps in order, or the conflicts that prevent them."""

    steps: tuple[ReconcileStep, ...] = ()
    adopted: tuple[ResourceRef, ...] = ()
    conflicts: tuple[Finding, ...] = ()


Observed = Mapping[ResourceRef, Mapping[str, Any] | None]
"""The observed configuration of each place; None if nothing is there."""


def plan_steps(
    wanted: Iterable[Resource],
    seen: Observed,
    *,
    released: Collection[ResourceRef] = (),
    captured: Mapping[ResourceRef, str] | None = None,
) -> ReconcilePlan:
    """Compare the whole set.

    Args:
        seen: The observed configuration of everything wanted and released.
        released: Consumers that were bound and no longer are. Streams are never deleted: they hold
            data, which is found again when the alias is declared again.
        captured: For streams to be created, another stream that captures their subjects.
    """
    creates: list[ReconcileStep] = []
    updates: list[ReconcileStep] = []
    anew: list[ReconcileStep] = []
    adopted: list[ResourceRef] = []
    conflicts: list[Finding] = []
    for resource in sorted(wanted, key=lambda resource: bool(resource.place.consumer)):
        place, config = resource.place, seen.get(resource.place)
        fresh = {**resource.config, "metadata": {OWNER: resource.owner}}
        if config is None:
            if other := (captured or {}).get(place):
                conflicts.append(_conflict(place, f"its subjects already go to {other}"))
            creates.append(ReconcileStep(StepAction.CREATE, place, fresh))
            continue
        differing = _differing(resource, config)
        if reason := _refusal(resource, config, differing):
            conflicts.append(_conflict(place, reason))
        elif _BEGINNING in differing:
            anew += (
                ReconcileStep(StepAction.DELETE, place, {}),
                ReconcileStep(StepAction.CREATE, place, fresh),
            )
        elif differing:
            merged = {**config, **resource.config, "metadata": config["metadata"]}
            updates.append(ReconcileStep(StepAction.UPDATE, place, merged, differing))
        else:
            adopted.append(place)
    if conflicts:
        return ReconcilePlan(conflicts=tuple(conflicts))
    deletes = [
        ReconcileStep(StepAction.DELETE, place, {})
        for place in sorted(released)
        if place.consumer and seen.get(place) is not None
    ]
    return ReconcilePlan((*creates, *updates, *anew, *deletes), tuple(adopted))


def _refusal(resource: Resource, config: Mapping[str, Any], differing: tuple[str, ...]) -> str:
    """Why an existing resource cannot be adopted or updated; empty if it can."""
    owner = (config.get("metadata") or {}).get(OWNER)
    if owner != resource.owner:
        whose = f"belongs to {owner!r}" if owner else "was not made by this authority"
        return f"it {whose}"
    fixed = [member for member in differing if member in _FIXED]
    if fixed:
        return f"it has another {', '.join(fixed)}, which cannot be changed in place"
    return ""


def _differing(resource: Resource, config: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(
        member
        for member, value in resource.config.items()
        if _plain(member, config.get(member)) != _plain(member, value)
    )


def _plain(member: str, value: Any) -> Any:
    """The server omits what is false, empty or zero."""
    if member in _SETS:
        return sorted(value or ())
    return value or None


def _conflict(place: ResourceRef, reason: str) -> Finding:
    return Finding("reconcile.conflict", "", f"{place} is in the way: {reason}")
