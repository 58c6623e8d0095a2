"""What a message is to the connector.

Owns which bot sees a message and the form in which it is handed on. Each message is seen by one
bot, so that an agent who is reached through several hears it once.
"""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Row

from accord.relay.connector.platform import Inbound, InboundKind
from accord.relay.platforms.webchat.access import ChatKind
from accord.relay.platforms.webchat.accounts import Account
from accord.relay.platforms.webchat.words import mentions, name_key
from accord.relay.wire.event import MessageEvent
from accord.relay.wire.source import SessionSource

PLATFORM: Final = "webchat"
_STOP: Final = "/stop"


def spoken_to(text: str, answered: str | None, bots: Sequence[Account]) -> tuple[str | None, bool]:
    """Which bot sees a message in a channel, and whether it is spoken to.

    The one that is mentioned first, else the one whose message is answered, else the first of all.

    Args:
        text: The message.
        answered: The author of the message that it answers.
        bots: Every bot, the oldest first.
    """
    by_name = {name_key(bot.name): bot.id for bot in bots}
    for name in mentions(text):
        if name in by_name:
            return by_name[name], True
    if any(bot.id == answered for bot in bots):
        return answered, True
    return (bots[0].id if bots else None), False


def inbound(row: Row[Any]) -> Inbound:
    """A stored message, with its author and its chat, as the connector takes it."""
    is_direct = row.kind == ChatKind.DIRECT
    source = SessionSource(
        platform=PLATFORM,
        chat_id=row.chat_id,
        chat_type=row.kind,
        chat_name=row.author_name if is_direct else row.chat_name,
        user_id=row.author_id,
        user_name=row.author_name,
        thread_id=row.chat_id if row.kind == ChatKind.THREAD else None,
        scope_id=row.space_id,
        parent_chat_id=row.parent_id,
        message_id=str(row.id),
    )
    event = MessageEvent(
        row.text,
        source,
        message_id=str(row.id),
        reply_to_message_id=None if row.reply_to is None else str(row.reply_to),
        bot_id=row.bot_id,
    )
    is_stop = row.text.lower() == _STOP
    # With the chat, whose id is unlike that of any other store's: a number alone is not.
    return Inbound(
        PLATFORM,
        row.bot_id,
        f"{row.chat_id}/{row.id}",
        event,
        kind=InboundKind.INTERRUPT if is_stop else InboundKind.MESSAGE,
        addressed=is_direct or row.is_addressed,
    )
