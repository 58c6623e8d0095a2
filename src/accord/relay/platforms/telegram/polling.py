"""Long polling: asking for updates, handing them on, and only then letting Telegram forget them.

Owns the offset. Telegram forgets the updates before it as soon as it is asked with it, so it is
remembered when everything before is on disk, and not earlier.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from accord.kernel.clock import Clock
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.telegram.asking import Asking
from accord.relay.platforms.telegram.normalise import HEARD, update_id
from accord.relay.platforms.telegram.receiving import Receiving, chat_of

_PAGE: Final = 100
# After a week without news Telegram numbers updates anew, and an old offset might hide them.
_OFFSET_MS: Final = 6 * 86_400_000
# Between two questions, where Telegram does not wait for news or sends nothing that can be taken.
_LEAST_SECONDS: Final = 0.5


class Polling:
    """A listener that asks.

    Args:
        asking: How Telegram is asked.
        receiving: What an update goes to.
        context: Where the offset is kept.
        clock: Tells how old it is.
        seconds: How long Telegram may wait for news.
    """

    def __init__(
        self,
        asking: Asking,
        receiving: Receiving,
        context: PlatformContext,
        clock: Clock,
        seconds: int,
    ) -> None:
        self._asking = asking
        self._receiving = receiving
        self._context = context
        self._clock = clock
        self._seconds = seconds
        self._offset = 0
        self._moved_at = 0

    async def run(self) -> None:
        """Listen until cancelled."""
        await self._asking.ask("deleteWebhook", {"drop_pending_updates": False}, bool)
        self._recall(await self._context.recall())
        self._asking.ready()
        while True:
            began = self._clock.monotonic()
            page = await self._asking.ask(
                "getUpdates", self._question(), _read_page, patience=self._seconds
            )
            self._asking.ready()
            if not await self._take(page):
                left = _LEAST_SECONDS - (self._clock.monotonic() - began)
                await asyncio.sleep(max(left, 0))

    def _question(self) -> Mapping[str, Any]:
        asked: dict[str, Any] = {
            "timeout": self._seconds,
            "limit": _PAGE,
            "allowed_updates": list(HEARD),
        }
        if self._offset and self._now() - self._moved_at < _OFFSET_MS:
            asked["offset"] = self._offset
        return asked

    async def _take(self, page: Sequence[Any]) -> bool:
        """Hand on a page, chats side by side; whether the offset moved."""
        numbered = sorted(
            ((number, each) for each in page if (number := update_id(each)) is not None),
            key=lambda pair: pair[0],
        )
        chats: defaultdict[int | None, list[tuple[int, Any]]] = defaultdict(list)
        for number, update in numbered:
            chats[chat_of(update)].append((number, update))
        failures = await asyncio.gather(*(self._take_chat(each) for each in chats.values()))
        failed = [failure for failure in failures if failure is not None]
        first, error = min(failed, key=lambda failure: failure[0]) if failed else (None, None)
        taken = [number for number, _ in numbered if first is None or number < first]
        if taken:
            await self._move(taken[-1] + 1)
        if error is not None:
            raise error
        return bool(taken)

    async def _take_chat(self, updates: Sequence[tuple[int, Any]]) -> tuple[int, Exception] | None:
        """Hand on what happened in one chat, in order, up to the first that is not taken."""
        for number, update in updates:
            try:
                await self._receiving.receive(update, self._context)
            except Exception as error:  # noqa: BLE001 - raised again once the offset is kept
                return number, error
        return None

    async def _move(self, offset: int) -> None:
        now = self._now()
        await self._context.remember({"offset": str(offset), "moved_at": str(now)})
        self._offset, self._moved_at = offset, now

    def _recall(self, state: Mapping[str, str]) -> None:
        offset, moved_at = state.get("offset", ""), state.get("moved_at", "")
        if all(
            each.isascii() and each.isdecimal() and len(each) < 17 for each in (offset, moved_at)
        ):
            self._offset, self._moved_at = int(offset), int(moved_at)

    def _now(self) -> int:
        return int(self._clock.now() * 1000)


def _read_page(value: Any) -> Sequence[Any]:
    if not isinstance(value, list):
        raise RelayError(Code.UNAVAILABLE, "Telegram sent no updates where some were asked for")
    return value[:_PAGE]
