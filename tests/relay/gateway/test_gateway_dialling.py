"""When a gateway dials, with what, and when it stops: on virtual time."""

import asyncio
import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.relay.gateway.conftest import Running, echo, virtually

from accord.kernel import canonical, tokens
from accord.relay.errors import RelayError
from accord.relay.gateway import (
    ConnectionEnd,
    GatewayHealth,
    GatewaySettings,
    GatewayState,
    Lifecycle,
    Redial,
    RelayGateway,
)
from accord.relay.rules import REPLACED, UNAUTHORIZED, Descriptor, Hello, HelloRefused
from accord.testing import VirtualClock
from accord.testing.connector import DESCRIPTOR, GATEWAY, SECRET, Connector


def test_pauses_double_to_the_longest_and_begin_anew_only_after_a_handshake() -> None:
    at: list[float] = []

    async def scene(connector: Connector, _: RelayGateway, clock: VirtualClock) -> None:
        connector.describes = False
        for _number in range(8):
            seen = len(connector.dials)
            await connector.until(lambda seen=seen: len(connector.dials) > seen)  # type: ignore[misc]
            at.append(clock.monotonic())
            await connector.close(1011, "not today")
        connector.describes = True
        await connector.until(lambda: connector.connected)
        at.append(clock.monotonic())
        connector.drop()
        await connector.until(lambda: not connector.connected)
        await connector.until(lambda: connector.connected)
        at.append(clock.monotonic())

    virtually(scene)
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(at)]
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30, 1]


def test_half_of_a_pause_is_left_to_chance() -> None:
    pauses = [
        Redial().after(ConnectionEnd(1006, ""), now=0.0, chance=chance) for chance in (0, 0.5, 1)
    ]
    assert pauses == [0.5, 0.75, 1.0]


def test_every_dial_shows_a_fresh_token_for_its_time() -> None:
    async def scene(connector: Connector, _: RelayGateway, clock: VirtualClock) -> None:
        await connector.until(lambda: connector.connected)
        await asyncio.sleep(1000)  # longer than a token lives
        connector.drop()
        await connector.until(lambda: len(connector.dials) == 2)
        await connector.until(lambda: connector.connected)
        first, second = connector.dials
        assert first
        assert second
        assert first != second
        assert tokens.verify(second, [SECRET], clock.now()) == GATEWAY
        assert tokens.expiry(second) == int(clock.now()) + 300

    virtually(scene)


def test_a_refusal_before_any_handshake_is_tried_again() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.refusals.extend(["unauthorized", "revoked", "unauthorized", "revoked"])
        await connector.until(lambda: connector.connected)
        assert len(connector.dials) == 5
        await gateway.reached(GatewayState.RUNNING)

    virtually(scene)


@pytest.mark.parametrize("reason", ["revoked", "unauthorized", ""])
def test_a_revocation_is_believed_after_one_immediate_retry(reason: str) -> None:
    seen: list[GatewayHealth] = []

    async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
        await connector.until(lambda: connector.connected)
        at = clock.monotonic()
        connector.refusals.append(reason)
        await connector.close(UNAUTHORIZED, reason)
        await gateway.reached(GatewayState.DISABLED)
        assert clock.monotonic() - at < 0.1
        assert gateway.health.state is GatewayState.DISABLED
        assert len(connector.dials) == 2
        await asyncio.sleep(3600)
        assert len(connector.dials) == 2

    virtually(scene, on_health=seen.append)
    assert [each.state for each in seen] == [
        GatewayState.RUNNING,
        GatewayState.CONNECTING,
        GatewayState.DISABLED,
    ]
    assert "4401" in seen[-1].reason


def test_a_revocation_that_a_fresh_token_undoes_is_none() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
        await connector.until(lambda: connector.connected)
        at = clock.monotonic()
        await connector.close(UNAUTHORIZED, "unauthorized")
        await connector.until(lambda: len(connector.dials) == 2)
        await connector.until(lambda: connector.connected)
        await gateway.reached(GatewayState.RUNNING)
        assert clock.monotonic() == pytest.approx(at, abs=0.01)

    virtually(scene)


def test_an_expired_token_is_never_a_revocation() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        await connector.until(lambda: connector.connected)
        connector.refusals.extend(["expired"] * 4)
        await connector.close(UNAUTHORIZED, "expired")
        await connector.until(lambda: len(connector.dials) == 6)
        await gateway.reached(GatewayState.RUNNING)

    virtually(scene)


def test_two_gateways_under_one_id_do_not_throw_each_other_out_all_the_time() -> None:
    async def scene(connector: Connector, _: RelayGateway, clock: VirtualClock) -> None:
        await connector.until(lambda: connector.connected)
        at = clock.monotonic()
        await connector.close(REPLACED, "replaced")
        await connector.until(lambda: len(connector.dials) == 2)
        assert clock.monotonic() - at == pytest.approx(30)

    virtually(scene)


@given(
    st.lists(
        st.builds(
            ConnectionEnd,
            st.sampled_from([0, 1000, 1006, 1011, UNAUTHORIZED, REPLACED]),
            st.sampled_from(["", "revoked", "unauthorized", "expired"]),
            st.booleans(),
        ),
        max_size=60,
    ),
    st.floats(0, 1),
)
def test_no_connector_makes_a_gateway_dial_in_a_tight_loop(
    ends: list[ConnectionEnd], chance: float
) -> None:
    redial, now, dials = Redial(), 0.0, 0
    for end in ends:
        delay = redial.after(end, now=now, chance=chance)
        if delay is None:
            assert end.code == UNAUTHORIZED
            assert end.reason != "expired"
            break
        now += delay
        dials += 1
    assert dials <= 2 * now + 2


def test_a_handshake_that_takes_too_long_is_broken_off_and_tried_again() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, clock: VirtualClock) -> None:
        connector.describes = False
        await connector.until(lambda: len(connector.hellos) == 1)
        at = clock.monotonic()
        connector.describes = True
        await gateway.reached(GatewayState.RUNNING)
        assert clock.monotonic() - at == pytest.approx(31)

    virtually(scene)


def test_a_newer_contract_is_accepted() -> None:
    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.descriptor = replace(DESCRIPTOR, contract_version=7)
        await gateway.reached(GatewayState.RUNNING)
        assert gateway.counts["newer contracts"] == 1

    virtually(scene)


def test_a_descriptor_without_a_required_member_fails_the_handshake_with_a_sentence(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    wanting = DESCRIPTOR.to_dict()
    del wanting["len_unit"]

    async def scene(connector: Connector, gateway: RelayGateway, _: VirtualClock) -> None:
        connector.describes = False
        await connector.until(lambda: len(connector.hellos) == 1)
        line = canonical.encode({"type": "descriptor", "descriptor": wanting}).decode()
        await connector.raw(line + "\n")
        connector.describes = True
        await gateway.reached(GatewayState.RUNNING)
        assert len(connector.dials) == 2

    virtually(scene)
    # Where the log goes depends on whether a station was configured in this process before.
    assert "the member len_unit is missing" in capsys.readouterr().out + caplog.text


def test_a_gateway_runs_once_and_needs_its_secret() -> None:
    async def scene(_: Connector, gateway: RelayGateway, __: VirtualClock) -> None:
        await gateway.reached(GatewayState.RUNNING)
        with pytest.raises(RelayError, match="runs once"):
            await gateway.run()

    virtually(scene)
    with pytest.raises(RelayError, match="secret"):
        RelayGateway("https://connector.example", secret="", gateway_id=GATEWAY, agent=echo)
    unsayable = GatewaySettings(command_manifest={"x": object()})
    with pytest.raises(canonical.CanonicalError):
        RelayGateway("https://c", secret=SECRET, gateway_id="g", agent=echo, settings=unsayable)
    nobody = GatewaySettings(identities=())
    with pytest.raises(RelayError, match="at least one platform"):
        RelayGateway("https://c", secret=SECRET, gateway_id="g", agent=echo, settings=nobody)


@given(st.lists(st.sampled_from(GatewayState), max_size=8))
def test_no_illegal_step_is_taken(steps: list[GatewayState]) -> None:
    told: list[GatewayHealth] = []
    life = Lifecycle(told.append)
    for step in steps:
        before = life.state
        try:
            life.move(step)
        except RelayError:
            assert life.state is before
            continue
        assert not before.is_final
        assert life.state is step
        assert told[-1].state is step
    assert not life.state.is_final or life.state in (GatewayState.DISABLED, GatewayState.STOPPED)


def _only_web(hello: Hello) -> Descriptor | HelloRefused:
    if hello.platform == "web":
        return DESCRIPTOR
    return HelloRefused(hello.platform, hello.bot_id, "no such platform")


async def test_a_platform_that_the_connector_refuses_leaves_the_others_served(
    connector: Connector, running: Running
) -> None:
    connector.descriptor = _only_web
    settings = GatewaySettings(identities=(("discord", "d"), ("web", "w")))
    async with running(settings=settings) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        assert gateway.counts["hellos refused"] == 1
        assert len(connector.dials) == 1


async def test_a_connector_that_refuses_every_platform_is_dialled_again(
    connector: Connector, running: Running
) -> None:
    connector.descriptor = _only_web
    async with running(settings=GatewaySettings(identities=(("discord", "d"),))) as gateway:
        await connector.until(lambda: len(connector.dials) == 2)
        assert gateway.health.state is GatewayState.CONNECTING
