"""Command menus: what agents offer, stored for all connectors, and shown by one of them.

A gateway may be connected to any connector. Its manifest is stored, and the connector that holds
the bot's lease gives the platform those of all agents; it looks again when the bus tells of a
change, and from time to time because a hint may be lost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import orjson
import structlog
from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from accord.relay.connector.bus import BusHint, RelayBus, Topic
from accord.relay.connector.directory import DeliveryContext
from accord.relay.connector.platform import Platform, PlatformWithCommands
from accord.relay.connector.store import on_outbox
from accord.relay.connector.tables import command_offers
from accord.storage import StoreError

_MOST_BYTES: Final = 64 * 1024
_AGAIN_SECONDS: Final = 60.0
_log = structlog.stdlib.get_logger(__name__)

Bot: TypeAlias = tuple[str, str]
"""A platform's name and the id of its bot there."""


def _upsert(dialect: Any) -> Any:
    row = dialect.insert(command_offers)
    kept = {"manifest": row.excluded.manifest}
    return row.on_conflict_do_update(index_elements=list(command_offers.primary_key), set_=kept)


_STORE: Final = {"postgresql": _upsert(postgresql), "sqlite": _upsert(sqlite)}


def store_offer(connection: Connection, bot: Bot, instance: str, manifest: str) -> bool:
    """Store the manifest of an instance; False if it is the same as before."""
    table = command_offers.c
    is_this = (table.platform == bot[0], table.bot_id == bot[1], table.instance == instance)
    if connection.execute(select(table.manifest).where(*is_this)).scalar() == manifest:
        return False
    row = {"platform": bot[0], "bot_id": bot[1], "instance": instance, "manifest": manifest}
    connection.execute(_STORE[connection.dialect.name], row)
    return True


def read_offers(connection: Connection, bot: Bot) -> dict[str, str]:
    """The manifests of all instances for a bot."""
    table = command_offers.c
    query = select(table.instance, table.manifest)
    rows = connection.execute(query.where(table.platform == bot[0], table.bot_id == bot[1]))
    return {row.instance: row.manifest for row in rows}


def drop_offers(connection: Connection, instance: str) -> bool:
    """Delete what an instance offers; whether there was something."""
    gone = delete(command_offers).where(command_offers.c.instance == instance)
    return connection.execute(gone).rowcount > 0


@dataclass(eq=False, repr=False)
class CommandMenus:
    """The menus of all bots; `owned` are the platforms whose lease this process holds."""

    context: DeliveryContext
    bus: RelayBus
    # What each platform was given, by instance.
    _given: dict[Bot, dict[str, str]] = field(default_factory=dict)
    _is_stale: bool = True
    _read_at: float = 0.0

    async def offer(self, platform: Platform, instance: str, manifest: Any) -> None:
        """Store what an instance offers on a platform; a manifest that is too long is ignored."""
        text = orjson.dumps(manifest).decode()
        if len(text) > _MOST_BYTES:
            _log.warning("a command manifest is too long", instance=instance, bytes=len(text))
            return
        bot = (platform.name, platform.bot_id)
        work = on_outbox(instance, lambda c: store_offer(c, bot, instance, text))
        if await self.context.store.write(work):
            self.bus.publish(BusHint(Topic.COMMANDS, ""))

    async def withdraw(self, instance: str) -> None:
        """Forget what an instance offers."""
        work = on_outbox(instance, lambda c: drop_offers(c, instance))
        if await self.context.store.write(work):
            self.bus.publish(BusHint(Topic.COMMANDS, ""))

    def hint(self) -> None:
        """Some offer has changed."""
        self._is_stale = True

    async def refresh(self, owned: Sequence[Platform]) -> None:
        """Give platforms what changed since the last time, if this process holds their leases."""
        bots = {
            (each.name, each.bot_id): each
            for each in owned
            if isinstance(each, PlatformWithCommands)
        }
        for lost in self._given.keys() - bots.keys():
            del self._given[lost]
        now = self.context.clock.monotonic()
        is_due = self._is_stale or now - self._read_at >= _AGAIN_SECONDS
        if not is_due and bots.keys() == self._given.keys():
            return
        self._is_stale, self._read_at = False, now
        try:
            for bot, platform in bots.items():
                self._give(bot, platform, await self._read(bot))
        except StoreError:
            self._is_stale = True
            raise

    async def _read(self, bot: Bot) -> dict[str, str]:
        return await self.context.store.read(lambda c: read_offers(c, bot))

    def _give(self, bot: Bot, platform: PlatformWithCommands, offers: dict[str, str]) -> None:
        if bot not in self._given:
            # The lease was gained just now; whoever had it may have shown something else.
            platform.begin_commands()
        given = self._given.get(bot, {})
        for instance in sorted(offers):
            if given.get(instance) != offers[instance]:
                platform.offer_commands(instance, orjson.loads(offers[instance]))
        for instance in sorted(given.keys() - offers.keys()):
            platform.offer_commands(instance, [])
        self._given[bot] = offers
