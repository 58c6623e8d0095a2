"""How a socket ends, and what a gateway does next: section 1 of the notes on the specification.

Pure: chance is an argument, and nobody waits here.
"""

from enum import Enum
from typing import Final

UNAUTHORIZED: Final = 4401
"""The close code of a socket whose token is not, or no longer, good."""

REPLACED: Final = 4409
"""The close code of a socket whose gateway has dialled again."""

RESTARTING: Final = 1012
"""The close code of a connector that goes away in due form: another one, or it itself, is there."""

_FIRST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 30.0


class Reason(Enum):
    """What a close with `UNAUTHORIZED` says."""

    REVOKED = "revoked"
    UNAUTHORIZED = "unauthorized"
    EXPIRED = "expired"


class AfterClose(Enum):
    """What a gateway does after a close."""

    RETRY = "retry"
    """Dial again after the backoff."""
    FRESH_TOKEN = "fresh token"  # noqa: S105 (a state, not a secret)
    """Make a fresh token and dial again at once."""
    TERMINAL = "terminal"
    """Stop: the access was revoked."""


def after_close(code: int, reason: str, *, handshaken: bool, retried: bool) -> AfterClose:
    """Decide what follows a close.

    A token that expired, as when a machine slept, is never a revocation. One immediate dial with a
    fresh token is made before a revocation is believed, and none before the first handshake.

    Args:
        code: The close code.
        reason: The text that came with it.
        handshaken: Whether a handshake ever succeeded with this secret.
        retried: Whether this was the immediate dial itself, not handshaken since.
    """
    if code != UNAUTHORIZED:
        return AfterClose.RETRY
    if reason == Reason.EXPIRED.value:
        # Expired twice in a row is a clock that is wrong: no dialling in a tight loop.
        return AfterClose.RETRY if retried else AfterClose.FRESH_TOKEN
    if not handshaken:
        return AfterClose.RETRY
    return AfterClose.TERMINAL if retried else AfterClose.FRESH_TOKEN


def backoff(
    attempt: int, chance: float, *, first: float = _FIRST_DELAY, longest: float = _LONGEST_DELAY
) -> float:
    """Seconds to wait before dialling again: doubling, with up to half of it left to chance.

    Args:
        attempt: How many dials have failed since the last handshake, from 0.
        chance: From 0 to 1; many gateways that fell together must not return together.
        first: The delay of attempt 0.
        longest: The greatest delay.
    """
    delay = min(longest, first * 2.0 ** min(max(attempt, 0), 60))
    return delay * (0.5 + min(max(chance, 0.0), 1.0) / 2)
