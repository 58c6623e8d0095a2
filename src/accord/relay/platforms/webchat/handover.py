"""Gives the connector what people wrote: all of it, in order, whatever happens in between.

Owns the promise that a message that was stored is ingested, and marked only then. The connector
knows an event by its id, so that handing one over again after a crash changes nothing. Whoever
posts hands over what waits in the chat; whoever owns a bot's lease hands over what was left.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from accord.relay.connector.delivery.lanes import Lanes
from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.webchat import messages
from accord.relay.platforms.webchat.changes import Changes
from accord.relay.platforms.webchat.normalise import inbound

_BATCH: Final = 100
_SWEEP_SECONDS: Final = 1.0
# What is younger is being handed over by whoever took it in.
_LEFT_MS: Final = 2_000
_NEVER: Final = (Code.BAD_REQUEST, Code.TOO_LARGE)
_log = structlog.stdlib.get_logger(__name__)


class Handover:
    """The way from the store to the connector."""

    def __init__(self, changes: Changes) -> None:
        self.contexts: dict[str, PlatformContext] = {}
        self._changes = changes
        self._lanes = Lanes()

    def access_changed(self, space_id: str | None) -> None:
        """Let the connector forget who can see what in a space, or everywhere."""
        for context in self.contexts.values():
            context.visibility_changed(space_id)

    async def give(self, chat_id: str, bot_id: str | None) -> None:
        """Hand over what waits in a chat; returns when the connector has it.

        Raises:
            RelayError: The connector does not take it now.
            StoreError: A store failed.
        """
        if bot_id is not None and bot_id not in self.contexts:
            raise RelayError(Code.UNAVAILABLE, "the relay is not running", mend="try again soon")
        await self._give(chat_id, self.contexts)

    async def sweep(self, bot_id: str, context: PlatformContext) -> None:
        """Hand over what was left, again and again, until cancelled.

        Raises:
            RelayError: The connector does not take it, as when the lease is lost.
            StoreError: A store failed.
        """
        before = self._changes.now()
        while True:
            waiting = await self._changes.read(
                lambda c, before=before: messages.chats_waiting(c, bot_id, before)  # type: ignore[misc]
            )
            for chat_id in waiting:
                await self._give(chat_id, {bot_id: context})
            await asyncio.sleep(_SWEEP_SECONDS)
            before = self._changes.now() - _LEFT_MS

    async def _give(self, chat_id: str, contexts: Mapping[str, PlatformContext]) -> None:
        async with self._lanes.turn(chat_id):
            while rows := await self._changes.read(
                lambda c: messages.waiting(c, chat_id, contexts, _BATCH)
            ):
                given: list[int] = []
                try:
                    for row in rows:
                        try:
                            await contexts[row.bot_id].ingest(inbound(row))
                        except RelayError as error:
                            if error.code not in _NEVER:
                                raise
                            _log.error("a message cannot be kept", id=row.id, reason=str(error))
                        given.append(row.id)
                finally:
                    if given:
                        await self._changes.change(
                            lambda change, given=given: messages.taken(change.connection, given)  # type: ignore[misc]
                        )
