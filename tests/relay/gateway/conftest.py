"""A gateway between an agent and a connector that tests control."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from accord.relay.gateway import GatewayLimits, GatewaySettings, RelayGateway, Turn
from accord.relay.rules import MessageEvent, SessionSource
from accord.testing import VirtualClock, run_virtual
from accord.testing.connector import GATEWAY, SECRET, Connector

QUICK = GatewayLimits(first_delay=0.01, longest_delay=0.05, edit=0.01, drain=1.0, idle_ack=2.0)

Running = Callable[..., AbstractAsyncContextManager[RelayGateway]]


async def echo(turn: Turn) -> AsyncIterator[str]:
    yield f"you said {turn.event.text}"


def message(text: str, number: str = "m1", chat: str = "c1", user: str = "u1") -> MessageEvent:
    source = SessionSource("web", chat, "group", user_id=user, scope_id="s1")
    return MessageEvent(text, source, message_id=number)


@pytest.fixture
def connector() -> Connector:
    return Connector()


@pytest.fixture
def running(connector: Connector) -> Running:
    """Runs a gateway over a real socket until the block ends."""

    @asynccontextmanager
    async def run(agent: Any = echo, **options: Any) -> AsyncIterator[RelayGateway]:
        given: GatewaySettings = options.pop("settings", GatewaySettings())
        settings = replace(
            given,
            inbox=given.inbox or "memory",
            limits=QUICK if given.limits == GatewayLimits() else given.limits,
        )
        async with connector.listening() as url:
            gateway = RelayGateway(
                options.pop("url", url),
                secret=options.pop("secret", SECRET),
                gateway_id=GATEWAY,
                agent=agent,
                settings=settings,
                **options,
            )
            task = asyncio.create_task(gateway.run())
            try:
                yield gateway
            finally:
                gateway.stop()
                async with asyncio.timeout(10):
                    await task

    return run


def virtually(
    scene: Callable[[Connector, RelayGateway, VirtualClock], Coroutine[Any, Any, None]],
    agent: Any = echo,
    connector: Connector | None = None,
    **options: Any,
) -> None:
    """Play a scene on virtual time, with the gateway running beside it."""
    clock = VirtualClock()
    end = connector or Connector(clock=clock)
    settings = replace(options.pop("settings", GatewaySettings()), inbox="memory")

    async def play() -> None:
        gateway = RelayGateway(
            options.pop("url", "https://connector.example"),
            secret=SECRET,
            gateway_id=GATEWAY,
            agent=agent,
            settings=settings,
            clock=clock,
            dial=end.dial,
            chance=options.pop("chance", lambda: 1.0),
            **options,
        )
        task = asyncio.create_task(gateway.run())
        try:
            await scene(end, gateway, clock)
        finally:
            gateway.stop()
            await task

    run_virtual(play(), clock=clock, max_seconds=100_000)
