"""The web chat of one process, put together.

Owns the start and the end of what runs. A connector is given its `platforms`; the first of them
brings the routes along.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Sequence

from starlette.routing import BaseRoute

from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
from accord.relay.platforms.webchat import accounts
from accord.relay.platforms.webchat.accounts import Account
from accord.relay.platforms.webchat.admin import Admin
from accord.relay.platforms.webchat.changes import Changes
from accord.relay.platforms.webchat.conversation import Conversation
from accord.relay.platforms.webchat.doors import Doors
from accord.relay.platforms.webchat.handover import Handover
from accord.relay.platforms.webchat.http import ChatRoutes
from accord.relay.platforms.webchat.platform import WebChatPlatform
from accord.relay.platforms.webchat.settings import WebChatSettings
from accord.relay.platforms.webchat.tables import WEBCHAT
from accord.relay.platforms.webchat.tail import Tail
from accord.storage import Store, open_store


class WebChat:
    """The web chat; see `open_webchat`.

    Attributes:
        admin: What an operator does.
        platforms: One for each bot that there was at the start, for the connector.
    """

    def __init__(
        self, store: Store, clock: Clock, settings: WebChatSettings, bots: Sequence[Account]
    ) -> None:
        self._changes = Changes(store, clock)
        self._handover = Handover(self._changes)
        self._bots = list(bots)
        self._found: Callable[[WebChatPlatform], None] | None = None
        self.admin = Admin(self._changes, clock, settings)
        self.tail = Tail(self._changes, self._access_changed)
        conversation = Conversation(self._changes, UlidSource(clock), self._bots, self._handover)
        doors = Doors(self._changes, UlidSource(clock), settings)
        http = ChatRoutes(conversation, doors, self.tail, clock, settings)
        self.counts = http.counts
        self.platforms = tuple(
            self._platform(bot, [] if number else http.routes) for number, bot in enumerate(bots)
        )

    async def follow(self, found: Callable[[WebChatPlatform], None]) -> None:
        """Tell of each bot that is made from now on, or was since this was opened.

        Raises:
            StoreError: The store failed.
        """
        self._found = found
        await self._look_for_bots()

    def close(self) -> None:
        """Let every page go; one that comes back is told nothing more."""
        self.tail.close()

    async def _access_changed(self, space_id: str | None) -> None:
        self._handover.access_changed(space_id)
        if space_id is None:
            await self._look_for_bots()

    async def _look_for_bots(self) -> None:
        if self._found is None:
            return
        for bot in await self._changes.read(accounts.bots):
            if bot not in self._bots:
                self._bots.append(bot)
                # Before anybody can speak to it: there was no turn of the loop in between.
                self._found(self._platform(bot, []))

    def _platform(self, bot: Account, routes: Sequence[BaseRoute]) -> WebChatPlatform:
        return WebChatPlatform(bot, self._changes, self._handover, routes)


@contextlib.asynccontextmanager
async def open_webchat(
    where: str | os.PathLike[str], clock: Clock, settings: WebChatSettings | None = None
) -> AsyncIterator[WebChat]:
    """Open the web chat of a connector process; a bot is made where there is none.

    Args:
        where: A folder, or a `postgresql://` URL.
        clock: Where the time comes from.
        settings: The operator's choices.

    Raises:
        StoreError: Its store cannot be opened.
    """
    settings = settings or WebChatSettings()
    async with open_store(where, WEBCHAT) as store:
        admin = Admin(Changes(store, clock), clock, settings)
        if not await admin.bots():
            await admin.make_bot(settings.bot)
        chat = WebChat(store, clock, settings, await admin.bots())
        following = asyncio.create_task(chat.tail.run())
        try:
            yield chat
        finally:
            chat.close()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


@contextlib.asynccontextmanager
async def open_admin(
    where: str | os.PathLike[str], clock: Clock, settings: WebChatSettings | None = None
) -> AsyncIterator[Admin]:
    """Open a web chat for its operator only, beside the processes that serve it.

    Raises:
        StoreError: Its store cannot be opened.
    """
    async with open_store(where, WEBCHAT) as store:
        yield Admin(Changes(store, clock), clock, settings or WebChatSettings())
