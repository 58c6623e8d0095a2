"""Taking an instance away, and switching off a whole tenant."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import SecretStr

from accord.kernel import canonical
from accord.relay.connector import (
    Capability,
    Control,
    ControlSettings,
    Directory,
    Housekeeping,
    LocalBus,
    tables,
)
from accord.relay.errors import Code, RelayError
from accord.relay.rules import RelevancePolicy

pytestmark = pytest.mark.parametrize("engine", ["sqlite", "postgres"])

DROPPED = (
    tables.bindings,
    tables.dm_defaults,
    tables.grants,
    tables.principals,
    tables.relevance,
    tables.link_codes,
    tables.link_pending,
    tables.route_claims,
    tables.identities,
    tables.vault,
)


async def settled(half: Any, instance: str, tenant: str, user: str, channel: str) -> Any:
    """An instance that has one of everything."""
    await half.enrol(instance, tenant, wake_url="https://wake.example/")
    mine = await half.control.principal(instance)
    control = half.control
    await control.route(tenant, "chat", f"g-{tenant}")
    await control.bind(instance, "chat", user)
    await control.grant(instance, "chat", f"g-{tenant}", channel)
    await control.set_relevance(mine, "chat", RelevancePolicy(True))
    code = await control.link(mine)
    await half.say(f"/link {code.code}", f"waiting-{instance}")
    await control.link(mine)
    await half.directory.front(mine, "chat", f"bot-{instance}")
    capability = Capability(
        tenant, instance, "chat", "", "k", "token", SecretStr("v"), int(half.clock.now() * 1000) + 9
    )
    await half.store.write(lambda c: half.directory.vault.bind(c, [capability]))
    return mine


async def test_nothing_of_a_deprovisioned_instance_is_left_and_nothing_else_is_touched(
    half: Any, inbound: Callable[..., Any]
) -> None:
    told: list[str] = []

    async def hear(instance: str) -> None:
        told.append(instance)

    half.directory.revocations.subscribe(hear)
    mine = await settled(half, "a1", "t1", "u1", "c1")
    await settled(half, "b1", "t2", "u2", "c2")
    await half.control.deprovision(mine)
    assert told == ["a1"]
    for table in DROPPED:
        assert all(row["instance"] != "a1" for row in await half.rows(table)), table.name
        if table not in (tables.route_claims, tables.principals):
            assert any(row["instance"] == "b1" for row in await half.rows(table)), table.name
    [record] = [each for each in await half.control.instances() if each.instance == "a1"]
    assert (record.live, record.wake_url, record.barred) == (False, None, False)
    assert (await half.directory.facts(inbound(user="u1"))).dm_defaults == {}
    with pytest.raises(RelayError) as refused:
        await half.control.link(mine)
    assert refused.value.code is Code.FORBIDDEN
    await half.control.deprovision(mine)
    assert told == ["a1"]


async def test_a_callback_that_fails_keeps_nobody_else_from_hearing(half: Any) -> None:
    told: list[str] = []

    async def fail(_instance: str) -> None:
        raise RuntimeError("a socket would not close")

    async def hear(instance: str) -> None:
        told.append(instance)

    half.directory.revocations.subscribe(fail)
    half.directory.revocations.subscribe(hear)
    await half.enrol("a1")
    await half.control.revoke("a1")
    assert told == ["a1"]


async def test_a_tenant_is_switched_off_as_a_whole_and_on_again(half: Any) -> None:
    told: set[str] = set()

    async def hear(instance: str) -> None:
        told.add(instance)

    half.directory.revocations.subscribe(hear)
    credentials = [await half.enrol(name, "t1") for name in ("a1", "a2")]
    other = await half.enrol("b1", "t2")
    assert set(await half.control.suspend("t1")) == {"a1", "a2"}
    assert told == {"a1", "a2"}
    for each in credentials:
        with pytest.raises(RelayError) as refused:
            await half.directory.authenticate(half.bearer(each))
        assert refused.value.code is Code.FORBIDDEN
    assert await half.directory.authenticate(half.bearer(other))
    token = await half.control.mint_token("t1", "a3")
    with pytest.raises(RelayError):
        await half.control.enrol(token.token, "gw-a3")
    await half.control.resume("t1")
    for each in credentials:
        assert await half.directory.authenticate(half.bearer(each))
    assert await half.control.enrol(token.token, "gw-a3")


async def test_another_process_hears_of_a_revocation_when_it_looks(
    half: Any, inbound: Callable[..., Any]
) -> None:
    other = Directory(half.store, half.keyring, half.clock, ControlSettings())
    told: list[str] = []

    async def hear(instance: str) -> None:
        told.append(instance)

    other.revocations.subscribe(hear)
    credentials = await half.enrol("a1")
    assert (await other.authenticate(half.bearer(credentials))).instance == "a1"
    await half.control.revoke("a1")
    half.clock.advance(1)
    with pytest.raises(RelayError):
        await other.authenticate(half.bearer(credentials))
    await other.settle()
    assert told == ["a1"]
    await other.close()


async def test_an_idle_process_hears_of_a_revocation_at_a_hint(half: Any) -> None:
    bus = LocalBus()
    here = Directory(half.store, half.keyring, half.clock, ControlSettings(), bus=bus)
    other = Directory(half.store, half.keyring, half.clock, ControlSettings())
    heard: asyncio.Queue[str] = asyncio.Queue()
    other.revocations.subscribe(heard.put)
    await other.look()
    await half.enrol("a1")
    async with bus.listen(lambda _: other.hint()):
        await Control(here, half.clock).revoke("a1")
        async with asyncio.timeout(20):
            assert await heard.get() == "a1"
    await here.close()
    await other.close()


async def test_a_process_that_starts_tells_again_who_was_revoked_before(half: Any) -> None:
    await half.enrol("a1")
    await half.enrol("a2")
    await half.control.revoke("a1")
    other = Directory(half.store, half.keyring, half.clock, ControlSettings())
    heard: asyncio.Queue[str] = asyncio.Queue()
    other.revocations.subscribe(heard.put)
    await other.look()
    await other.settle()
    assert [heard.get_nowait() for _ in range(heard.qsize())] == ["a1"]
    await other.close()


async def test_a_process_looks_around_without_being_asked(half: Any) -> None:
    quick = ControlSettings(freshness_seconds=0.01)
    other = Directory(half.store, half.keyring, half.clock, quick)
    heard: asyncio.Queue[str] = asyncio.Queue()
    other.revocations.subscribe(heard.put)
    await other.look()
    keeping = asyncio.create_task(Housekeeping(other).run())
    await half.enrol("a1")
    await half.control.revoke("a1")
    async with asyncio.timeout(20):
        assert await heard.get() == "a1"
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    await other.close()


async def test_what_is_not_there_cannot_be_taken_away(half: Any) -> None:
    for call in (
        half.control.revoke("nobody"),
        half.control.suspend("nobody"),
        half.control.resume("nobody"),
        half.control.principal("nobody"),
    ):
        with pytest.raises(RelayError) as refused:
            await call
        assert refused.value.code is Code.NOT_FOUND


async def test_every_change_leaves_a_note_in_the_journal(half: Any) -> None:
    mine = await settled(half, "a1", "t1", "u1", "c1")
    await half.control.rotate(mine)
    await half.control.revoke("a1")
    notes = [canonical.decode(note) for note in await half.journal()]
    actions = {each["action"] for note in notes for each in note.get("actions", [note])}
    assert actions >= {
        "token.minted",
        "gateway.enrolled",
        "route.pinned",
        "link.bound",
        "scope.claimed",
        "relevance.set",
        "link.offered",
        "secret.rotated",
        "instance.barred",
    }
