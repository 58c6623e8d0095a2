"""Who can see a channel, as its platform says: asked, believed briefly, never guessed.

Owns the cache of answers. No answer, an error and a timeout are all "unknown", which the gate takes
for a no; so is a platform that is not here.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from accord.kernel.clock import Clock
from accord.relay.gate.facts import Sight, View

_MOST: Final = 50_000
# An unknown is asked again sooner: it may have been a hiccup.
_UNKNOWN_SECONDS: Final = 5.0


class Permissions(Protocol):
    """The part of a platform that answers questions about permissions."""

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel; None where that cannot be said."""
        ...

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel; None where that cannot be said."""
        ...


class Bots:
    """Several bots of one platform: somebody sees or manages what one of them surely says."""

    def __init__(self, bots: Sequence[Permissions]) -> None:
        self._bots = bots

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel; None where that cannot be said."""
        return await _any(each.can_view(user_id, scope_id, channel_id) for each in self._bots)

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel; None where that cannot be said."""
        return await _any(each.can_manage(user_id, scope_id, channel_id) for each in self._bots)


async def _any(asked: Iterable[Awaitable[bool | None]]) -> bool | None:
    answers = await asyncio.gather(*asked, return_exceptions=True)
    if any(answer is True for answer in answers):
        return True
    return False if all(answer is False for answer in answers) else None


class Visibility:
    """Answers of platforms, kept for a while.

    Args:
        platforms: The platforms that run here, by name; it may grow later.
        clock: Where time comes from.
        seconds: How long an answer is believed.
        timeout: How long a platform may take.
    """

    def __init__(
        self,
        platforms: Mapping[str, Permissions],
        clock: Clock,
        *,
        seconds: float = 30.0,
        timeout: float = 3.0,
    ) -> None:
        self._platforms = platforms
        self._clock = clock
        self._seconds = seconds
        self._timeout = timeout
        self._known: dict[View, tuple[Sight, float]] = {}
        self._asking: dict[View, asyncio.Task[Sight]] = {}
        self._flushes = 0

    async def sight(self, view: View) -> tuple[Sight, float]:
        """What somebody can see, and until when (by the monotonic clock) that is believed."""
        known = self._known.get(view)
        if known is not None and self._clock.monotonic() < known[1]:
            return known
        asking = self._asking.get(view)
        if asking is None:
            asking = asyncio.create_task(self._ask(view))
            self._asking[view] = asking
        # Others may wait for the same answer, so that one who gives up does not end it.
        answer = await asyncio.shield(asking)
        return self._known.get(view, (answer, self._clock.monotonic()))

    async def can_manage(self, user_id: str, platform: str, scope_id: str, channel: str) -> bool:
        """Whether somebody may surely manage a channel; asked anew each time."""
        known = self._platforms.get(platform)
        if known is None:
            return False
        try:
            async with asyncio.timeout(self._timeout):
                return await known.can_manage(user_id, scope_id or None, channel) is True
        except Exception:  # noqa: BLE001 (whatever goes wrong in a platform, the answer is no)
            return False

    def flush(self, platform: str, scope_id: str | None = None) -> None:
        """Forget the answers about a platform, or about one scope of it."""
        self._flushes += 1
        for known in (self._known, self._asking):
            for view in [
                view
                for view in known
                if view.platform == platform and scope_id in (None, view.scope_id)
            ]:
                known.pop(view, None)

    async def _ask(self, view: View) -> Sight:
        flushes = self._flushes
        sight = Sight.UNKNOWN
        try:
            platform = self._platforms.get(view.platform)
            if platform is not None:
                async with asyncio.timeout(self._timeout):
                    answer = await platform.can_view(view.user_id, view.scope_id, view.chat_id)
                if answer is not None:
                    sight = Sight.VISIBLE if answer is True else Sight.HIDDEN
        except Exception:  # noqa: BLE001 (whatever goes wrong in a platform, nothing is known)
            sight = Sight.UNKNOWN
        finally:
            if self._asking.get(view) is asyncio.current_task():
                del self._asking[view]
        if flushes == self._flushes:
            while len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
            lasting = _UNKNOWN_SECONDS if sight is Sight.UNKNOWN else self._seconds
            self._known.pop(view, None)
            self._known[view] = sight, self._clock.monotonic() + min(lasting, self._seconds)
        return sight
