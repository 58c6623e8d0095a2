"""How many frames a gateway may send: a steady rate, and some saved up."""

from accord.kernel.clock import Clock

_BURST_SECONDS = 10


class Allowance:
    """What is left to spend.

    Args:
        clock: Where the time comes from.
        rate: How much is gained each second; ten seconds' worth can be saved up.
    """

    __slots__ = ("_at", "_clock", "_left", "_rate")

    def __init__(self, clock: Clock, rate: float) -> None:
        self._clock = clock
        self._rate = rate
        self._left = rate * _BURST_SECONDS
        self._at = clock.monotonic()

    def spend(self, amount: float) -> bool:
        """Whether there was enough."""
        now = self._clock.monotonic()
        gained = self._left + (now - self._at) * self._rate
        self._left = min(gained, self._rate * _BURST_SECONDS) - amount
        self._at = now
        return self._left >= 0
