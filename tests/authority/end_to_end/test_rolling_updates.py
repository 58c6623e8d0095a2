"""Two digests of one contract at once: while instances come and go, callers notice nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.authority.end_to_end.whole_system import buyer, selling, shop, until
from tests.fabric.fabric_station import Station, station

from accord.authority.rules import Classification, Compatibility, DeploymentKind, PlanState
from accord.contracts import digest
from accord.fabric import Client, Service

OLD = shop()
NEWER = shop("Shop.Count")
BROKEN = shop(schema={"type": "object", "properties": {"id": {"type": "integer"}}})


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Station]:
    async with station(tmp_path) as house:
        yield house


class Load:
    """Calls without a pause, from several sessions at once; the first that fails ends it."""

    def __init__(self, clients: list[Client], lanes: int = 2) -> None:
        self.answered = 0
        self._done = asyncio.Event()
        self._calling = [
            asyncio.create_task(self._call(client)) for client in clients for _ in range(lanes)
        ]

    async def _call(self, client: Client) -> None:
        while not self._done.is_set():
            asked = {"id": str(self.answered)}
            assert await client.call("Shop.Find", asked) == asked
            self.answered += 1

    async def more(self, count: int = 50) -> None:
        """Wait until so many more calls were answered."""
        before = self.answered
        await until(lambda: self.answered > before + count or any(t.done() for t in self._calling))
        for task in self._calling:
            if task.done():
                task.result()

    async def end(self) -> None:
        self._done.set()
        await asyncio.gather(*self._calling)


async def callers(house: Station, stack: AsyncExitStack, count: int = 3) -> list[Client]:
    """Clients of the shop, each in a session of its own."""
    keys = [await house.deploy("buyers", buyer())]
    keys += [await house.instance("buyers", f"more-{n}") for n in range(1, count)]
    sessions = [
        await stack.enter_async_context(Service(buyer(), key=key, authority=house.url).connect())
        for key in keys
    ]
    return [session.client(OLD) for session in sessions]


async def test_two_compatible_digests_roll_without_a_failed_call(house: Station) -> None:
    first = await house.deploy("shops", OLD)
    keys = [first, *[await house.instance("shops", name) for name in ("two", "three", "four")]]
    async with AsyncExitStack() as stack:
        old = [await stack.enter_async_context(AsyncExitStack()) for _ in range(2)]
        for leaving, key in zip(old, keys, strict=False):
            await leaving.enter_async_context(selling(house, key, OLD).connect())
        load = Load(await callers(house, stack))
        await load.more()
        for leaving, key in zip(old, keys[2:], strict=True):
            await stack.enter_async_context(selling(house, key, NEWER).connect())
            await load.more()
            offered = {offer.digest for offer in await house.authority.offers.all("shops")}
            assert offered == {digest(OLD.manifest()), digest(NEWER.manifest())}
            await leaving.aclose()
            await load.more()
        await load.end()
    assert house.authority.catalog.projection.issues == ()


async def test_an_instance_that_restarts_as_the_newer_digest_is_missed_by_nobody(
    house: Station,
) -> None:
    """The same keys come again under another digest, one after the other."""
    keys = [await house.deploy("shops", OLD), await house.instance("shops", "two")]
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(AsyncExitStack()) for _ in keys]
        for process, key in zip(running, keys, strict=True):
            await process.enter_async_context(selling(house, key, OLD).connect())
        load = Load(await callers(house, stack, 2))
        for process, key in zip(running, keys, strict=True):
            await load.more()
            await process.aclose()
            await load.more()
            await process.enter_async_context(selling(house, key, NEWER).connect())
        await load.more()
        await load.end()
    assert (await house.authority.deployments.get("shops")).desired.contracts == {
        "shop@v1": digest(NEWER.manifest())
    }


async def test_in_strict_an_incompatible_digest_waits_while_the_old_one_serves(
    house: Station,
) -> None:
    key = await house.deploy("shops", OLD)
    other = await house.instance("shops", "two")
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(selling(house, key, OLD).connect())
        load = Load(await callers(house, stack, 1))
        up = asyncio.Event()

        async def come() -> None:
            async with selling(house, other, BROKEN).connect() as session:
                up.set()
                await session.ended()

        coming = asyncio.create_task(come())
        pending: list[Any] = []

        async def is_recorded() -> bool:
            pending[:] = await house.authority.plans.all("shops", PlanState.PENDING)
            return bool(pending)

        await until(is_recorded)
        await load.more()
        assert not up.is_set()
        assert [plan.classification for plan in pending] == [Classification.MIGRATION]
        assert (await house.authority.deployments.get("shops")).desired.contracts == {
            "shop@v1": digest(OLD.manifest())
        }
        await load.end()
        coming.cancel()
        await asyncio.gather(coming, return_exceptions=True)


async def test_mutable_dev_accepts_an_incompatible_digest_and_records_it(house: Station) -> None:
    await house.authority.deployments.create(
        "shops", DeploymentKind.SERVICE, Compatibility.MUTABLE_DEV
    )
    key = await house.instance("shops", "one")
    plan = await house.authority.plans.propose("shops", OLD.to_json(), "ada")
    assert plan is not None
    await house.authority.plans.accept(plan.id, "ada")
    for contract in (OLD, BROKEN):
        async with selling(house, key, contract).connect():
            desired = (await house.authority.deployments.get("shops")).desired
            assert desired.contracts == {"shop@v1": digest(contract.manifest())}
    newest, *older = await house.authority.plans.all("shops")
    assert newest.state is PlanState.ACCEPTED
    assert newest.classification is Classification.MIGRATION
    assert newest.decided_by == "mutable-dev"
    assert [plan.state for plan in older] == [PlanState.ACCEPTED]
    accepted = [
        s.act for s in await house.authority.revisions.history("shops") if s.act.act == "accepted"
    ]
    assert [each.digest for each in accepted] == [
        digest(contract.manifest()) for contract in (OLD, BROKEN)
    ]
