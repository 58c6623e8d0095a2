"""What is signed: events, manifests, invites, calls and their answers. Pure."""

from accord.community.envelope.event import (
    MAX_BYTES,
    MAX_LAMPORT,
    Event,
    Position,
    compose,
    parse,
    read,
    stored,
)
from accord.community.envelope.kinds import KINDS, Kind, Stage

__all__ = [
    "KINDS",
    "MAX_BYTES",
    "MAX_LAMPORT",
    "Event",
    "Kind",
    "Position",
    "Stage",
    "compose",
    "parse",
    "read",
    "stored",
]
