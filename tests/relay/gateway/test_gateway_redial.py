"""After a restart told in due form a gateway dials at once; after anything else it waits."""

import itertools

import pytest
from tests.relay.gateway.conftest import virtually

from accord.relay.gateway import ConnectionEnd, GatewayLimits, Redial, RelayGateway, is_nearby
from accord.relay.rules import REPLACED, RESTARTING
from accord.testing import VirtualClock
from accord.testing.connector import Connector


@pytest.mark.parametrize(
    ("end", "pauses"),
    [
        (ConnectionEnd(RESTARTING, "", handshaken=True), [0.0, 0.5]),
        (ConnectionEnd(RESTARTING, "", handshaken=False), [0.5, 1.0]),
        (ConnectionEnd(1006, "", handshaken=True), [0.5, 1.0]),
    ],
)
def test_only_who_was_served_dials_at_once(end: ConnectionEnd, pauses: list[float]) -> None:
    found = [Redial().after(end, now=0.0, chance=chance) for chance in (0.0, 1.0)]
    assert found == pauses


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("http://127.0.0.1:7070", True),
        ("ws://localhost:7070/relay", True),
        ("https://[::1]:7070", True),
        ("http://192.168.1.4:7070", True),
        ("https://8.8.8.8", False),
        ("https://connector.example", False),
        ("https://[", False),
    ],
)
def test_a_connector_is_near_by_its_address(url: str, near: bool) -> None:
    assert is_nearby(url) is near


def test_after_an_outage_a_near_connector_is_dialled_every_few_seconds() -> None:
    at: list[float] = []

    async def scene(connector: Connector, _: RelayGateway, clock: VirtualClock) -> None:
        connector.describes = False
        for _number in range(7):
            seen = len(connector.dials)
            await connector.until(lambda seen=seen: len(connector.dials) > seen)  # type: ignore[misc]
            at.append(clock.monotonic())
            await connector.close(1011, "not today")

    virtually(scene, url="http://127.0.0.1:7070")
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(at)]
    assert pauses == [1, 2, 4, 5, 5, 5]


def test_near_or_far_half_of_a_pause_is_chance_and_a_replaced_gateway_waits_longest() -> None:
    redial = Redial(near=GatewayLimits().near_delay)
    assert [redial.pause(9, chance) for chance in (0.0, 1.0)] == [2.5, 5.0]
    assert redial.after(ConnectionEnd(REPLACED, "", handshaken=True), now=0.0, chance=1.0) == 30.0


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
