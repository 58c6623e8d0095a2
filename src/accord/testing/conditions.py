"""The words of the simulated network: what links do to messages, and what a trace says of it.

Values only; `network` moves the messages.
"""

import random
from dataclasses import dataclass
from enum import StrEnum

from accord.testing.errors import HarnessError


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a link treats messages; chances lie between 0 and 1.

    Args:
        delay: The shortest and the longest time on the way, in seconds.
        loss: The chance that a message never arrives.
        duplication: The chance that a message arrives twice.
        reorder: The chance that a message is held back so that later ones may overtake it. Without
            it a link keeps the order of sending.
        hold: For how many seconds, at most, such a message is held back.
    """

    delay: tuple[float, float] = (0.001, 0.01)
    loss: float = 0.0
    duplication: float = 0.0
    reorder: float = 0.0
    hold: float = 0.1

    def __post_init__(self) -> None:
        for name in ("loss", "duplication", "reorder"):
            chance = getattr(self, name)
            if not 0 <= chance <= 1:
                raise HarnessError(
                    f"{chance} is no chance", where=f"Conditions.{name}", mend="give 0 to 1"
                )
        if not 0 <= self.delay[0] <= self.delay[1] or not self.hold >= 0:
            raise HarnessError(
                f"delay {self.delay} and hold {self.hold} are no times to wait",
                where="Conditions",
                mend="give a delay as (shortest, longest) and all times from zero up",
            )


class Outcome(StrEnum):
    """What happened, in one word."""

    JOINED = "joined"
    CRASHED = "crashed"
    PARTITIONED = "partitioned"
    HEALED = "healed"
    SENT = "sent"
    DELIVERED = "delivered"
    LOST = "lost"
    DUPLICATED = "duplicated"
    HELD = "held"
    BLOCKED = "blocked"
    UNREACHABLE = "unreachable"


class Kind(StrEnum):
    """What a message is for."""

    PLAIN = "plain"
    REQUEST = "request"
    REPLY = "reply"


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes on the way, numbered per network; a reply gives the number of what it answers."""

    number: int
    kind: Kind
    source: str
    target: str
    payload: bytes
    answers: int = 0


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One thing that happened, to a message or to a node (then without one)."""

    time: float
    source: str
    target: str
    outcome: Outcome
    message: Message | None = None

    def __str__(self) -> str:
        text = f"{self.time:12.6f}  {self.source} > {self.target}  {self.outcome}"
        if self.message is None:
            return text
        payload = repr(self.message.payload[:40])
        return f"{text}  {self.message.kind} #{self.message.number} {payload}"


@dataclass(slots=True)
class Link:
    """One direction between two nodes: its conditions and its own stream of chance.

    `latest` is when the last message that keeps the order arrives.
    """

    conditions: Conditions
    chance: random.Random
    latest: float = 0.0

    def draw(self) -> tuple[bool, int, float, tuple[float, float]]:
        """Whether lost, how many copies, how long held and the delay of each copy.

        Always draws as many numbers, so that a change of one condition leaves the rest alike.
        """
        conditions, number = self.conditions, self.chance.random
        loss = number() < conditions.loss
        copies = 2 if number() < conditions.duplication else 1
        reordered, part = number() < conditions.reorder, number()
        shortest, longest = conditions.delay
        first, second = (shortest + (longest - shortest) * number() for _ in range(2))
        return loss, copies, conditions.hold * part if reordered else 0.0, (first, second)
