"""What becomes of an update, whichever way it came.

Owns that no update stops those behind it: one that makes no sense, or that can never be kept, is
passed over and its kind logged. What could not be kept now is raised, for Telegram to send again.
"""

from typing import Any

import structlog

from accord.relay.connector.platform import Inbound, PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.telegram.entities import Me
from accord.relay.platforms.telegram.normalise import kind, normalise, stale_chat
from accord.relay.platforms.telegram.topics import Topics

_HOPELESS = (Code.BAD_REQUEST, Code.TOO_LARGE)
_log = structlog.stdlib.get_logger(__name__)


class Receiving:
    """The way of an update to the connector.

    Args:
        me: Who the bot is.
        topics: Told where messages are written.
    """

    def __init__(self, me: Me, topics: Topics) -> None:
        self._me = me
        self._topics = topics

    async def receive(self, update: Any, context: PlatformContext) -> None:
        """Hand on what an update brings; returns when that is on disk.

        Raises:
            AccordError: It was not taken, and may be later.
        """
        try:
            inbound = self._read(update, context)
            if inbound is None:
                _log.debug("an update is passed over", kind=kind(update))
                return
            self._topics.hear(inbound.event.source)
            await context.ingest(inbound)
        except RelayError as error:
            if error.code not in _HOPELESS:
                raise
            _log.warning("an update is passed over", kind=kind(update), reason=error.what)

    def _read(self, update: Any, context: PlatformContext) -> Inbound | None:
        if not isinstance(update, dict):
            return None
        if stale_chat(update):
            # A chat is in no scope; of all that is known of this platform, it may concern any.
            context.visibility_changed()
            return None
        return normalise(update, self._me)


def chat_of(update: Any) -> int | None:
    """The chat that an update is from, to keep its updates in order."""
    for value in update.values() if isinstance(update, dict) else ():
        chat = value.get("chat") if isinstance(value, dict) else None
        number = chat.get("id") if isinstance(chat, dict) else None
        if type(number) is int:
            return number
    return None
