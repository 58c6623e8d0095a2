"""What becomes of an event that is parked, because the gate lacked a fact about one instance.

Pure: time and chance are arguments. What is known now decides; what is still not known is asked
again until the event's time is over, and is never delivered.
"""

from dataclasses import dataclass
from enum import Enum

from accord.relay.rules import verdicts
from accord.relay.rules.connection import backoff
from accord.relay.rules.gate import Candidate, Decision, GateOutcome
from accord.relay.rules.verdicts import GateVerdict


class ParkStep(Enum):
    """What becomes of a parked event."""

    DELIVER = "deliver"
    REFUSE = "refuse"
    WAIT = "wait"
    EXPIRE = "expire"
    """It is still not known, and its time is over: a dead letter."""


@dataclass(frozen=True, slots=True)
class ParkLimits:
    """How long an event is parked, and the pauses between two questions; in seconds."""

    expire_after: float = 3600.0
    # The pause after the first answer that was none; it doubles ...
    first_pause: float = 5.0
    # ... up to this.
    longest_pause: float = 30.0


@dataclass(frozen=True, slots=True)
class ParkDecision:
    """A step, and the verdict behind it; `pause` is set for WAIT alone, in seconds."""

    step: ParkStep
    verdict: GateVerdict
    pause: float = 0.0


def decide_parked(
    decision: Decision,
    tenant: str,
    instance: str,
    *,
    waited: float,
    attempts: int,
    limits: ParkLimits,
    chance: float,
) -> ParkDecision:
    """Decide by the gate's newest decision on the event.

    `waited` is for how many seconds it has been parked, `attempts` how often the question was asked
    again, this time included. An event expires only after a question, so a clock that jumps ahead
    costs none.
    """
    candidate = decision.candidate(instance) if decision.tenant == tenant else None
    if candidate is None:
        return ParkDecision(ParkStep.REFUSE, _why_no_candidate(decision))
    outcome = candidate.outcome
    if outcome is GateOutcome.DELIVER:
        return ParkDecision(ParkStep.DELIVER, candidate.relevance)
    if outcome is GateOutcome.REFUSE or candidate.unknown is None:
        return ParkDecision(ParkStep.REFUSE, _first_no(candidate))
    if waited >= limits.expire_after:
        return ParkDecision(ParkStep.EXPIRE, candidate.unknown)
    pause = backoff(attempts - 1, chance, first=limits.first_pause, longest=limits.longest_pause)
    # The last question is asked when the time is over, not one pause later.
    return ParkDecision(
        ParkStep.WAIT, candidate.unknown, min(pause, limits.expire_after - max(waited, 0.0))
    )


def _why_no_candidate(decision: Decision) -> GateVerdict:
    """What refused everybody; else the instance alone is no candidate any more."""
    refused = next((each for each in decision.verdicts if not each.passed), None)
    return refused or verdicts.NO_CANDIDATE


def _first_no(candidate: Candidate) -> GateVerdict:
    """The first refusal that is a real one."""
    return next(
        each
        for each in candidate.verdicts
        if not each.passed and each.rule not in verdicts.UNKNOWN_RULES
    )
