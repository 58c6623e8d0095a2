"""What is signed: events, manifests, invites, calls and their answers. Pure.

Events have their names here; every other form is a module of its own: `calls` and `answers`,
`manifests`, `invites`, `intents` and `petitions`, and the `names` and `schemas` of capabilities.
"""

from accord.community.envelope.event import (
    MAX_BYTES,
    MAX_LAMPORT,
    Event,
    Parsed,
    Position,
    compose,
    parse,
    parse_signed,
    read,
    read_signed,
    stored,
)
from accord.community.envelope.kinds import KINDS, Kind, Stage
from accord.community.envelope.verification import Claim, verification_inputs, verify

__all__ = [
    "KINDS",
    "MAX_BYTES",
    "MAX_LAMPORT",
    "Claim",
    "Event",
    "Kind",
    "Parsed",
    "Position",
    "Stage",
    "compose",
    "parse",
    "parse_signed",
    "read",
    "read_signed",
    "stored",
    "verification_inputs",
    "verify",
]
