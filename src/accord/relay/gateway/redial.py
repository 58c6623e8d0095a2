"""When a gateway dials again: section 1 of the notes on the specification. Pure.

Owns what is remembered from one connection to the next. Time and chance are arguments.
"""

from dataclasses import dataclass
from typing import Final

from accord.relay.gateway.limits import Limits
from accord.relay.wire import REPLACED, RESTARTING, AfterClose, after_close, backoff

_FAR: Final = 99


@dataclass(frozen=True, slots=True)
class Ended:
    """How a connection ended, or failed to begin.

    Attributes:
        code: The close code; 0 where there was none.
        reason: What was said about it.
        handshaken: Whether its handshake had succeeded.
    """

    code: int
    reason: str
    handshaken: bool = False


class Redial:
    """The pauses between the dials of one gateway.

    Args:
        limits: The shortest and the longest pause.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._attempt = 0
        self._was_handshaken = False
        self._is_retry = False
        self._retried_at = float("-inf")

    def after(self, end: Ended, *, now: float, chance: float) -> float | None:
        """How many seconds to wait before the next dial; None when there is to be none."""
        if end.handshaken:
            self._attempt, self._was_handshaken, self._is_retry = 0, True, False
        step = after_close(
            end.code, end.reason, handshaken=self._was_handshaken, retried=self._is_retry
        )
        if step is AfterClose.TERMINAL:
            return None
        self._is_retry = step is AfterClose.FRESH_TOKEN
        if self._is_retry and now - self._retried_at > self._limits.longest_delay:
            self._retried_at = now
            return 0.0
        if end.code == RESTARTING and end.handshaken:
            # It was told in due form, so others can be dialled at once; but not by all at once.
            return chance * self._limits.first_delay / 2
        # Two that run under one id must not throw each other out all the time.
        attempt = _FAR if end.code == REPLACED else self._attempt
        self._attempt += 1
        return self.pause(attempt, chance)

    def pause(self, attempt: int, chance: float) -> float:
        """The pause after so many failures."""
        limits = self._limits
        return backoff(attempt, chance, first=limits.first_delay, longest=limits.longest_delay)
