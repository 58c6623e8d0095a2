"""Two connectors share the shards of one Discord bot."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.discord.opcodes import GatewayTerms
from tests.fakes.discord.server import FakeDiscord
from tests.relay.platforms.discord_bots import settings

from accord.kernel.clock import SystemClock
from accord.relay.connector import (
    RELAY,
    Connector,
    DeliveryLimits,
    Keyring,
    LocalBus,
    PlatformState,
    leases,
    open_connector,
)
from accord.relay.connector.leases import ShardLeases
from accord.relay.platforms import discord
from accord.relay.platforms.discord import edge
from accord.relay.rules import SessionRules, Shard
from accord.storage import open_store

CLOCK = SystemClock()
LIMITS = DeliveryLimits(renew_seconds=0.1, sweep_seconds=0.1, lease_seconds=2.0)


@dataclass
class Place:
    """One Discord, one store, one bus."""

    fake: FakeDiscord
    where: str
    keyring: Keyring
    bus: LocalBus

    @asynccontextmanager
    async def connector(self, name: str, **more: Any) -> AsyncIterator[Connector]:
        async with (
            discord.open_discord(
                settings(self.fake, **more), CLOCK, chance=lambda: 0.0
            ) as platform,
            open_store(self.where, RELAY) as store,
            open_connector(
                store,
                self.keyring,
                CLOCK,
                name=name,
                platforms=[platform],
                bus=self.bus,
                limits=LIMITS,
            ) as connector,
        ):
            yield connector


def shards(connector: Connector) -> list[int]:
    [found] = connector.delivery.leases
    assert isinstance(found, ShardLeases)
    return [each.number for each in found.shards]


def is_ready(connector: Connector) -> bool:
    [status] = connector.delivery.statuses
    return status.state is PlatformState.READY


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.fixture
async def place(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    monkeypatch.setattr(edge, "_IDENTIFY_SECONDS", 0.05)
    fake = FakeDiscord(terms=GatewayTerms(shards=4))
    async with fake.serving():
        yield Place(fake, where, Keyring.load(tmp_path / "relay.key"), LocalBus())


async def enrol(connector: Connector, fake: FakeDiscord) -> None:
    """An agent for all guilds, whose gateway has said hello before."""
    control = connector.control
    token = await control.mint_token("t1", "echo")
    await control.enrol(token.token, "gw")
    caller = await control.principal("echo")
    await control.directory.choose_sessions("echo", SessionRules(), lambda _: True)
    await control.directory.front(caller, "discord", fake.bot.id)
    for guild in fake.world.guilds.values():
        await control.route("t1", "discord", guild.id)


async def taken(connector: Connector, texts: set[str]) -> None:
    """Wait until these wait for the agent."""
    query = "SELECT body FROM buffer WHERE instance = 'echo'"

    async def bodies() -> list[str]:
        return await connector.store.read(lambda c: list(c.exec_driver_sql(query).scalars()))

    async with asyncio.timeout(30):
        while True:
            found = await bodies()
            if all(any(text in body for body in found) for text in texts):
                assert len(found) == len(texts)
                return
            await asyncio.sleep(0.02)


async def test_connectors_share_the_shards_and_take_over_from_each_other(place: Place) -> None:
    fake, ada = place.fake, place.fake.user("ada")
    rooms = []
    for number in range(8):
        guild = fake.guild(f"guild {number}")
        guild.join(ada)
        rooms.append(guild.channel("general"))
    async with AsyncExitStack() as opened:
        first = await opened.enter_async_context(place.connector("one"))
        await until(lambda: shards(first) == [0, 1, 2, 3] and is_ready(first))
        await enrol(first, fake)
        async with place.connector("two") as second:
            await until(lambda: len(shards(first)) == len(shards(second)) == 2)
            assert sorted(shards(first) + shards(second)) == [0, 1, 2, 3]
            await until(lambda: is_ready(first) and is_ready(second))
            # The direct message is heard on the first shard, and binds ada on all of them.
            direct = fake.dm(ada)
            code = (await second.control.link(await second.control.principal("echo"))).code
            ada.write(direct, f"/link {code}")
            await fake.until(lambda: len(fake.said(direct)) == 1)
            ada.write(direct, "yes")
            await fake.until(lambda: len(fake.said(direct)) == 2)
            told = set()
            for number, room in enumerate(rooms):
                ada.write(room, f"hello {number}.", mentions=[fake.bot])
                told.add(f"hello {number}.")
            await taken(first, told)
        await until(lambda: shards(first) == [0, 1, 2, 3] and is_ready(first))
        for number, room in enumerate(rooms):
            ada.write(room, f"again {number}.", mentions=[fake.bot])
            told.add(f"again {number}.")
        await taken(first, told)
    used = {session.shard for session in fake.gateway.sessions.values()}
    assert used == {(0, 4), (1, 4), (2, 4), (3, 4)}


async def test_a_new_number_of_shards_misses_nothing(place: Place) -> None:
    fake, ada = place.fake, place.fake.user("ada")
    rooms = []
    for number in range(6):
        guild = fake.guild(f"guild {number}")
        guild.join(ada)
        rooms.append(guild.channel("general"))
    async with place.connector("one", shards=1) as first:
        await enrol(first, fake)
        await first.control.bind("echo", "discord", ada.id)
        await until(lambda: shards(first) == [0] and is_ready(first))
        for number, room in enumerate(rooms):
            ada.write(room, f"before {number}.", mentions=[fake.bot])
        told = {f"before {number}." for number in range(6)}
        await taken(first, told)
    for number, room in enumerate(rooms):
        ada.write(room, f"between {number}.", mentions=[fake.bot])
        told.add(f"between {number}.")
    async with place.connector("one", shards=3) as second:
        await taken(second, told)
        assert shards(second) == [0, 1, 2]


async def test_the_one_shard_that_is_set_has_a_lease_of_its_own(place: Place) -> None:
    async with (
        place.connector("one", shard=(0, 2)) as first,
        place.connector("two", shard=(1, 2)) as second,
    ):
        await until(lambda: is_ready(first) and is_ready(second))
        names = [each.delivery.leases[0].fence.lease for each in (first, second)]  # type: ignore[union-attr]
        base = f"discord:{place.fake.bot.id}"
        assert names == [leases.lease_name(base, Shard(number, 2)) for number in (0, 1)]


async def test_without_an_answer_how_many_there_are_it_is_in_trouble_and_asks_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "_LONGEST_DELAY", 0.1)
    place.fake.outage()
    async with place.connector("one") as connector:
        await until(lambda: connector.delivery.statuses[0].state is PlatformState.TROUBLED)
        place.fake.recover()
        await until(lambda: shards(connector) == [0, 1, 2, 3])
