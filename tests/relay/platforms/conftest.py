"""People and bots on a real homeserver."""

from collections.abc import AsyncIterator

import pytest
from tests.relay.platforms.matrix_people import Person, Town

from accord.testing.servers import Server


@pytest.fixture
async def town(synapse: Server) -> AsyncIterator[Town]:
    """People and bots on the homeserver, whom no other test knows."""
    async with Town.open(synapse) as opened:
        yield opened


@pytest.fixture
async def ann(town: Town) -> Person:
    return await town.person("ann")


@pytest.fixture
async def ben(town: Town) -> Person:
    return await town.person("ben")
