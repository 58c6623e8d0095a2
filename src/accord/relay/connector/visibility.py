"""Who can see a channel, asked of its platform and cached briefly.

No answer, an error and a timeout are all "unknown".
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from accord.kernel.clock import Clock
from accord.relay.rules.gate import Visibility, VisibilityKey

_MOST: Final = 50_000
# Unknown answers are asked again sooner: the cause may be transient.
_UNKNOWN_SECONDS: Final = 5.0


class PlatformPermissions(Protocol):
    """The part of a platform that answers questions about permissions."""

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel; None if unknown."""
        ...

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel; None if unknown."""
        ...


@dataclass(frozen=True, slots=True)
class BotPermissions:
    """Several bots of one platform: a permission holds when one of them confirms it."""

    bots: Sequence[PlatformPermissions]

    async def can_view(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user can see a channel; None if unknown."""
        return await _any(each.can_view(user_id, scope_id, channel_id) for each in self.bots)

    async def can_manage(self, user_id: str, scope_id: str | None, channel_id: str) -> bool | None:
        """Whether a user may manage a channel; None if unknown."""
        return await _any(each.can_manage(user_id, scope_id, channel_id) for each in self.bots)


async def _any(asked: Iterable[Awaitable[bool | None]]) -> bool | None:
    answers = await asyncio.gather(*asked, return_exceptions=True)
    if any(answer is True for answer in answers):
        return True
    return False if all(answer is False for answer in answers) else None


class VisibilityCache:
    """Answers of platforms, cached for `seconds`; `timeout` is how long one may take.

    The mapping of platforms by name may grow later.
    """

    def __init__(
        self,
        platforms: Mapping[str, PlatformPermissions],
        clock: Clock,
        *,
        seconds: float = 30.0,
        timeout: float = 3.0,
    ) -> None:
        self._platforms = platforms
        self._clock = clock
        self._seconds = seconds
        self._timeout = timeout
        self._known: dict[VisibilityKey, tuple[Visibility, float]] = {}
        self._asking: dict[VisibilityKey, asyncio.Task[Visibility]] = {}
        self._flushes = 0

    async def get(self, view: VisibilityKey) -> tuple[Visibility, float]:
        """Whether somebody can see a chat, and when (monotonic clock) that answer expires."""
        known = self._known.get(view)
        if known is not None and self._clock.monotonic() < known[1]:
            return known
        asking = self._asking.get(view)
        if asking is None:
            asking = asyncio.create_task(self._ask(view))
            self._asking[view] = asking
        # Others may wait for the same answer, so cancelling one caller must not cancel it.
        answer = await asyncio.shield(asking)
        return self._known.get(view, (answer, self._clock.monotonic()))

    async def can_manage(self, user_id: str, platform: str, scope_id: str, channel: str) -> bool:
        """Whether somebody is known to manage a channel; not cached."""
        known = self._platforms.get(platform)
        if known is None:
            return False
        try:
            async with asyncio.timeout(self._timeout):
                return await known.can_manage(user_id, scope_id or None, channel) is True
        except Exception:  # noqa: BLE001 (whatever goes wrong in a platform, the answer is no)
            return False

    def flush(self, platform: str, scope_id: str | None = None) -> None:
        """Drop the answers about a platform, or about one scope of it."""
        self._flushes += 1
        for known in (self._known, self._asking):
            for view in [
                view
                for view in known
                if view.platform == platform and scope_id in (None, view.scope_id)
            ]:
                known.pop(view, None)

    async def _ask(self, view: VisibilityKey) -> Visibility:
        flushes = self._flushes
        found = Visibility.UNKNOWN
        try:
            platform = self._platforms.get(view.platform)
            if platform is not None:
                async with asyncio.timeout(self._timeout):
                    answer = await platform.can_view(view.user_id, view.scope_id, view.chat_id)
                if answer is not None:
                    found = Visibility.VISIBLE if answer is True else Visibility.HIDDEN
        except Exception:  # noqa: BLE001 (whatever goes wrong in a platform, nothing is known)
            found = Visibility.UNKNOWN
        finally:
            if self._asking.get(view) is asyncio.current_task():
                del self._asking[view]
        if flushes == self._flushes:
            while len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
            lasting = _UNKNOWN_SECONDS if found is Visibility.UNKNOWN else self._seconds
            self._known.pop(view, None)
            self._known[view] = found, self._clock.monotonic() + min(lasting, self._seconds)
        return found
