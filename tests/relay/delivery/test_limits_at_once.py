"""Limits of delivery that an operator sets: hellos, what is done at once, and when to wake."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.fakes.platform import MemoryPlatform

from accord.kernel.clock import SystemClock
from accord.relay.connector import BusHint, DeliveryLimits, Topic, apply_retention
from accord.relay.rules import (
    Action,
    ChannelGrant,
    Facts,
    GateEvent,
    Outcome,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    Result,
    TenantChannel,
    Visibility,
    VisibilityKey,
)

LIMITS = DeliveryLimits(
    renew_seconds=0.2,
    sweep_seconds=0.02,
    outbox_pause_seconds=0.02,
    outbox_longest_pause_seconds=0.05,
    park_pause_seconds=0.01,
    park_longest_pause_seconds=0.02,
)
BAD_GATEWAY = Result(False, error="it failed with 502", outcome=Outcome.RETRYABLE)


async def test_a_socket_says_so_many_hellos(open_world: Any) -> None:
    async with open_world(limits=replace(LIMITS, gateway_bots=2)) as world:
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        await gateway.hello()
        gateway.say({"type": "hello", "platform": "memory", "botId": "bot"})
        assert await gateway.closed() == (1008, "too many hellos")


async def test_what_waited_is_sent_to_so_many_chats_at_once(
    open_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform, now, most, is_back = MemoryPlatform.perform, 0, 0, False

    async def counted(
        self: MemoryPlatform, action: Action, idempotency_key: str, capability: Any = None
    ) -> Result:
        nonlocal now, most
        if not is_back:
            return BAD_GATEWAY
        now += 1
        most = max(most, now)
        # Long enough for every other lane that may be taken up.
        await asyncio.sleep(5 * LIMITS.sweep_seconds)
        now -= 1
        return await perform(self, action, idempotency_key, capability)

    monkeypatch.setattr(MemoryPlatform, "perform", counted)
    limits = replace(LIMITS, outbox_lanes=1, answer_seconds=0.01)
    chats = ("c1", "c2", "c3")
    async with open_world(limits=limits) as world:
        for chat in chats:
            world.chat.channel(chat, scope_id="g1")
        world.link("ann", "alpha")
        gateway = await world.connect("alpha")
        for chat in chats:
            world.chat.write("ann", chat, "hello")
        await gateway.events(3)
        for chat in chats:
            action = {"op": "send", "chat_id": chat, "content": chat, "metadata": {}}
            gateway.say({"type": "outbound", "requestId": chat, "action": action})
        for _ in chats:
            assert (await gateway.hear("outbound_result"))["result"]["queued"]
        # From then on they are taken up by sweeps alone.
        await world.until(lambda: not world.delivery._outbox._lanes)
        is_back = True
        await world.until(lambda: len(world.chat.said) == 3)
    assert most == 1


async def test_so_many_parked_sessions_are_decided_in_a_round_and_at_once(
    open_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(LIMITS, park_at_once=2, park_sessions=3, sweep_seconds=3600.0)
    users = [f"u{number}" for number in range(5)]
    async with open_world(limits=limits) as world:
        for user in ("bob", *users):
            world.link(user, f"of-{user}")
        known = world.directory.known
        place = TenantChannel("t1", "memory", "g1", "c1")
        unknown = {VisibilityKey("memory", "g1", "c1", "bob"): Visibility.UNKNOWN}
        world.directory.known = replace(
            known,
            grants={place: ChannelGrant("of-bob", "bob")},
            principals={PolicyKey("t1", "of-bob", "memory"): PrincipalRule(PrincipalPolicy.ANY)},
            visibility={**known.visibility, **unknown},
        )
        for user in users:
            world.chat.write(user, "c1", "hello", event_id=user)
        await world.received(*users)
        facts_of, now, most, asked = world.directory.facts_of, 0, 0, 0

        async def counted(event: GateEvent) -> Facts:
            nonlocal now, most, asked
            now, asked = now + 1, asked + 1
            most = max(most, now)
            await asyncio.sleep(0.2)  # others may read their rows meanwhile
            now -= 1
            found: Facts = await facts_of(event)
            return found

        monkeypatch.setattr(world.directory, "facts_of", counted)
        await asyncio.sleep(2 * limits.park_longest_pause_seconds)
        await world.delivery._parked.sweep()
        assert (asked, most) == (3, 2)


class AheadClock(SystemClock):
    """A clock that can be set ahead."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


async def test_who_lets_something_wait_too_long_is_woken(open_world: Any) -> None:
    clock = AheadClock()
    async with open_world(limits=replace(LIMITS, stranded_seconds=600.0), clock=clock) as world:
        world.link("ann", "alpha")
        world.chat.write("ann", "c1", "hello", event_id="e1")
        await world.received("e1")
        clock.ahead = 500.0
        assert (await apply_retention(world.delivery.context, 0)).asleep == ()
        clock.ahead = 700.0
        assert (await apply_retention(world.delivery.context, 0)).asleep == ("alpha",)


async def test_a_pause_of_another_connector_is_kept_no_longer_than_set(
    open_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[tuple[str, float]] = []
    monkeypatch.setattr(
        MemoryPlatform,
        "pause",
        lambda _, what, seconds: kept.append((what, seconds)),
        raising=False,
    )
    async with open_world(limits=replace(LIMITS, asked_pause_seconds=90.0)) as world:
        for seconds in (30, 4000):
            hint = BusHint(Topic.PAUSED, "", "memory:bot", seconds * 1000, "all", "another")
            world.delivery._receive_hint(hint)
    assert kept == [("all", 30.0), ("all", 90.0)]
