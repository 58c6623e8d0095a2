"""The trouble that a test makes for those who ask: outages, lost answers, slowness.

Owns what goes wrong and for how long. It never changes the world.
"""

import math
from dataclasses import dataclass

from accord.kernel.clock import Clock
from accord.testing.discord.rest.api import Answer, made

_PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>cloudflare</body></html>"


@dataclass(eq=False, slots=True)
class Trouble:
    """What goes wrong at the moment.

    Attributes:
        drops: How many of the next requests get no answer and have no effect.
        losses: How many of the next requests have their effect and get no answer.
        delay: Seconds before each answer.
    """

    clock: Clock
    drops: int = 0
    losses: int = 0
    delay: float = 0.0
    _status: int = 500
    _ends_at: float = -math.inf

    def outage(self, seconds: float = math.inf, status: int = 500) -> None:
        """Answer everything with a server error, for a time by the clock or until `recover`."""
        self._status = status
        self._ends_at = self.clock.now() + seconds

    def recover(self) -> None:
        """Have no trouble any more."""
        self._ends_at = -math.inf
        self.drops = self.losses = 0
        self.delay = 0.0

    @property
    def status(self) -> int | None:
        """The error that everything is answered with; None while there is no outage."""
        return self._status if self.clock.now() < self._ends_at else None

    def drops_this(self) -> bool:
        """Whether this request gets no answer and has no effect."""
        if self.drops == 0:
            return False
        self.drops -= 1
        return True

    def loses_this(self) -> bool:
        """Whether this request's answer is lost."""
        if self.losses == 0:
            return False
        self.losses -= 1
        return True


def out_of_order(status: int) -> Answer:
    """What is answered during an outage: the API's own error, or a page from before it."""
    if status == 500:
        return made(500, {"message": "500: Internal Server Error", "code": 0})
    return Answer(status, _PAGE, {"Content-Type": "text/html"})
