"""The web chat of one process, put together.

Owns the start and the end of what runs. A connector is given its `platforms`; the first of them
brings the routes along.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence

from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource
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
        platforms: One for each bot, for the connector.
    """

    def __init__(
        self, store: Store, clock: Clock, settings: WebChatSettings, bots: Sequence[Account]
    ) -> None:
        changes = Changes(store, clock)
        handover = Handover(changes)
        self.admin = Admin(changes, clock, settings)
        self.tail = Tail(changes, handover.access_changed)
        conversation = Conversation(changes, UlidSource(clock), bots, handover)
        doors = Doors(changes, UlidSource(clock), settings)
        http = ChatRoutes(conversation, doors, self.tail, clock, settings)
        self.counts = http.counts
        self.platforms = tuple(
            WebChatPlatform(bot, changes, handover, [] if number else http.routes)
            for number, bot in enumerate(bots)
        )


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
            chat.tail.close()
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
