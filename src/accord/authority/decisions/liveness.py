"""Whether an offer counts: live, stale within its grace window, or expired (section 6.2).

An offer lives by its connection and by being heard of. It never comes to life here: the functions
take an accepted offer and give one back. Times are arguments.
"""

import dataclasses
from enum import StrEnum
from typing import Final

from accord.authority.records import Offer

HEARTBEAT: Final = 10.0
"""Seconds between two heartbeats of an instance."""

GRACE: Final = 30.0
"""Seconds for which an offer outlives its connection."""

LEASE: Final = 2 * HEARTBEAT + GRACE
"""Seconds for which a live offer counts when nothing is heard: one heartbeat may be lost."""


class Liveness(StrEnum):
    """Where an offer stands at some moment."""

    LIVE = "live"
    STALE = "stale"
    EXPIRED = "expired"

    @property
    def is_active(self) -> bool:
        """Whether the offer counts; its deployment and instance must be enabled, too."""
        return self is not Liveness.EXPIRED


def liveness(offer: Offer, now: float) -> Liveness:
    """Where an offer stands; a live one of which nothing is heard goes stale, then expires."""
    if now >= offer.expires_at:
        return Liveness.EXPIRED
    if offer.live and now < offer.expires_at - GRACE:
        return Liveness.LIVE
    return Liveness.STALE


def heard(offer: Offer, now: float) -> Offer:
    """The offer after a connection or a heartbeat; one that has expired stays so."""
    if liveness(offer, now) is Liveness.EXPIRED:
        return offer
    return dataclasses.replace(offer, live=True, stale_at=None, expires_at=now + LEASE)


def lost(offer: Offer, now: float) -> Offer:
    """The offer after its connection ended, or said that it will; the grace window begins once."""
    if not offer.live:
        return offer
    expires_at = min(offer.expires_at, now + GRACE)
    return dataclasses.replace(offer, live=False, stale_at=now, expires_at=expires_at)
