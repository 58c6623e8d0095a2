"""What a batch of news left out: the gap before it, and what was said since the bot got in.

Owns how a room's past is read, page by page. What the bot may not read is not there for it; what
cannot be read just now raises, so that it is asked for again.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import orjson
import structlog

from accord.relay.errors import Code, RelayError
from accord.relay.platforms.matrix.homeserver import LONG_WAIT, Homeserver, room_path
from accord.relay.platforms.matrix.messages import ENCRYPTED, MESSAGE, STICKER
from accord.relay.platforms.matrix.state import (
    CHILD,
    ENCRYPTION,
    MEMBER,
    PARENT,
    SINGLE,
    membership_of,
)

STATE: Final = [*SINGLE, ENCRYPTION, MEMBER, PARENT, CHILD]
"""The kinds of state that are wanted."""

TIMELINE: Final = [MESSAGE, STICKER, ENCRYPTED, *STATE]
"""The kinds of events that are wanted."""

_FILTER: Final = orjson.dumps({"types": TIMELINE}).decode()
_PAGE: Final = 200
_MOST_PAGES_BACK: Final = 10
_MOST_EMPTY_PAGES: Final = 100
_log = structlog.stdlib.get_logger(__name__)


class History:
    """The past of the bot's rooms."""

    def __init__(self, homeserver: Homeserver, bot_id: str) -> None:
        self._homeserver = homeserver
        self._bot_id = bot_id

    def gap(self, room_id: str, start: str, end: str) -> AsyncIterator[list[Any]]:
        """What was said between two positions, in order, a page at a time."""
        return self._pages(room_id, "f", start, end)

    async def entry(self, room_id: str, events: list[Any]) -> str | None:
        """The event by which the bot got into a room just now: its invitation, else its joining."""
        joined = [each for each in events if membership_of(each, self._bot_id) == "join"]
        if not joined:
            return None
        own = joined[-1]
        unsigned = _object(own, "unsigned")
        replaced = unsigned.get("replaces_state")
        before: Any = _object(unsigned, "prev_content").get("membership")
        if before is None and isinstance(replaced, str):
            event = await self._allowed(room_path(room_id, "event", replaced))
            before = membership_of(event, self._bot_id)
        if before == "join":
            return None
        entry = replaced if before == "invite" else own.get("event_id")
        return entry if isinstance(entry, str) else None

    async def since_entry(
        self, room_id: str, timeline: list[Any], before: Any, entry: str
    ) -> list[Any]:
        """What was said since the bot got in; a few pages at most."""
        found = timeline
        if _place(found, entry) is None and isinstance(before, str):
            pages = 0
            async for page in self._pages(room_id, "b", before, None):
                found = page[::-1] + found
                pages += 1
                if _place(page, entry) is not None or pages == _MOST_PAGES_BACK:
                    break
        return found[_place(found, entry) or 0 :]

    async def _pages(
        self, room_id: str, direction: str, start: str, end: str | None
    ) -> AsyncIterator[list[Any]]:
        """What was said in a room from one position on, a page at a time."""
        query = {"dir": direction, "limit": str(_PAGE), "filter": _FILTER, "from": start}
        if end is not None:
            query["to"] = end
        empty = 0
        while empty < _MOST_EMPTY_PAGES:
            answer = await self._allowed(room_path(room_id, "messages"), query)
            chunk = answer.get("chunk") if isinstance(answer, dict) else None
            events = chunk if isinstance(chunk, list) else []
            empty = 0 if events else empty + 1
            yield events
            after = answer.get("end") if isinstance(answer, dict) else None
            if not isinstance(after, str) or after == query["from"]:
                return
            query["from"] = after

    async def _allowed(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        """An answer about a room; None where the bot may not have it, which no waiting mends."""
        try:
            return await self._homeserver.ask("GET", path, query=query, patience=LONG_WAIT)
        except RelayError as error:
            if error.code not in (Code.BAD_REQUEST, Code.FORBIDDEN, Code.NOT_FOUND):
                raise
            _log.warning("a part of a room cannot be read", reason=str(error))
            return None


def _place(events: list[Any], event_id: str) -> int | None:
    for index, event in enumerate(events):
        if isinstance(event, dict) and event.get("event_id") == event_id:
            return index
    return None


def _object(value: Any, name: str) -> dict[str, Any]:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}
