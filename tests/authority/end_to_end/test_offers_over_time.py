"""What is offered and for how long, and what everybody sees of it, through the whole system."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import structlog
from nats.errors import NoServersError
from tests.authority.end_to_end.whole_system import (
    bootstrap,
    buyer,
    kept,
    selling,
    shop,
    signed,
    until,
)
from tests.authority.nats_cases import dialled
from tests.fabric.fabric_station import Station, station

from accord.authority.contracts import HEALTH_ID, builtins
from accord.authority.rules import GRACE_SECONDS
from accord.contracts import digest
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.fabric import Service, Session
from accord.kernel import canonical
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey

BEATS = builtins()[HEALTH_ID]["events"]["Health.Heartbeat"]["subject"]


class Ahead(SystemClock):
    """The clock of this machine, set forward."""

    seconds = 0.0

    def now(self) -> float:
        return super().now() + self.seconds

    def monotonic(self) -> float:
        return super().monotonic() + self.seconds


@pytest.fixture
def clock() -> Ahead:
    return Ahead()


@pytest.fixture
async def house(tmp_path: Path, clock: Ahead) -> AsyncIterator[Station]:
    async with station(tmp_path, clock) as house:
        yield house


async def test_an_offer_that_has_expired_lets_nobody_in(house: Station, clock: Ahead) -> None:
    clock.seconds = -GRACE_SECONDS - 1  # what NATS asks has an end, by its own clock
    key, manifest = await house.deploy("shops", shop()), shop().manifest()
    name = digest(manifest)

    async def ready() -> bool:
        body = signed(key, name, int(clock.now()))
        _, answer = await bootstrap(house.url, body)
        return bool(answer["status"] == "ready")

    async def let_in() -> bool:
        try:
            async with dialled(house.server.cluster, key, manifest):
                return True
        except NoServersError:
            return False

    await until(ready)
    clock.seconds = 0
    with structlog.testing.capture_logs() as logs:
        assert not await let_in()
    refused = [each for each in logs if each["event"] == "connection refused"]
    assert {(each["code"], each["session"]) for each in refused} == {
        ("unknown_session", session_key(key))
    }

    async def is_out_of_the_catalog() -> bool:
        shown = house.authority.catalog.projection.catalog["contracts"]
        return name not in {each["digest"] for each in shown}

    await until(is_out_of_the_catalog)  # it is made anew once a second
    await until(ready)
    await until(let_in)  # a token of the same second was spent


async def test_a_caller_loses_what_nobody_offers_any_more_only_as_availability(
    house: Station, clock: Ahead
) -> None:
    """Its grants stay, as far as they were accepted; the catalog no longer shows the shop."""
    key = await house.deploy("shops", shop())
    async with AsyncExitStack() as leaving:
        await leaving.enter_async_context(selling(house, key, shop()).connect())
        buying = await house.deploy("buyers", buyer())
        service = Service(buyer(), key=buying, authority=house.url, clock=clock)
        async with service.connect() as session:
            assert await session.client(shop()).call("Shop.Find", {"id": "1"}) == {"id": "1"}
            await leaving.aclose()

            async def is_stale() -> bool:
                return not (await house.authority.offers.all("shops"))[0].live

            await until(is_stale)
            clock.seconds += GRACE_SECONDS + 1
            await until(lambda: "shop@v1" not in house.authority.catalog.projection.effective)
            held = await house.authority.sessions.grants(session.key, session.terms.digest)
            assert "rpc.v1.Shop.Find" in held.publish
            status = await house.authority.sessions.surface_status(
                session.key, "shop@v1", "rpc", "Shop.Find"
            )
            assert (status.status, status.reason) == ("unavailable", "dependency_not_active")


async def test_heartbeats_create_nothing_and_change_no_digest(house: Station) -> None:
    key = await house.deploy("shops", shop())
    idle = await house.instance("shops", "idle")
    others = shop("Shop.Count").manifest()
    await house.authority.manifests.present(canonical.encode(others), digest(others))
    async with selling(house, key, shop()).connect() as session:
        before = (await kept(house))["contracts"]
        for who, contract_id, named in (
            (session.key, "shop@v1", digest(others)),
            (session.key, "other@v1", session.terms.digest),
            (session_key(idle), "shop@v1", session.terms.digest),
            (session_key(SigningKey.generate()), "shop@v1", session.terms.digest),
        ):
            beat = {"sessionKey": who, "contractId": contract_id, "contractDigest": named}
            await session.link.nats.publish(BEATS, canonical.encode(beat))
        await session.link.nats.flush()
        await _answered(session)
        offers = await house.authority.offers.all()
        assert [(it.instance, it.digest) for it in offers] == [(session.key, session.terms.digest)]
        assert (await kept(house))["contracts"] == before


async def test_nobody_reads_half_a_catalog_while_services_come_and_go(house: Station) -> None:
    always = {*builtins()}
    keys = {n: await house.deploy(f"kiosk{n}", kiosk(n)) for n in range(4)}
    reading = await house.deploy("readers", reader())
    async with AsyncExitStack() as stack:
        for number, key in keys.items():
            service = Service(kiosk(number), partial=True, key=key, authority=house.url)
            await stack.enter_async_context(service.connect())
        service = Service(reader(), key=reading, authority=house.url)
        session = await stack.enter_async_context(service.connect())
        core = session.client(builtins()["trellis.core@v1"])
        seen: set[frozenset[str]] = set()
        done = asyncio.Event()

        async def look() -> None:
            while not done.is_set():
                catalog = (await core.call("Trellis.Catalog", {}))["catalog"]
                seen.add(frozenset(each["id"] for each in catalog["contracts"]))

        looking = [asyncio.create_task(look()) for _ in range(4)]
        whole = frozenset({*always, "reader@v1", *(f"kiosk{n}@v1" for n in keys)})
        await until(lambda: whole in seen)
        seen.clear()
        for _ in range(5):
            for disabled in (True, False):
                await house.authority.deployments.set_disabled("kiosk0", disabled)
                await asyncio.gather(*(house.authority.catalog.refresh() for _ in range(4)))
        await until(lambda: len(seen) == 2)
        done.set()
        await asyncio.gather(*looking)
    assert seen == {whole, whole - {"kiosk0@v1"}}


def kiosk(number: int) -> Contract:
    contract = Contract(f"kiosk{number}@v1", display_name="Kiosk", description="Sells papers.")
    contract.serves_callers()
    contract.schema("Paper", {"type": "object"})
    contract.rpc(f"Kiosk{number}.Sell", "Paper", "Paper")
    return contract


def reader() -> Contract:
    contract = Contract("reader@v1", display_name="Reader", description="Reads the catalog.")
    contract.uses("core", "trellis.core@v1", rpc=["Trellis.Catalog"])
    return contract


async def _answered(session: Session) -> None:
    """Wait until the authority has answered something that was asked after the heartbeats."""
    await session.link.request(
        "rpc.v1.Auth.Sessions.Resolve", canonical.encode({"sessionKey": session.key})
    )
