"""When a gateway dials again: section 1 of the notes on the specification. Pure.

Owns what is remembered from one connection to the next. Time and chance are arguments.
"""

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

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


def is_near(url: str) -> bool:
    """Whether a connector is on this machine or on its network, as its address alone tells."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_private
    except ValueError:
        return False


class Redial:
    """The pauses between the dials of one gateway.

    Args:
        limits: The shortest and the longest pauses.
        near: Whether the connector is on this machine or on its network.
    """

    def __init__(self, limits: Limits, *, near: bool = False) -> None:
        self._limits = limits
        near_delay = limits.near_delay if near else limits.longest_delay
        self._longest = min(near_delay, limits.longest_delay)
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
        attempt = self._attempt
        self._attempt += 1
        if end.code == REPLACED:
            # Two that run under one id must not throw each other out all the time, near or far.
            return backoff(_FAR, chance, longest=self._limits.longest_delay)
        return self.pause(attempt, chance)

    def pause(self, attempt: int, chance: float) -> float:
        """The pause after so many failures."""
        return backoff(attempt, chance, first=self._limits.first_delay, longest=self._longest)
