"""Frames of unchanged gateways of others, recorded in `tests/relay/recorded`, played again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.platform import MemoryChat, MemoryPlatform

from accord.relay.connector import DeliveryLimits, InboundEvent, InboundKind
from accord.relay.rules import (
    DmDefault,
    MessageEvent,
    PlatformAccount,
    RouteKey,
    SessionOverride,
    SessionSource,
    TenantAccount,
    Visibility,
    VisibilityKey,
    is_stop,
)

RECORDED = Path(__file__).parent.parent / "recorded"


def cases(name: str) -> list[Any]:
    recorded = json.loads((RECORDED / name).read_bytes())["cases"]
    return [pytest.param(case, id=case["id"]) for case in recorded]


@pytest.fixture
def where(sqlite_where: str) -> str:
    """None of this depends on the engine."""
    return sqlite_where


class Player:
    """Plays the steps of one case: both ends of a socket, and a person who writes."""

    def __init__(self, world: Any, source: SessionSource | None = None) -> None:
        self.world = world
        self.source = source
        self.gateway = world.dial("alpha")
        self.found = ""
        self.written = 0

    async def play(self, steps: list[dict[str, Any]]) -> None:
        for step in steps:
            [(who, what)] = step.items()
            await getattr(self, f"_{who}")(what)

    async def _gateway(self, frame: dict[str, Any] | None) -> None:
        if frame is None:
            await self.gateway.leave()
            self.gateway = self.world.dial("alpha")
            return
        given = {name: self.found if value == "*" else value for name, value in frame.items()}
        self.gateway.say(given)

    async def _connector(self, expected: dict[str, Any]) -> None:
        self._compare(await self.gateway.hear(expected["type"]), expected)

    async def _person(self, text: str) -> None:
        assert self.source is not None
        self.written += 1
        name = f"recorded-{self.written}"
        event = MessageEvent(text, self.source, message_id=name, bot_id="bot")
        kind = InboundKind.INTERRUPT if is_stop(text) else InboundKind.MESSAGE
        inbound = InboundEvent(self.source.platform, "bot", name, event, kind=kind)
        await self.world.delivery.take(inbound)

    def _compare(self, frame: Any, expected: Any) -> None:
        for name, value in expected.items():
            if isinstance(value, dict):
                self._compare(frame[name], value)
            elif value == "*":
                self.found = frame[name]
                assert self.found
            else:
                assert frame[name] == value, name


def link(world: Any, source: SessionSource) -> None:
    """Let the person of a case own the instance, wherever the source is."""
    directory, scope = world.directory, source.scope_id
    seat = VisibilityKey(source.platform, scope, source.chat_id, source.user_id or "")
    parent = seat._replace(chat_id=source.parent_chat_id or source.chat_id)
    directory.known = replace(
        directory.known,
        routes={RouteKey(source.platform, scope or source.chat_id): "t1"},
        bindings={TenantAccount("t1", source.platform, source.user_id or ""): ("alpha",)},
        dm_defaults={
            PlatformAccount(source.platform, source.user_id or ""): DmDefault("t1", "alpha")
        },
        visibility={seat: Visibility.VISIBLE, parent: Visibility.VISIBLE},
    )


@pytest.mark.parametrize("case", cases("sessions.json"))
async def test_sessions(world: Any, case: dict[str, Any]) -> None:
    source = SessionSource.from_dict(case["source"])
    world.delivery.add(MemoryPlatform(MemoryChat(name=source.platform)))
    link(world, source)
    if operator := case.get("operator"):
        world.directory.overrides["alpha"] = SessionOverride.from_dict(operator)
    await Player(world, source).play(case["steps"])


@pytest.mark.parametrize("case", cases("hellos.json"))
async def test_hellos(open_world: Any, case: dict[str, Any]) -> None:
    limits = DeliveryLimits(renew_seconds=0.2, sweep_seconds=0.1, refused_seconds=0.2)
    async with open_world(limits=limits) as world:
        world.link("ann", "alpha")
        # What waits for the instance is neither lost nor dead, whatever it says.
        world.chat.write("ann", "c1", "waiting", event_id="w")
        await world.received("w")
        world.delivery.context.platforms.clear()
        for platform, bot in case["bots"]:
            world.delivery.add(MemoryPlatform(MemoryChat(name=platform, bot_id=bot)))
        for platform, reason in case.get("before", []):
            world.directory.refused["alpha", platform, ""] = reason
        player = Player(world)
        frames = await play_hellos(player, case["steps"])
        assert sorted(
            [platform, bot, why] for (_, platform, bot), why in world.directory.refused.items()
        ) == sorted(case["refused"])
        if "closed" in case:
            assert await player.gateway.closed() == tuple(case["closed"])
            assert not await world.delivery.is_empty("alpha")
        else:
            [inbound] = [each for each in frames if each["type"] == "inbound"]
            player.gateway.say({"type": "inbound_ack", "bufferId": inbound["bufferId"]})
            await world.empty("alpha")
        assert await world.delivery.dead_letters() == []


async def play_hellos(player: Player, steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Say every hello at once, and compare the answers in order; what was delivered between."""
    for step in steps:
        if "gateway" in step:
            player.gateway.say(step["gateway"])
    answers = [step["connector"] for step in steps if "connector" in step]
    is_live = any(each["type"] == "descriptor" for each in answers)
    frames: list[dict[str, Any]] = []
    while len(frames) < len(answers) + is_live:
        frames.append(await player.gateway.hear())
    told = [each for each in frames if each["type"] != "inbound"]
    for frame, expected in zip(told, answers, strict=True):
        player._compare(frame, expected)
    return frames
