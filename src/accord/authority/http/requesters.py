"""Who still waits for a plan: services that ask again and again, and those that stopped asking.

A service that is not accepted yet has no connection whose end could be seen; it asks every few
seconds. One that has not asked for a while is gone, and so are the plans that wait for it
(section 14).
"""

import asyncio
from collections import OrderedDict
from typing import Final

import structlog

from accord.authority.core import Authority
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError

_log = structlog.stdlib.get_logger(__name__)

SILENCE_SECONDS: Final = 600.0
_ROUND_SECONDS: Final = 30.0
_MOST: Final = 10_000


class Requesters:
    """Remembers who asked, and forgets who has gone."""

    def __init__(self, authority: Authority, clock: Clock) -> None:
        self._authority = authority
        self._clock = clock
        self._asked: OrderedDict[str, float] = OrderedDict()

    def asked(self, requester: str) -> None:
        """Take note that somebody waits; of too many, the one silent longest is not followed."""
        self._asked.pop(requester, None)
        self._asked[requester] = self._clock.monotonic()
        if len(self._asked) > _MOST:
            self._asked.popitem(last=False)

    def served(self, requester: str) -> None:
        """Take note that somebody waits no more."""
        self._asked.pop(requester, None)

    async def forget_silent(self) -> None:
        """Remove the plans of those who stopped asking.

        Raises:
            StoreError: The store failed; they are forgotten another time.
        """
        now = self._clock.monotonic()
        for requester in [each for each, at in self._asked.items() if now - at >= SILENCE_SECONDS]:
            await self._authority.forget_requester(requester)
            self.served(requester)

    async def run(self) -> None:
        """Forget until cancelled."""
        while True:
            await asyncio.sleep(_ROUND_SECONDS)
            try:
                await self.forget_silent()
            except AccordError as error:
                _log.warning("requesters were not forgotten", why=str(error))
