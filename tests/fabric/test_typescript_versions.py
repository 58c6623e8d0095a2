"""Clients and services of two versions, and clients that are killed, in TypeScript."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.fabric.fabric_station import Station, station
from tests.fabric.typescript import later_stall, stall
from tests.fabric.typescript_build import Driver, Workshop

from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.kernel import canonical
from accord.kernel.signing import SigningKey

pytestmark = pytest.mark.slow


def walker(later: bool) -> Contract:
    """A program of either version; the later one would also halve, and has other state."""
    contract = Contract("walker@v1", display_name="Walker", description="Walks.")
    contract.uses(
        "stall",
        "stall@v1",
        rpc=["Stall.Double"],
        operations=["Stall.Walk"],
        subscribe=["Stall.Walked"],
        feeds=["Stall.Count"],
    )
    color = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
    contract.schema("Prefs", color)
    if later:
        contract.uses("halves", "stall@v1", rpc=["Stall.Halve"], optional=True)
        several = {"colors": {"type": "array", "items": {"type": "string"}}}
        contract.schema(
            "Several", {"type": "object", "properties": several, "required": ["colors"]}
        )
        older = {"prefs.v1": "Prefs"}
        contract.state("prefs", "Several", kind="map", version="prefs.v2", accepts=older)
    else:
        contract.state("prefs", "Prefs", kind="map", version="prefs.v1")
    return contract


@pytest.fixture(scope="module")
def workshops(npm: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Workshop]:
    """The program of each version, with the packages of its time."""
    made = {}
    for name, service in (("old", stall.service), ("new", later_stall.service)):
        made[name] = Workshop(tmp_path_factory.mktemp("workshop") / name, npm)
        later = name == "new"
        made[name].add([service.contract.manifest(), walker(later).manifest()])
        made[name].programs("walker.ts", "node.ts")
    return made


async def enter(perform: Driver, house: Station, key: SigningKey) -> None:
    seed = canonical.encode_base64url(key.seed)
    await perform("enter", authority=house.url, seed=seed)


async def walks(perform: Driver, unit: Mapping[str, str]) -> None:
    """Every surface that both versions have."""
    given = {"n": 2, **({"unit": "mile"} if unit else {})}
    assert await perform("call", name="Stall.Double", payload=given) == {"n": 4, **unit}
    counted = [{"n": n, **({"unit": "metre"} if unit else {})} for n in range(2)]
    assert await perform("feed", payload=given) == counted
    await perform("start", payload=given, key="walk-2")
    assert await perform("finish", n=5) == {"n": 7, **unit}
    assert await perform("heard") == {"n": 7, **unit}


async def test_an_old_client_uses_a_new_service_and_state_is_carried_over(
    tmp_path: Path, workshops: Mapping[str, Workshop]
) -> None:
    metre = {"unit": "metre"}
    async with station(tmp_path) as house:
        key = await house.deploy("stall", later_stall.service.contract)
        old_key = await house.deploy("walker", walker(False))
        async with (
            later_stall.service(key=key, authority=house.url).connect(),
            workshops["old"].in_node("walker") as old,
            workshops["new"].in_node("walker") as new,
        ):
            await enter(old, house, old_key)
            assert await old("call", name="Stall.Double", payload={"n": 2}) == {"n": 4, **metre}
            # An error that the client's contract does not declare comes with what it carries.
            far = await old("call", name="Stall.Double", payload={"n": 2000})
            assert (far["error"], far["members"]["limit"]) == ("TooFarError", 1000)
            unknown = await old("call", name="Stall.Halve", payload={"n": 2})
            assert unknown["error"] == "NotFoundError"
            assert await old("feed", payload={"n": 1}) == [{"n": 0, **metre}]
            await old("start", payload={"n": 2}, key="walk-1")
            assert await old("finish", n=5) == {"n": 7, **metre}
            assert await old("heard") == {"n": 7, **metre}
            assert await old("put", value={"color": "red"})
            # The later version reads what the earlier one kept; not the other way round.
            accepted = walker(True).to_json()
            plan = await house.authority.plans.propose("walker", accepted, "operator")
            assert plan is not None
            await house.authority.plans.accept(plan.id, "operator")
            await enter(new, house, await house.instance("walker", "two"))
            assert await new("kept") == {"colors": ["red"]}
            assert await new("put", value={"colors": ["red", "blue"]})
            # What the deployment was accepted for has changed, and the earlier version hears it.
            over = await old("ended")
            assert (over["error"], over["code"]) == ("BootstrapError", "contract_changed")
            assert (await old("kept"))["error"] == "UnavailableError"
            halved = await new("call", name="Stall.Halve", payload={"n": 8, "unit": "mile"})
            assert halved == {"n": 4, "unit": "mile"}
            await walks(new, {"unit": "mile"})


async def test_a_new_client_uses_an_old_service(
    tmp_path: Path, workshops: Mapping[str, Workshop]
) -> None:
    async with station(tmp_path) as house:
        key = await house.deploy("stall", stall.service.contract)
        async with (
            stall.service(key=key, authority=house.url).connect(),
            workshops["new"].in_node("walker") as new,
        ):
            await enter(new, house, await house.deploy("walker", walker(True)))
            await walks(new, {})
            # A member that the service does not know is passed over.
            given = {"n": 2, "unit": "mile"}
            assert await new("call", name="Stall.Double", payload=given) == {"n": 4}
            missing = await new("call", name="Stall.Halve", payload={"n": 2})
            assert missing["error"] == "UnauthorizedError"


async def test_a_killed_client_goes_on_and_a_removed_one_hears_why(
    tmp_path: Path, workshops: Mapping[str, Workshop]
) -> None:
    workshop = workshops["old"]
    async with station(tmp_path) as house:
        key = await house.deploy("stall", stall.service.contract)
        own = await house.deploy("walker", walker(False))
        async with stall.service(key=key, authority=house.url).connect():
            async with workshop.in_node("walker") as first:
                await enter(first, house, own)
                begun = await first("start", payload={"n": 1}, key="walk-1")
            async with workshop.in_node("walker") as second:
                await enter(second, house, own)
                assert await second("start", payload={"n": 1}, key="walk-1") == begun
                # The server comes back, and with it operation and subscription.
                pid = house.server.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                assert await second("finish", n=2) == {"n": 3}
                assert await second("heard") == {"n": 3}
                await house.authority.deployments.remove_instance(session_key(own))
                over = await second("ended")
                assert (over["error"], over["code"]) == ("BootstrapError", "unknown_session")
                # The program itself goes on.
                assert (await second("kept"))["error"] == "UnavailableError"


@asynccontextmanager
async def door(url: str) -> AsyncIterator["Door"]:
    """An address of the authority at which nobody answers while it is shut."""
    made = Door(urlsplit(url).port or 0)
    async with await asyncio.start_server(made.let_in, "127.0.0.1", 0) as server:
        made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield made


class Door:
    def __init__(self, port: int) -> None:
        self._port = port
        self.url = ""
        self.is_open = True
        self.knocks = asyncio.Queue[None]()
        self._inside = set[asyncio.StreamWriter]()

    def shut(self) -> None:
        """Let nobody in, and end what is open."""
        self.is_open = False
        for writer in self._inside:
            writer.close()

    async def let_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            if not self.is_open:
                self.knocks.put_nowait(None)
                return
            theirs, ours = await asyncio.open_connection("127.0.0.1", self._port)
            self._inside |= {ours, writer}

            async def carry(come: asyncio.StreamReader, go: asyncio.StreamWriter) -> None:
                with suppress(OSError):
                    while data := await come.read(65536):
                        go.write(data)
                        await go.drain()
                go.close()

            await asyncio.gather(carry(reader, ours), carry(theirs, writer))


async def test_a_client_comes_back_to_a_station_that_was_away_as_a_whole(
    tmp_path: Path, workshops: Mapping[str, Workshop]
) -> None:
    async with station(tmp_path) as house, door(house.url) as way:
        key = await house.deploy("stall", stall.service.contract)
        own = await house.deploy("walker", walker(False))
        seed = canonical.encode_base64url(own.seed)
        async with (
            stall.service(key=key, authority=house.url).connect(),
            workshops["old"].in_node("walker") as perform,
        ):
            await perform("enter", authority=way.url, seed=seed)

            async def go_away() -> None:
                """Neither NATS nor the authority are there, until two attempts have failed."""
                way.shut()
                pid = house.server.pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                await way.knocks.get()
                await way.knocks.get()

            await go_away()
            way.is_open = True
            await perform("start", payload={"n": 1}, key="walk-1")
            assert await perform("finish", n=2) == {"n": 3}
            assert await perform("heard") == {"n": 3}
            await go_away()
            # Who closes meanwhile is not held up, and nothing goes wrong.
            await perform("close")
            assert await perform("ended") == {}
