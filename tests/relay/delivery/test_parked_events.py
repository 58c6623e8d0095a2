"""Unknown is not no: what a platform could not tell is asked again, and nothing is silent."""

import asyncio
import json
import random
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr
from tests.fakes.directory import MemoryDirectory
from tests.fakes.platform import MemoryChat, MemoryPlatform
from tests.simulation.relay_ground import Disk, SimulatedStore

from accord.pipeline.rules import body_schema
from accord.relay.connector import (
    Control,
    ControlSettings,
    Delivery,
    DeliveryLimits,
    Directory,
    FoundCapability,
    InboundKind,
    Keyring,
    LocalBus,
    tables,
)
from accord.relay.rules import (
    ChannelGrant,
    PolicyKey,
    PrincipalPolicy,
    PrincipalRule,
    SessionSource,
    TenantChannel,
    Visibility,
    VisibilityKey,
    decide,
    session_key,
)
from accord.storage import journal
from accord.testing import VirtualClock, run_virtual

LIMITS = DeliveryLimits(
    renew_seconds=0.2,
    sweep_seconds=0.02,
    park_pause_seconds=0.02,
    park_longest_pause_seconds=0.05,
)
VIEW = VisibilityKey("memory", "g1", "c1", "bob")


def see(world: Any, answer: Visibility | None) -> None:
    """Say what the platform answers about bob and the channel that beta holds for him."""
    known = world.directory.known
    views = {key: value for key, value in known.visibility.items() if key != VIEW}
    views |= {} if answer is None else {VIEW: answer}
    world.directory.known = replace(known, visibility=views)


def hold(world: Any) -> None:
    """Ann owns alpha; bob owns beta, which holds c1 and listens to everybody."""
    world.link("ann", "alpha")
    world.link("bob", "beta")
    known = world.directory.known
    place = TenantChannel("t1", "memory", "g1", "c1")
    listens = PrincipalRule(PrincipalPolicy.ANY)
    world.directory.known = replace(
        known,
        grants={place: ChannelGrant("beta", "bob")},
        principals={PolicyKey("t1", "beta", "memory"): listens},
    )
    see(world, Visibility.UNKNOWN)


async def check_journal(world: Any) -> None:
    """Everything that was written has the form that the pipeline takes."""
    for stream in ("relay.decisions", "relay.deliveries"):
        entries = await world.store.read(lambda c, stream=stream: journal.read(c, stream))
        assert entries
        for entry in entries:
            assert body_schema(stream).is_valid(json.loads(entry.body)), entry.body


async def parked(world: Any) -> list[Any]:
    rows = await world.store.read(lambda c: c.execute(tables.parked.select()).all())
    return list(rows)


async def test_only_who_waits_for_a_fact_waits_and_then_in_order(open_world: Any) -> None:
    async with open_world(limits=LIMITS) as world:
        hold(world)
        alpha, beta = await world.connect("alpha"), await world.connect("beta")
        for number in range(5):
            world.chat.write("ann", "c1", f"n{number}", event_id=f"n{number}")
        # An author's own message needs no answer of the platform.
        assert await alpha.events(5) == [f"n{number}" for number in range(5)]
        assert [row.event for row in await parked(world)] != []
        explained = await world.delivery.why("n0")
        states = {each.instance: each for each in explained.statuses}
        assert states["beta"].state == "parked"
        assert "asked" in states["beta"].reason
        # One that could be delivered now waits behind those of its session.
        see(world, Visibility.VISIBLE)
        world.chat.write("ann", "c1", "n5")
        assert await beta.events(6) == [f"n{number}" for number in range(6)]
        await world.empty("beta")
        assert await parked(world) == []
        explained = await world.delivery.why("n0")
        states = {each.instance: each.state for each in explained.statuses}
        assert states["beta"] == "acked"
        [later] = explained.later
        assert [verdict.rule for verdict in later.verdicts] == [
            "authority.any",
            "visibility.visible",
            "relevance.open",
        ]
        assert await world.delivery.dead_letters() == []


async def test_what_is_parked_survives_a_restart(open_world: Any) -> None:
    chat, directory = MemoryChat(), MemoryDirectory()
    async with open_world(limits=LIMITS, chat=chat, directory=directory) as world:
        hold(world)
        world.chat.write("ann", "c1", "before", event_id="e")
        await world.received("e")
        assert len(await parked(world)) == 1
    async with open_world(limits=LIMITS, chat=chat, directory=directory) as world:
        beta = await world.connect("beta")
        world.chat.write("ann", "c1", "after")
        see(world, Visibility.VISIBLE)
        assert await beta.events(2) == ["before", "after"]


async def test_a_real_no_stays_a_no_and_is_explained(open_world: Any) -> None:
    async with open_world(limits=LIMITS) as world:
        hold(world)
        beta = await world.connect("beta")
        world.chat.write("ann", "c1", "hidden", event_id="e")
        await world.received("e")
        see(world, Visibility.HIDDEN)
        await world.until(lambda: world.delivery.counts["parked refuse"] == 1)
        explained = await world.delivery.why("e")
        states = {each.instance: each for each in explained.statuses}
        assert states["beta"].state == "refused"
        assert states["beta"].reason == "The owner cannot view the channel."
        assert await world.delivery.is_empty("beta")
        # Nor does it let the agent write there.
        answer = await beta.ask({"op": "typing", "chat_id": "c1"})
        assert not answer["success"]


async def test_who_was_unlinked_meanwhile_gets_nothing(open_world: Any) -> None:
    async with open_world(limits=LIMITS) as world:
        hold(world)
        world.chat.write("ann", "c1", "x", event_id="e")
        await world.received("e")
        known = world.directory.known
        world.directory.known = replace(known, grants={})
        await world.until(lambda: world.delivery.counts["parked refuse"] == 1)
        [later] = (await world.delivery.why("e")).later
        assert later.decision.candidate("beta") is None


async def test_an_event_whose_time_is_over_is_a_dead_letter_and_a_replay_is_decided_again(
    open_world: Any,
) -> None:
    limits = replace(LIMITS, park_seconds=0.1)
    async with open_world(limits=limits) as world:
        hold(world)
        beta = await world.connect("beta")
        world.chat.write("ann", "c1", "late", event_id="e")
        await world.until(lambda: world.delivery.counts["parked expire"] == 1)
        [letter] = await world.delivery.dead_letters()
        assert letter.instance == "beta"
        assert letter.reason == (
            "the platform did not answer in time: "
            "Whether the owner can view the channel is not known."
        )
        explained = await world.delivery.why("e")
        states = {each.instance: each for each in explained.statuses}
        assert (states["beta"].state, states["beta"].reason) == ("dead", letter.reason)
        # A replay does not let through what was never known.
        await world.delivery.replay("beta", [letter.seq])
        await world.until(lambda: world.delivery.counts["parked expire"] == 2)
        [letter] = await world.delivery.dead_letters()
        see(world, Visibility.VISIBLE)
        await world.delivery.replay("beta", [letter.seq])
        assert await beta.events(1) == ["late"]
        assert len((await world.delivery.why("e")).later) == 3
        await check_journal(world)


async def test_too_many_are_dead_letters_with_their_reason(open_world: Any) -> None:
    async with open_world(limits=replace(LIMITS, parked_rows=3)) as world:
        hold(world)
        beta = await world.connect("beta")
        for number in range(5):
            world.chat.write("ann", "c1", f"n{number}", event_id=f"n{number}")
            await world.received(f"n{number}")
        assert len(await parked(world)) == 3
        letters = await world.delivery.dead_letters()
        assert {each.reason for each in letters} == {
            "too many events waited for an answer of the platform"
        }
        assert len(letters) == 2
        see(world, Visibility.VISIBLE)
        assert await beta.events(3) == ["n0", "n1", "n2"]
        await world.delivery.replay("beta", sorted(each.seq for each in letters))
        assert await beta.events(2) == ["n3", "n4"]
        await check_journal(world)


async def test_a_revoked_instance_leaves_nothing_parked(open_world: Any) -> None:
    async with open_world(limits=LIMITS) as world:
        hold(world)
        world.chat.write("ann", "c1", "x", event_id="e")
        await world.received("e")
        await world.directory.revoke("beta")
        assert await parked(world) == []
        [letter] = await world.delivery.dead_letters("beta")
        assert letter.reason == "the instance was revoked"


async def test_an_interrupt_is_not_parked(open_world: Any) -> None:
    async with open_world(limits=LIMITS) as world:
        hold(world)
        world.chat.write("ann", "c1", "/stop", kind=InboundKind.INTERRUPT, event_id="s")
        await world.received("s")
        assert await parked(world) == []


async def test_the_journal_tells_both_decisions_and_each_decides_again_to_the_same(
    open_world: Any,
) -> None:
    async with open_world(limits=LIMITS) as world:
        hold(world)
        world.chat.write("ann", "c1", "private words", event_id="e")
        await world.received("e")
        see(world, Visibility.VISIBLE)
        await world.until(lambda: world.delivery.counts["parked deliver"] == 1)
        explained = await world.delivery.why("e")
        entries = await world.store.read(lambda c: journal.read(c, "relay.decisions"))
        assert len(entries) == 2
        assert "private" not in str(entries)
        recorded = explained.recorded
        assert decide(recorded.event, recorded.facts) == recorded.decision
        assert recorded.decision.unknown == ("beta",)
        assert explained.later[0].decision.deliveries == ("alpha", "beta")


async def minute(folder: Any, seed: int, clock: VirtualClock) -> None:
    """Visibility is down for a minute, the process dies in it, and everything is told in the end.

    Both halves are the real ones, on a simulated disk.
    """
    chance, disk, chat = random.Random(seed), Disk(clock), MemoryChat()
    for channel in ("c1", "c2"):
        chat.channel(channel, scope_id="g1")
    with disk.transaction() as connection:
        connection.execute(tables.change_head.insert().values(id=1, version=0))
    keyring = Keyring.load(folder / f"{seed}.key")

    def make() -> tuple[Directory, Delivery, SimulatedStore]:
        store, platform = SimulatedStore(disk, chance), MemoryPlatform(chat)
        directory = Directory(
            store, keyring, clock, ControlSettings(), platforms={"memory": platform}
        )
        name = f"p{chance.random()}"
        delivery = Delivery(store, directory, [platform], LocalBus(), clock, name=name)
        return directory, delivery, store

    directory, delivery, store = make()
    control = Control(directory, clock)
    for instance, owner in (("alpha", "ann"), ("beta", "bob")):
        await control.enrol((await control.mint_token("t1", instance)).token, f"gw-{instance}")
        await control.bind(instance, "memory", owner)
    await control.route("t1", "memory", "g1")
    for channel in ("c1", "c2"):
        await control.grant("beta", "memory", "g1", channel)
    beta = await control.principal("beta")
    await control.set_principal(beta, "memory", PrincipalPolicy.ANY)

    async def serve(running: Delivery) -> None:
        async with running.running():
            await asyncio.Event().wait()

    serving = asyncio.create_task(serve(delivery))
    chat.blind = True
    # Half of the time the backend hangs instead of failing.
    chat.hang = asyncio.Event() if seed % 2 else None
    written = []
    for second in range(60):
        channel = chance.choice(["c1", "c2"])
        written.append(chat.write("ann", channel, f"{channel} {second}"))
        await asyncio.sleep(1)
        if second == 30:
            store.dead = True
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            directory, delivery, store = make()
            serving = asyncio.create_task(serve(delivery))
    chat.blind = False
    if chat.hang is not None:
        chat.hang.set()
    await asyncio.sleep(60)
    assert not chat.unreceived
    texts: dict[str, list[str]] = {"c1": [], "c2": []}
    with disk.engine.connect() as connection:
        query = tables.buffer.select().where(tables.buffer.c.instance == "beta")
        for row in connection.execute(query.order_by(tables.buffer.c.seq)):
            body = row.body
            channel = "c1" if '"c1"' in body else "c2"
            texts[channel].append(body.partition('"text":"')[2].partition('"')[0])
    spoken = [each.event.text for each in written]
    for channel, received in texts.items():
        assert received == [each for each in spoken if each.startswith(channel)], seed
    assert await delivery.dead_letters() == []
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


@pytest.mark.parametrize("seed", range(4))
def test_every_message_of_a_minute_without_visibility_is_delivered_afterwards(
    tmp_path: Any, seed: int
) -> None:
    clock = VirtualClock()
    run_virtual(minute(tmp_path, seed, clock), clock=clock)


async def test_a_capability_of_a_parked_event_cannot_be_used_before_it_is_delivered(
    tmp_path: Any, open_world: Any
) -> None:
    async with open_world(limits=LIMITS) as world:
        directory = Directory(
            world.store,
            Keyring.load(tmp_path / "relay.key"),
            world.delivery.context.clock,
            ControlSettings(),
        )
        control = Control(directory, world.delivery.context.clock)
        await control.enrol((await control.mint_token("t1", "beta")).token, "gw-beta")
        await control.bind("beta", "memory", "ann")
        principal = await control.principal("beta")
        world.directory.vault = directory.vault
        hold(world)
        found = [FoundCapability("memory.reply", SecretStr("token"), 2**53)]
        world.chat.write("ann", "c1", "x", event_id="e", found=found)
        await world.received("e")
        source = SessionSource("memory", "c1", "group", user_id="ann", scope_id="g1")

        async def resolved() -> SecretStr | None:
            key = session_key(source)
            return await directory.vault.resolve(
                principal, session_key=key, kind="memory.reply", platform="memory"
            )

        assert await resolved() is None
        see(world, Visibility.VISIBLE)
        await world.until(lambda: world.delivery.counts["parked deliver"] == 1)
        capability = await resolved()
        assert capability is not None
        assert capability.get_secret_value() == "token"
        await directory.close()
