"""What a gateway's frames ask for: a descriptor, an action, an interrupt, more rows.

Owns the choice of the platform that a hello means. Authority always comes from the stored record of
the caller; what a hello says of itself changes nothing else.
"""

from collections import Counter
from collections.abc import Callable

from sqlalchemy import Connection as Database
from sqlalchemy import select

from accord.relay.connector.control.directory import Directory, Principal
from accord.relay.connector.delivery import graveyard
from accord.relay.connector.delivery.entries import Claim, Row
from accord.relay.connector.delivery.graveyard import Burial
from accord.relay.connector.delivery.hub import Hub
from accord.relay.connector.delivery.outbound import OutboundDesk, Platforms
from accord.relay.connector.delivery.tables import buffer, chats
from accord.relay.connector.platform import Commanded, Platform
from accord.relay.connector.storing import Storage
from accord.relay.wire.actions import Result
from accord.relay.wire.descriptor import Descriptor
from accord.relay.wire.frames import Hello, Outbound
from accord.relay.wire.source import GENERIC_PLATFORM


class Reception:
    """The `Office` of every connection of a process."""

    def __init__(
        self,
        store: Storage,
        directory: Directory,
        platforms: Platforms,
        hub: Hub,
        desk: OutboundDesk,
        burial: Callable[[str], Burial],
        counts: Counter[str],
    ) -> None:
        self._store = store
        self._directory = directory
        self._platforms = platforms
        self._hub = hub
        self._desk = desk
        self._burial = burial
        self._counts = counts

    async def greet(self, principal: Principal, hello: Hello) -> Descriptor | str:
        """The descriptor for an identity, or why it is refused."""
        platform = named(self._platforms, hello.platform, hello.bot_id)
        if platform is None:
            return "no such platform"
        instance = principal.instance
        if not await self._directory.choose_dialect(
            instance, hello.session_keys, lambda c: is_empty(c, instance)
        ):
            return "session keys cannot change while something is kept under them"
        await self._directory.front(principal, platform.name, platform.bot_id)
        if isinstance(platform, Commanded) and hello.command_manifest is not None:
            platform.offer_commands(instance, hello.command_manifest)
        return platform.descriptor()

    async def act(self, principal: Principal, outbound: Outbound) -> Result | None:
        """Do what an agent asked for."""
        return await self._desk.act(principal, outbound)

    async def interrupt(self, principal: Principal, session_key: str) -> None:
        """Stop the turn of one session of this instance; of a session it does not have, nothing."""
        chat_id = await self._store.read(lambda c: _chat_of(c, principal.instance, session_key))
        if chat_id is None:
            self._counts["interrupts of nothing"] += 1
        else:
            self._hub.interrupt(principal.tenant, principal.instance, session_key, chat_id)

    async def load(self, instance: str, after: int, limit: int) -> list[Row]:
        """Rows of the buffer after a number."""
        return await self._hub.load(instance, after, limit)

    async def bury(self, claim: Claim, seqs: list[int], reason: str) -> None:
        """Let rows not be delivered again."""
        self._counts["dead letters"] += await self._store.write(
            lambda c: graveyard.bury(c, claim, seqs, self._burial(reason))
        )


def named(platforms: Platforms, name: str, bot_id: str) -> Platform | None:
    """The platform that is meant by a name and a bot's id."""
    if found := platforms.get((name, bot_id)):
        return found
    # A gateway that fronts one bot need not know its id, nor even the platform's name.
    others = [each for each in platforms.values() if name in (each.name, GENERIC_PLATFORM)]
    return others[0] if len(others) == 1 else None


def is_empty(connection: Database, instance: str) -> bool:
    """Whether nothing waits for an instance."""
    query = select(buffer.c.seq).where(buffer.c.instance == instance).limit(1)
    return connection.execute(query).first() is None


def _chat_of(connection: Database, instance: str, session_key: str) -> str | None:
    query = (
        select(chats.c.chat_id)
        .where(chats.c.instance == instance, chats.c.session_key == session_key)
        .order_by(chats.c.delivered_at.desc())
    )
    return connection.execute(query).scalar()
