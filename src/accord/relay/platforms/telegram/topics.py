"""Which topic of a forum something belongs to, where an action does not say it.

Our gateways name the topic with what they send; existing ones name the message that they answer,
and a typing notice names the chat alone. Owns a short memory of what was heard lately.
"""

from collections import OrderedDict
from typing import Final

from accord.relay.wire.source import SessionSource

_MOST: Final = 10_000


class Topics:
    """The topics of the messages that were heard last."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()

    def hear(self, source: SessionSource) -> None:
        """Remember where a message was written."""
        for message_id in (source.message_id or "", ""):
            place = (source.chat_id, message_id)
            self._known.pop(place, None)
            if source.thread_id:
                self._known[place] = source.thread_id
        while len(self._known) > _MOST:
            self._known.popitem(last=False)

    def of_message(self, chat_id: str, message_id: str | None) -> str | None:
        """The topic of a message."""
        return self._known.get((chat_id, message_id)) if message_id else None

    def latest(self, chat_id: str) -> str | None:
        """The topic in which somebody wrote last."""
        return self._known.get((chat_id, ""))
