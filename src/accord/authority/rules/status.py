"""Whether an offer is live, and whether a session may use a surface now.

An offer depends on its connection and heartbeats, and is stale for a grace window before it expires
(section 6.2). The status of a surface is advisory; it grants nothing.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

from accord.authority.rules.records import Offer
from accord.contracts.surfaces import SECTIONS, Section, Surface

HEARTBEAT_SECONDS: Final = 10.0
"""Seconds between two heartbeats of an instance."""

GRACE_SECONDS: Final = 30.0
"""Seconds for which an offer outlives its connection."""

LEASE_SECONDS: Final = 2 * HEARTBEAT_SECONDS + GRACE_SECONDS
"""Seconds for which a live offer counts without a heartbeat: one may be lost."""


class Liveness(StrEnum):
    """The state of an offer at some time."""

    LIVE = "live"
    STALE = "stale"
    EXPIRED = "expired"

    @property
    def is_active(self) -> bool:
        """Whether the offer counts; its deployment and instance must be enabled, too."""
        return self is not Liveness.EXPIRED


def offer_liveness(offer: Offer, now: float) -> Liveness:
    """The state of an offer; without heartbeats a live one becomes stale, then expires."""
    if now >= offer.expires_at:
        return Liveness.EXPIRED
    if offer.live and now < offer.expires_at - GRACE_SECONDS:
        return Liveness.LIVE
    return Liveness.STALE


def mark_heard(offer: Offer, now: float) -> Offer:
    """The offer after a connection or a heartbeat; an expired one stays expired."""
    if offer_liveness(offer, now) is Liveness.EXPIRED:
        return offer
    return dataclasses.replace(offer, live=True, stale_at=None, expires_at=now + LEASE_SECONDS)


def mark_lost(offer: Offer, now: float) -> Offer:
    """The offer after its connection ended; the grace window begins once."""
    if not offer.live:
        return offer
    expires_at = min(offer.expires_at, now + GRACE_SECONDS)
    return dataclasses.replace(offer, live=False, stale_at=now, expires_at=expires_at)


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
# The list of a use for each action that has no list of its own.
_SELECTORS: Final = {"observe": "call", "cancel": "call", "control": "call"}


@dataclass(frozen=True, slots=True)
class SurfaceStatus:
    """The status of a surface for a session, which may lack the capabilities `missing`."""

    status: Status
    missing: tuple[str, ...] = ()
    reason: str | None = None
    runtime: Runtime | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        answer: dict[str, Any] = {"status": self.status}
        if self.missing:
            answer["missingCapabilities"] = list(self.missing)
        if self.reason is not None:
            answer["reason"] = self.reason
        if self.runtime is not None:
            answer |= {"liveImplementer": self.runtime == "live", "runtime": self.runtime}
        return answer


@dataclass(frozen=True, slots=True)
class SurfaceOffer:
    """An offer of the contract id, as far as it matters for the status."""

    digest: str
    liveness: Liveness
    disabled: bool = False


def section_of(kind: str) -> Section | None:
    """The manifest section of a kind of surface, in the singular or as written there."""
    return _SECTIONS.get(kind)


def default_action(section: Section) -> str:
    """The action on a surface if none is given."""
    return _DEFAULTS[section]


def selector_of(action: str) -> str:
    """The list of a use that covers an action."""
    return _SELECTORS.get(action, action)


def find_surface_status(
    lineage: Mapping[str, Iterable[Surface]] | None,
    section: Section | None,
    name: str,
    action: str,
    *,
    covered: bool,
    capabilities: frozenset[str],
    offered: Iterable[SurfaceOffer],
    builtin: bool = False,
) -> SurfaceStatus:
    """The status of a surface for a session, by the known digests of the contract id.

    `covered` says whether the use was accepted; `builtin`, whether the platform implements it.
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
    # Of the offered digests if there are any, else of the known ones.
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
