"""Whether a call that failed is made again, and when.

Pure: chance is an argument. A call that was refused for want of room did nothing and may always be
made again; one whose fate is unknown only when it is idempotent.
"""

from dataclasses import dataclass
from typing import Final

from accord.community.errors import Code, CommunityError

REFUSED_FOR_NOW: Final = frozenset({Code.RATE_LIMITED, Code.CAPACITY_EXCEEDED})
UNSENT: Final = "unsent"
"""Set in the details of an error when the request certainly never reached the node."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How stubborn a client is.

    Attributes:
        attempts: How often a call is made at most.
        first: The first pause, in seconds; each further one is twice as long.
        longest: The longest pause; when a node asks for more, the call fails at once.
    """

    attempts: int = 4
    first: float = 0.2
    longest: float = 10.0

    def pause(
        self, error: CommunityError, made: int, chance: float, *, idempotent: bool
    ) -> float | None:
        """Seconds to wait before the next attempt; None when there is none.

        Args:
            error: What happened.
            made: How many attempts there were.
            chance: A number from 0 to 1.
            idempotent: Whether asking twice is as good as asking once.
        """
        harmless = idempotent or error.code in REFUSED_FOR_NOW or error.details.get(UNSENT)
        if made >= self.attempts or not error.code.retryable or not harmless:
            return None
        backoff = min(self.longest, self.first * 2.0 ** (made - 1)) * (0.5 + chance / 2)
        asked = error.details.get("retry_after_ms", 0)
        least = asked / 1000 if type(asked) in (int, float) and asked > 0 else 0.0
        return None if least > self.longest else least + backoff
