"""What is known of the chats that messages came from, for what is said in them later.

The connector takes all of it as hints: scope and tenant of a chat come from its own records.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Self

from accord.relay.gateway.inbox import Delivery
from accord.relay.wire import reply_metadata


@dataclass(frozen=True, slots=True)
class Place:
    """How a chat is named to the connector."""

    platform: str | None = None
    bot_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, delivery: Delivery) -> Self:
        """Where an event came from."""
        source = delivery.event.source
        metadata = reply_metadata(source)
        if source.thread_id:
            metadata["thread_id"] = source.thread_id
        return cls(delivery.platform or source.platform, delivery.event.bot_id, metadata)


class Chats:
    """The chats from which something came last.

    Args:
        most: How many are remembered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: OrderedDict[str, Place] = OrderedDict()

    def remember(self, delivery: Delivery) -> None:
        """Something came from this chat."""
        chat_id = delivery.event.source.chat_id
        self._places[chat_id] = Place.of(delivery)
        self._places.move_to_end(chat_id)
        if len(self._places) > self._most:
            self._places.popitem(last=False)

    def find(self, chat_id: str) -> Place:
        """What is known of a chat; of an unknown one, nothing."""
        return self._places.get(chat_id, Place())
