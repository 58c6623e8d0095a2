"""What is to be done on JetStream: what was seen against what is wanted.

Pure. Everything is judged before anything is done: one conflict, and there are no steps at all.
What is already as it should be is adopted; what is ours and has drifted is set right; what belongs
to somebody else, or could only be set right by deleting data, is a conflict. A consumer holds no
data: one that shall begin elsewhere, as an accepted migration may want, is made anew.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from accord.authority.reconcile.resources import OWNER, Place, Resource
from accord.kernel.finding import Finding

_FIXED: Final = frozenset(
    {
        *("name", "storage", "retention", "sealed", "deny_delete"),  # of streams
        *("durable_name", "ack_policy", "replay_policy", "deliver_subject"),  # of consumers
    }
)
"""Members that the server does not change once a thing is made."""

_BEGINNING: Final = "deliver_policy"
"""Where a consumer begins, which the server does not change either."""

_SETS: Final = frozenset({"subjects", "filter_subjects"})


class Doing(StrEnum):
    """What a step does."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Step:
    """One change.

    Attributes:
        doing: What kind of change.
        place: Where.
        config: What is sent to the server; empty for a deletion.
        why: Which members differ, for an update.
    """

    doing: Doing
    place: Place
    config: Mapping[str, Any]
    why: tuple[str, ...] = ()

    def __str__(self) -> str:
        changed = f" ({', '.join(self.why)})" if self.why else ""
        return f"{self.doing} {self.place}{changed}"


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps in their order, or the conflicts that forbid them."""

    steps: tuple[Step, ...] = ()
    adopted: tuple[Place, ...] = ()
    conflicts: tuple[Finding, ...] = ()


Seen = Mapping[Place, Mapping[str, Any] | None]
"""The server's configuration of each place; none where nothing is."""


def plan(
    wanted: Iterable[Resource],
    seen: Seen,
    *,
    let_go: Collection[Place] = (),
    captured: Mapping[Place, str] | None = None,
) -> Plan:
    """Judge the whole set.

    Args:
        wanted: What must be there.
        seen: What is there, of everything wanted and let go.
        let_go: Consumers that were bound and no longer are. Streams are never deleted: they hold
            data, and whoever declares the alias again finds it.
        captured: For streams that are to be created, another one that takes their subjects.
    """
    creates: list[Step] = []
    updates: list[Step] = []
    anew: list[Step] = []
    adopted: list[Place] = []
    conflicts: list[Finding] = []
    for resource in sorted(wanted, key=lambda resource: bool(resource.place.consumer)):
        place, config = resource.place, seen.get(resource.place)
        fresh = {**resource.config, "metadata": {OWNER: resource.owner}}
        if config is None:
            if other := (captured or {}).get(place):
                conflicts.append(_conflict(place, f"its subjects already go to {other}"))
            creates.append(Step(Doing.CREATE, place, fresh))
            continue
        differing = _differing(resource, config)
        if reason := _refusal(resource, config, differing):
            conflicts.append(_conflict(place, reason))
        elif _BEGINNING in differing:
            anew += (Step(Doing.DELETE, place, {}), Step(Doing.CREATE, place, fresh))
        elif differing:
            merged = {**config, **resource.config, "metadata": config["metadata"]}
            updates.append(Step(Doing.UPDATE, place, merged, differing))
        else:
            adopted.append(place)
    if conflicts:
        return Plan(conflicts=tuple(conflicts))
    deletes = [
        Step(Doing.DELETE, place, {})
        for place in sorted(let_go)
        if place.consumer and seen.get(place) is not None
    ]
    return Plan((*creates, *updates, *anew, *deletes), tuple(adopted))


def _refusal(resource: Resource, config: Mapping[str, Any], differing: tuple[str, ...]) -> str:
    """Why what is there cannot be taken for what is wanted; empty if it can."""
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
    """The server leaves out what is false, empty or zero."""
    if member in _SETS:
        return sorted(value or ())
    return value or None


def _conflict(place: Place, reason: str) -> Finding:
    return Finding("reconcile.conflict", "", f"{place} is in the way: {reason}")
