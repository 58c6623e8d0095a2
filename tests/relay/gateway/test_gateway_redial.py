"""After a restart told in due form a gateway dials at once; after anything else it waits."""

import itertools

import pytest
from tests.relay.gateway.conftest import virtually

from accord.relay.gateway import Limits, RelayGateway
from accord.relay.gateway.redial import Ended, Redial
from accord.relay.wire import RESTARTING
from accord.testing import VirtualClock
from accord.testing.connector import Connector


@pytest.mark.parametrize(
    ("end", "pauses"),
    [
        (Ended(RESTARTING, "", handshaken=True), [0.0, 0.5]),
        (Ended(RESTARTING, "", handshaken=False), [0.5, 1.0]),
        (Ended(1006, "", handshaken=True), [0.5, 1.0]),
    ],
)
def test_only_who_was_served_dials_at_once(end: Ended, pauses: list[float]) -> None:
    found = [Redial(Limits()).after(end, now=0.0, chance=chance) for chance in (0.0, 1.0)]
    assert found == pauses


def test_restarts_one_after_another_do_not_add_up() -> None:
    at: list[float] = []

    async def scene(connector: Connector, _: RelayGateway, clock: VirtualClock) -> None:
        for _number in range(5):
            await connector.until(lambda: connector.connected)
            at.append(clock.monotonic())
            await connector.close(RESTARTING, "the connector is restarting")
            await connector.until(lambda: not connector.connected)

    virtually(scene)
    assert all(later - earlier <= 0.6 for earlier, later in itertools.pairwise(at))
