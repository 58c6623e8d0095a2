"""Whether a message is meant for the concierge, where it hears more than it should answer.

Pure. Whoever has linked an account is heard in every channel of the tenant; answering all of it
would be a nuisance. So it answers in direct messages, in channels that are its own, and elsewhere
when it is named or given one of its commands.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from accord.relay.wire import MessageEvent


@dataclass(frozen=True, slots=True)
class Manners:
    """Where to answer what.

    Attributes:
        channels: Channels in which everything is meant for it; None for all there are.
        names: By which it is called, without the `@`.
    """

    channels: AbstractSet[str] | None = None
    names: tuple[str, ...] = field(default=("concierge",))

    def concern(self, event: MessageEvent) -> bool:
        """Whether to answer an event."""
        source = event.source
        if self.channels is None or source.chat_type == "dm":
            return True
        if source.chat_id in self.channels or source.parent_chat_id in self.channels:
            return True
        text = event.text.casefold()
        if event.bot_id and f"<@{event.bot_id}>".casefold() in text:
            return True
        return any(f"@{name}".casefold() in text for name in self.names)
