"""People and bots: on a real Matrix homeserver, and on a Discord of our own."""

from collections.abc import AsyncIterator

import pytest
from tests.fakes.discord.channels import Channel
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.people import User
from tests.fakes.discord.server import FakeDiscord
from tests.relay.platforms.discord_bots import Bot, opened
from tests.relay.platforms.matrix_people import Person, Town

from accord.testing.servers import Server


@pytest.fixture
async def town(synapse: Server) -> AsyncIterator[Town]:
    """People and bots on the homeserver, whom no other test knows."""
    async with Town.open(synapse) as found:
        yield found


@pytest.fixture
async def ann(town: Town) -> Person:
    return await town.person("ann")


@pytest.fixture
async def ben(town: Town) -> Person:
    return await town.person("ben")


@pytest.fixture
async def fake() -> AsyncIterator[FakeDiscord]:
    """Discord, on this machine."""
    made = FakeDiscord()
    async with made.serving():
        yield made


@pytest.fixture
def guild(fake: FakeDiscord) -> Guild:
    return fake.guild("Harbour")


@pytest.fixture
def ada(fake: FakeDiscord, guild: Guild) -> User:
    made = fake.user("ada")
    guild.join(made)
    return made


@pytest.fixture
def general(guild: Guild) -> Channel:
    return guild.channel("general")


@pytest.fixture
async def bot(fake: FakeDiscord) -> AsyncIterator[Bot]:
    async with opened(fake) as made:
        yield made
