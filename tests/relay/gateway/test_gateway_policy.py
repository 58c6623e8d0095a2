"""A gateway declares at boot which messages concern its agent, and starts whether or not it can."""

from collections.abc import Callable
from typing import Any

from tests.relay.gateway.conftest import Running

from accord.relay.gateway import GatewaySettings, GatewayState, relevance_policies
from accord.relay.rules import read_identities
from accord.testing.connector import Connector


async def test_what_is_declared_is_what_existing_gateways_declare_and_defaults_too(
    connector: Connector, running: Running, vectors: Callable[[str], Any]
) -> None:
    for case in vectors("relay/policy_projection.json")["cases"]:
        connector.policies.clear()
        named = read_identities(case["env"])
        settings = GatewaySettings(
            identities=named, relevance=case["config"], environment=case["env"]
        )
        async with running(settings=settings) as gateway:
            await gateway.reached(GatewayState.RUNNING)
            if named[0][0] == "relay":
                assert connector.policies == []
                continue
            await connector.until(lambda: bool(connector.policies))
        default = {"requireAddress": False, "freeResponseScopes": [], "allowOtherBots": False}
        assert connector.policies == [
            {"platform": "discord", **(case["policy"] or default)},
        ], case["id"]


async def test_every_identity_is_greeted_and_declared(
    connector: Connector, running: Running
) -> None:
    named = (("discord", "app-1"), ("telegram", "tg"))
    async with running(settings=GatewaySettings(identities=named)) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        await connector.until(lambda: len(connector.policies) == 2)
    assert [(each.platform, each.bot_id) for each in connector.hellos] == list(named)
    assert {each.session_keys for each in connector.hellos} == {"scoped"}
    assert [each["platform"] for each in connector.policies] == ["discord", "telegram"]


async def test_a_refused_declaration_is_tried_again_and_holds_nothing_up(
    connector: Connector, running: Running
) -> None:
    connector.statuses.extend([503, 401])
    async with running(settings=GatewaySettings(identities=(("discord", "app-1"),))) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        await connector.until(lambda: bool(connector.policies))
    assert len(connector.posts) == 3


async def test_a_connector_without_the_route_is_asked_once(
    connector: Connector, running: Running
) -> None:
    connector.statuses.append(404)
    async with running(settings=GatewaySettings(identities=(("discord", ""),))) as gateway:
        await gateway.reached(GatewayState.RUNNING)
        await connector.until(lambda: len(connector.posts) == 1)
        connector.drop()
        await connector.until(lambda: len(connector.dials) == 2)
        await gateway.reached(GatewayState.RUNNING)
    assert len(connector.posts) == 1


async def test_a_connector_that_cannot_be_reached_does_not_keep_a_gateway_from_starting(
    connector: Connector, running: Running
) -> None:
    settings = GatewaySettings(identities=(("discord", ""),))
    async with running(url="http://127.0.0.1:1", settings=settings) as gateway:
        assert gateway.health.state is GatewayState.CONNECTING
    assert connector.dials == []


def test_the_generic_platform_has_no_policy() -> None:
    assert relevance_policies(["relay"], {"require_mention": True}, {}) == {}
