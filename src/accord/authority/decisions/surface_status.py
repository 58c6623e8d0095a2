"""Whether a session may use a surface, and whether somebody implements it now.

The order is the specification's ("Runtime surface status"): is the contract known, has it the
surface, does the session's authority cover it, does the session hold what it needs, and only then
who offers it. It advises; it grants and takes nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from accord.authority.decisions.liveness import Liveness
from accord.contracts.surface import SECTIONS, Section, Surface

Status = Literal["unknown_contract", "unknown_surface", "unauthorized", "unavailable", "available"]
Runtime = Literal["live", "no_live_implementer", "disabled"]

_SECTIONS: Final[dict[str, Section]] = {
    **{section: section for section in SECTIONS},
    "operation": "operations",
    "event": "events",
    "feed": "feeds",
}
_DEFAULTS: Final[dict[Section, str]] = {
    "rpc": "call",
    "operations": "call",
    "events": "subscribe",
    "feeds": "subscribe",
}
# Which list of a use leads to an action that has no list of its own.
_SELECTORS: Final = {"observe": "call", "cancel": "call", "control": "call"}


@dataclass(frozen=True, slots=True)
class SurfaceStatus:
    """The outcome.

    Attributes:
        status: What it comes to.
        missing: The capabilities that the session lacks, where it is unauthorized.
        reason: Why it is unavailable, where there is a word for it.
        runtime: Who implements it, where it is available.
    """

    status: Status
    missing: tuple[str, ...] = ()
    reason: str | None = None
    runtime: Runtime | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        told: dict[str, Any] = {"status": self.status}
        if self.missing:
            told["missingCapabilities"] = list(self.missing)
        if self.reason is not None:
            told["reason"] = self.reason
        if self.runtime is not None:
            told |= {"liveImplementer": self.runtime == "live", "runtime": self.runtime}
        return told


@dataclass(frozen=True, slots=True)
class Offered:
    """An offer of the surface's lineage, as far as its status matters."""

    digest: str
    liveness: Liveness
    disabled: bool = False


def section_of(kind: str) -> Section | None:
    """The section that a kind of surface is declared in, in the singular or as it stands."""
    return _SECTIONS.get(kind)


def default_action(section: Section) -> str:
    """What one does with a surface when nothing else is said."""
    return _DEFAULTS[section]


def selector_of(action: str) -> str:
    """The list of a use that covers an action."""
    return _SELECTORS.get(action, action)


def surface_status(
    lineage: Mapping[str, Iterable[Surface]] | None,
    section: Section | None,
    name: str,
    action: str,
    *,
    covered: bool,
    capabilities: frozenset[str],
    offered: Iterable[Offered],
    builtin: bool = False,
) -> SurfaceStatus:
    """Say what the status of a surface is for a session.

    Args:
        lineage: The surfaces of each known digest of the contract id; None where none is known.
        section: Where the surface is declared; None for a kind that there is not.
        name: Its logical name.
        action: What the session would do.
        covered: Whether the session's accepted authority covers the use.
        capabilities: What the session holds.
        offered: The unexpired offers of the lineage.
        builtin: Whether the platform itself implements it.
    """
    if lineage is None:
        return SurfaceStatus("unknown_contract")
    found = {
        digest: surface
        for digest, surfaces in lineage.items()
        for surface in surfaces
        if (surface.section, surface.name) == (section, name)
    }
    if not found:
        return SurfaceStatus("unknown_surface")
    if not covered:
        return SurfaceStatus("unavailable")
    # Of what is offered where something is, and of what is known where nothing is.
    matching = [offer for offer in offered if offer.digest in found and offer.liveness.is_active]
    gates = [found[offer.digest].gates for offer in matching] or [s.gates for s in found.values()]
    needed = [gate[action] for gate in gates if action in gate]
    if not needed:
        return SurfaceStatus("unauthorized")
    missing = min(
        (need - capabilities for need in needed), key=lambda keys: (len(keys), *sorted(keys))
    )
    if missing:
        return SurfaceStatus("unauthorized", missing=tuple(sorted(missing)))
    if builtin:
        return SurfaceStatus("available", runtime="live")
    enabled = [offer for offer in matching if not offer.disabled]
    if any(offer.liveness is Liveness.LIVE for offer in enabled):
        return SurfaceStatus("available", runtime="live")
    if enabled:
        return SurfaceStatus("available", runtime="no_live_implementer")
    if matching:
        return SurfaceStatus("available", runtime="disabled")
    return SurfaceStatus("unavailable", reason="dependency_not_active")
