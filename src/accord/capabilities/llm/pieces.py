"""What a generation is made of, piece by piece, whichever backend makes it.

Owns the form. Pure.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeAlias

from accord.capabilities.llm.asking import Asked


class StopReason(Enum):
    """Why a generation ended: section 4.1."""

    END = "end"
    MAX_TOKENS = "max_tokens"
    STOP_SEQUENCE = "stop_sequence"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Read:
    """The prompt was counted."""

    tokens_in: int


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer.

    Attributes:
        logprob: The logarithm of its probability, where the backend tells.
        tokens_out: How many tokens were made so far.
    """

    text: str
    logprob: float | None
    tokens_out: int


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call's arguments."""

    id: str
    name: str
    arguments_delta: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The end; the counts are None where the backend does not tell."""

    reason: StopReason
    tokens_in: int | None = None
    tokens_out: int | None = None


Piece: TypeAlias = Read | Text | ToolCallDelta | Ended


@dataclass(frozen=True, slots=True)
class Model:
    """A model that a backend has.

    Attributes:
        ctx: How many tokens of context it takes; None where only its server knows.
        quant: Its quantisation, where known.
    """

    name: str
    ctx: int | None = None
    quant: str | None = None


class Backend(Protocol):
    """Something that generates."""

    @property
    def models(self) -> Sequence[Model]:
        """What it has."""
        ...

    def generate(self, asked: Asked) -> AsyncGenerator[Piece]:
        """Generate; the last piece is `Ended`. Closing the iterator ends the work.

        Raises:
            CommunityError: The model is missing (`not_implemented`), the request is more than it
                takes (`bad_request`), or it cannot be reached (`partition`, `timeout`,
                `capacity_exceeded`).
        """
        ...

    async def aclose(self) -> None:
        """End whatever is under way, and let go."""
        ...
