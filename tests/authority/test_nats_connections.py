"""Against a real server: who is there, and that what was taken back is gone within seconds."""

import asyncio
import dataclasses
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.authority.nats_cases import (
    CLERK,
    SHOP,
    STOCK,
    Dialled,
    MemoryAuthority,
    System,
    dialled,
    running_system,
    until,
)

from accord.authority.nats import (
    Callout,
    ConnectionChange,
    Connections,
    IssuedPermissions,
    SessionConnection,
    connect,
    control_nats,
    list_connections,
)
from accord.authority.rules import AuthorityError, Code, ConnectRequest, KeyType, jwt
from accord.contracts import Grants, digest
from accord.contracts.session_proof import connect_token, session_key
from accord.kernel.clock import SystemClock
from accord.kernel.errors import AccordError
from accord.kernel.signing import SigningKey

SECONDS = 5.0
"""Within how many seconds something that was taken back is gone."""


@pytest.fixture
async def system(tmp_path: Path) -> AsyncIterator[System]:
    async with running_system(tmp_path / "nats") as started:
        yield started


@pytest.fixture
def key() -> SigningKey:
    return SigningKey.generate()


async def test_a_grant_that_is_removed_is_gone_within_seconds(
    system: System, key: SigningKey
) -> None:
    """The use is optional, so that the session comes again and is given less."""
    optional = {**SHOP, "uses": {"optional": SHOP["uses"]["required"]}}
    system.authority.presented[digest(optional)] = optional
    system.authority.admit(key, optional)
    async with dialled(system.cluster, key, optional) as shop:
        assert await shop.may_publish("rpc.v1.Stock.Count")
        system.authority.active["stock@v1"] = {**STOCK, "rpc": {}}
        system.authority.changes.fire()
        await until(lambda: shop.cuts == 1, SECONDS)
        await until(lambda: shop.client.is_connected, SECONDS)
        assert not await shop.may_publish("rpc.v1.Stock.Count")
        assert await shop.may_publish("events.v1.Shop.Sold")


async def test_a_subscription_ends_with_its_grant(system: System, key: SigningKey) -> None:
    """What was subscribed while it was granted is not delivered afterwards."""
    optional = {**SHOP, "uses": {"optional": SHOP["uses"]["required"]}}
    system.authority.presented[digest(optional)] = optional
    system.authority.admit(key, optional)
    own = await connect("publish", system.cluster, system.cluster.authority)
    heard: list[bytes] = []

    async def hear(message: Any) -> None:
        heard.append(message.data)

    async with dialled(system.cluster, key, optional) as shop:
        await shop.client.subscribe("events.v1.Stock.Moved", cb=hear)
        await shop.client.flush()
        await own.publish("events.v1.Stock.Moved", b"before")
        await until(lambda: heard == [b"before"])
        system.authority.active["stock@v1"] = {**STOCK, "events": {}}
        system.authority.changes.fire()
        await until(lambda: shop.cuts == 1, SECONDS)
        await until(lambda: shop.client.is_connected, SECONDS)
        await own.publish("events.v1.Stock.Moved", b"after")
        await own.flush()
        await shop.client.flush()
    await own.close()
    assert heard == [b"before"]


async def test_a_revoked_session_is_out_within_seconds(system: System, key: SigningKey) -> None:
    system.authority.admit(key, SHOP)
    async with dialled(system.cluster, key, SHOP) as shop:
        await until(lambda: system.connections.is_connected(session_key(key)))
        del system.authority.known[session_key(key)]
        system.authority.changes.fire()
        await until(lambda: shop.client.is_closed, SECONDS)
    assert system.authority.refusals[0].code is Code.UNKNOWN_SESSION


async def test_more_grants_do_not_disturb_a_connection(system: System, key: SigningKey) -> None:
    usual, judged = system.authority.grants, asyncio.Event()

    async def more(name: str, named: str) -> Grants:
        given = await usual(name, named)
        judged.set()
        return dataclasses.replace(given, publish={**given.publish, "more": ()})

    system.authority.admit(key, SHOP)
    async with dialled(system.cluster, key, SHOP) as shop:
        await until(lambda: len(system.connections.all()) == 1)
        system.authority.grants = more  # type: ignore[method-assign, assignment]
        system.authority.changes.fire()
        async with asyncio.timeout(SECONDS):
            await judged.wait()
        assert await shop.may_publish("events.v1.Shop.Sold")
        assert shop.cuts == 0


async def test_the_authority_hears_of_the_first_connection_and_of_the_end_of_the_last(
    system: System, key: SigningKey
) -> None:
    system.authority.admit(key, SHOP)
    name = session_key(key)
    async with dialled(system.cluster, key, SHOP):
        await until(lambda: len(system.authority.here) == 1)
        # The tokens of two connections within a second must differ.
        async with _another(system, key):
            await until(lambda: len(system.connections.all()) == 2)
        await until(lambda: len(system.connections.all()) == 1)
        assert len(system.authority.here) == 1
    await until(lambda: not system.connections.is_connected(name))
    await until(lambda: len(system.authority.here) == 2)
    assert system.authority.here == [
        ("connected", name, digest(SHOP)),
        ("disconnected", name, digest(SHOP)),
    ]


def _another(system: System, key: SigningKey) -> AbstractAsyncContextManager[Dialled]:
    later = int(SystemClock().now()) + 5
    return dialled(system.cluster, key, SHOP, token=connect_token(key, digest(SHOP), later))


async def test_a_session_can_be_kicked_and_comes_again(system: System, key: SigningKey) -> None:
    system.authority.admit(key, SHOP)
    async with dialled(system.cluster, key, SHOP) as shop:
        await until(lambda: system.connections.is_connected(session_key(key)))
        assert await system.connections.kick(session_key(key), "an operator") == 1
        await until(lambda: shop.cuts == 1)
        await until(lambda: shop.client.is_connected)
        assert await shop.may_publish("events.v1.Shop.Sold")
    assert await system.connections.kick("nobody", "an operator") == 0


async def test_who_watches_later_finds_the_connections_and_judges_them(
    system: System, key: SigningKey
) -> None:
    """As an authority does that was restarted: what it does not remember, it derives."""
    kept, lost = key, SigningKey.generate()
    system.authority.admit(kept, SHOP)
    system.authority.admit(lost, CLERK)
    changed = MemoryAuthority(known=dict(system.authority.known))
    del changed.known[session_key(lost)]
    told: list[tuple[ConnectionChange, str]] = []

    async def tell(change: ConnectionChange, connection: SessionConnection, _: str | None) -> None:
        told.append((change, connection.admitted.key))

    async with (
        dialled(system.cluster, kept, SHOP) as shop,
        dialled(system.cluster, lost, CLERK) as clerk,
    ):
        await until(lambda: len(system.connections.all()) == 2)
        watch = Connections(
            changed.as_authority(), system.cluster, SystemClock(), IssuedPermissions(), tell=tell
        )
        async with watch.watching():
            assert {each.admitted.key for each in watch.all()} == set(system.authority.known)
            await until(lambda: clerk.cuts > 0, SECONDS)
            await until(lambda: (ConnectionChange.CLOSED, session_key(lost)) in told)
            assert shop.cuts == 0
    assert (ConnectionChange.KICKED, session_key(lost)) in told
    assert (ConnectionChange.KICKED, session_key(kept)) not in told
    assert ("connected", session_key(kept), digest(SHOP)) in changed.here


async def test_a_server_that_is_killed_takes_its_connections_with_it(
    system: System, key: SigningKey
) -> None:
    """No advisory tells of it: the roll is called when the server is back."""
    system.authority.admit(key, SHOP)
    async with dialled(system.cluster, key, SHOP) as shop:
        await until(lambda: len(system.connections.all()) == 1)
        first = system.connections.all()[0].server
        assert system.server.pid is not None
        os.kill(system.server.pid, signal.SIGKILL)
        await until(lambda: shop.cuts > 0)
        await shop.client.close()
        await until(lambda: system.connections.all() == ())
    assert system.authority.here[-1][0] == "disconnected"
    assert first
    assert system.server.restarts == 1


async def test_sessions_come_back_after_the_server_was_killed(
    system: System, key: SigningKey
) -> None:
    """Also one that is back before its authority, and is refused then."""
    system.authority.admit(key, SHOP)
    async with dialled(system.cluster, key, SHOP) as shop:
        shop.client.options["max_reconnect_attempts"] = -1
        await until(lambda: len(system.connections.all()) == 1)
        seen = {system.connections.all()[0].server}
        for number in (1, 2):
            assert system.server.pid is not None
            os.kill(system.server.pid, signal.SIGKILL)
            await until(lambda: bool({each.server for each in system.connections.all()} - seen))
            seen.update(each.server for each in system.connections.all())
            await until(lambda: shop.client.is_connected)
            assert await shop.may_publish("events.v1.Shop.Sold")
            assert system.server.restarts == number


async def test_a_store_that_is_away_ends_nobody(system: System, key: SigningKey) -> None:
    system.authority.admit(key, SHOP)
    judged = asyncio.Event()

    async def away(*_: str) -> Grants:
        judged.set()
        raise AccordError("the store is away")

    async with dialled(system.cluster, key, SHOP) as shop:
        await until(lambda: len(system.connections.all()) == 1)
        system.authority.grants = away  # type: ignore[method-assign, assignment]
        system.authority.changes.fire()
        async with asyncio.timeout(SECONDS):
            await judged.wait()
        assert await shop.may_publish("events.v1.Shop.Sold")
        assert shop.cuts == 0


async def test_connections_are_listed_page_by_page(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accord.authority.nats.connections.PAGE_SIZE", 2)
    keys = [SigningKey.generate() for _ in range(5)]
    for each in keys:
        system.authority.admit(each, SHOP)
    assert system.cluster.system is not None
    asking = await connect("list", system.cluster, system.cluster.system)
    sessions = [dialled(system.cluster, each, SHOP) for each in keys]
    for session in sessions:
        await session.__aenter__()
    found = await list_connections(asking, system.cluster.account)
    for session in sessions:
        await session.__aexit__(None, None, None)
    await asking.close()
    assert sorted(each.admitted.key for each in found) == sorted(map(session_key, keys))


async def test_a_heartbeat_is_heard_of_who_is_there_and_of_nobody_else(
    system: System, key: SigningKey
) -> None:
    """A second authority governs beside the first one, as several do."""
    authority, clock = system.authority, SystemClock()
    authority.admit(key, SHOP)
    name = session_key(key)
    beat = (
        '{"sessionKey":"%s","contractId":"shop@v1","contractDigest":"d","status":"healthy","at":1}'
    )
    async with (
        control_nats(
            authority.as_authority(), system.cluster, clock, heartbeats="events.v1.Health"
        ) as ruled,
        dialled(system.cluster, key, SHOP),
    ):
        await until(lambda: ruled.presence.is_connected(name))
        for data in (beat % "somebody", "nonsense", beat % name, beat % name):
            await ruled.nats.publish("events.v1.Health", data.encode())
        await ruled.nats.flush()
        await until(lambda: bool(authority.beats))
        await asyncio.sleep(0)
    assert authority.beats == [(name, "shop@v1", "d")]


async def test_without_a_user_of_the_system_account_connections_have_an_end(
    system: System, key: SigningKey
) -> None:
    unseen = dataclasses.replace(system.cluster, system=None)
    with pytest.raises(AuthorityError, match="system account"):
        Connections(system.authority.as_authority(), unseen, SystemClock(), IssuedPermissions())
    async with control_nats(
        system.authority.as_authority(), unseen, SystemClock(), heartbeats="x"
    ) as ruled:
        assert ruled.presence.all() == ()
        assert ruled.presence.is_connected("anybody")
        assert await ruled.presence.kick("anybody", "me") == 0
    system.authority.admit(key, SHOP)
    brief = Callout(
        system.authority.as_authority(), unseen, SystemClock(), IssuedPermissions(), lifetime=7.0
    )
    now = SystemClock().now()
    token = connect_token(key, digest(SHOP), int(now))
    answer = jwt.decode(
        await brief.answer(ConnectRequest("N", "U", "h", token, 0.0)), KeyType.ACCOUNT
    )
    user = jwt.decode(answer["nats"]["jwt"], KeyType.ACCOUNT)
    assert now + 5 < user["exp"] < now + 9
