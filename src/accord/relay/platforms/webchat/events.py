"""Messages of the web chat on their way to the connector: all of them, in order.

A stored message is marked after it was ingested; ingesting it again after a crash changes
nothing. Each message is seen by one bot.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from sqlalchemy import Row

from accord.relay.connector.limits import KeyedLock
from accord.relay.connector.platform import InboundEvent, PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.base import PERMANENT, inbound_kind
from accord.relay.platforms.webchat import messages
from accord.relay.platforms.webchat.accounts import Account
from accord.relay.platforms.webchat.chats import ChatKind
from accord.relay.platforms.webchat.feed import Changes
from accord.relay.platforms.webchat.rules import mentions, name_key
from accord.relay.rules.messages import MessageEvent, SessionSource

PLATFORM: Final = "webchat"


def addressed_bot(
    text: str, answered: str | None, bots: Sequence[Account]
) -> tuple[str | None, bool]:
    """Which bot sees a message in a channel, and whether it is addressed.

    The first one mentioned, else the author that is replied to (`answered`), else the first.
    """
    by_name = {name_key(bot.name): bot.id for bot in bots}
    for name in mentions(text):
        if name in by_name:
            return by_name[name], True
    if any(bot.id == answered for bot in bots):
        return answered, True
    return (bots[0].id if bots else None), False


def message_inbound(row: Row[Any]) -> InboundEvent:
    """The inbound event of a stored message."""
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
    # With the chat's id, since a number alone is not unique across stores.
    return InboundEvent(
        PLATFORM,
        row.bot_id,
        f"{row.chat_id}/{row.id}",
        event,
        kind=inbound_kind(row.text),
        addressed=is_direct or row.is_addressed,
    )


_BATCH: Final = 100
_SWEEP_SECONDS: Final = 1.0
# Younger messages are handed over by the process that stored them.
_LEFT_MS: Final = 2_000
_log = structlog.stdlib.get_logger(__name__)


class Handover:
    """Passes stored messages on to the connector."""

    def __init__(self, changes: Changes) -> None:
        self.contexts: dict[str, PlatformContext] = {}
        self._changes = changes
        self._lanes = KeyedLock()

    def access_changed(self, space_id: str | None) -> None:
        """Have the connector forget who can see what in a space; None for all."""
        for context in self.contexts.values():
            context.visibility_changed(space_id)

    async def give(self, chat_id: str, bot_id: str | None) -> None:
        """Hand over what waits in a chat; raises RelayError if the connector does not take it."""
        if bot_id is not None and bot_id not in self.contexts:
            raise RelayError(Code.UNAVAILABLE, "the relay is not running", mend="try again soon")
        await self._give(chat_id, self.contexts)

    async def sweep(self, bot_id: str, context: PlatformContext) -> None:
        """Hand over what other processes left, until cancelled or the lease is lost."""
        before = self._changes.now()
        while True:
            waiting = await self._changes.read(
                lambda c, before=before: messages.list_waiting_chats(c, bot_id, before)  # type: ignore[misc]
            )
            for chat_id in waiting:
                await self._give(chat_id, {bot_id: context})
            await asyncio.sleep(_SWEEP_SECONDS)
            before = self._changes.now() - _LEFT_MS

    async def _give(self, chat_id: str, contexts: Mapping[str, PlatformContext]) -> None:
        async with self._lanes.turn(chat_id):
            while rows := await self._changes.read(
                lambda c: messages.list_waiting(c, chat_id, contexts, _BATCH)
            ):
                given: list[int] = []
                try:
                    for row in rows:
                        try:
                            await contexts[row.bot_id].ingest(message_inbound(row))
                        except RelayError as error:
                            if error.code not in PERMANENT:
                                raise
                            _log.error("a message cannot be stored", id=row.id, reason=str(error))
                        given.append(row.id)
                finally:
                    if given:
                        await self._changes.change(
                            lambda change, given=given: messages.mark_taken(
                                change.connection, given
                            )  # type: ignore[misc]
                        )
