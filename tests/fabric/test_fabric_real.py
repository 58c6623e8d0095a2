"""Services and callers under a whole authority: let in by it, and by nothing else."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest
from sqlalchemy import MetaData
from tests.fabric.fabric_network import graph
from tests.fabric.fabric_station import Station, station

from accord.authority.rules import DeploymentKind
from accord.contracts import digest
from accord.contracts.authoring import Contract
from accord.fabric import (
    App,
    BootstrapError,
    Device,
    FabricError,
    Received,
    Request,
    Service,
    UnauthorizedError,
    UnavailableError,
)
from accord.fabric.jobs import JobContext
from accord.fabric.journal import CALLS_STREAM
from accord.fabric.operations import OperationContext
from accord.kernel.signing import SigningKey
from accord.pipeline.rules import Manifests, check_call, redact
from accord.storage import Schema, journal, open_store


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Station]:
    async with station(tmp_path) as house:
        yield house


def reader() -> Contract:
    contract = Contract("reader@v1", display_name="Reader", description="Reads users.")
    contract.uses("graph", "graph@v1", rpc=["User.Find"], subscribe=["User.Changed"])
    return contract


def answering(house: Station, key: SigningKey, contract: Contract | None = None) -> Service:
    service = Service(contract or graph(), partial=True, key=key, authority=house.url)

    @service.rpc("User.Find")
    async def find(_request: Request, payload: Any) -> Any:
        return payload

    @service.rpc("User.Open")
    async def open_(_request: Request, payload: Any) -> Any:
        return payload

    return service


async def test_a_service_waits_for_its_plan_and_then_serves_what_was_accepted(
    house: Station,
) -> None:
    key = await house.deploy("graphs")
    service = answering(house, key)
    taken: asyncio.Queue[Received] = asyncio.Queue()
    service.events("changes")(taken.put)
    up, done = asyncio.Event(), asyncio.Event()

    async def serve() -> None:
        async with service.connect() as session:
            up.set()
            await session.publish("User.Changed", {"id": "1"})
            await done.wait()

    serving = asyncio.create_task(serve())
    while not (plans := await house.authority.plans.all("graphs")):  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(0.05)
    assert not up.is_set()
    await house.authority.plans.accept(plans[0].id, "operator")
    await up.wait()
    assert (await taken.get()).payload == {"id": "1"}

    caller = Service(reader(), key=await house.deploy("readers", reader()), authority=house.url)
    async with caller.connect() as session:
        client = session.client(graph())
        assert await client.call("User.Find", {"id": "7"}) == {"id": "7"}
        with pytest.raises(UnauthorizedError, match="may not publish here"):
            await client.call("User.Open", {"id": "7"})
    done.set()
    await serving


async def test_a_caller_loses_a_capability_within_seconds_of_its_removal(house: Station) -> None:
    key = await house.deploy("graphs", graph())
    async with answering(house, key).connect():
        caller = Service(reader(), key=await house.deploy("readers", reader()), authority=house.url)
        async with caller.connect() as session:
            client = session.client(graph())
            await client.call("User.Find", {"id": "7"})
            await house.authority.deployments.narrow("readers", capabilities=["graph::users.read"])
            async with asyncio.timeout(10):
                while True:
                    try:
                        await client.call("User.Find", {"id": "7"}, within=2)
                    except UnauthorizedError:
                        break
                    except FabricError:
                        pass  # cut off, and not back yet
                    await asyncio.sleep(0.05)


async def test_a_rolling_update_fails_no_call(house: Station) -> None:
    newer = graph()
    newer.rpc("User.Count", "User", "User")
    first = await house.deploy("graphs", graph(), newer)
    second = await house.instance("graphs", "two")
    caller = Service(reader(), key=await house.deploy("readers", reader()), authority=house.url)
    old, new = answering(house, first), answering(house, second, newer)
    calls, done = 0, asyncio.Event()
    async with AsyncExitStack() as stack, AsyncExitStack() as leaving:
        await leaving.enter_async_context(old.connect())
        session = await stack.enter_async_context(caller.connect())
        client = session.client(graph())

        async def keep_calling() -> None:
            nonlocal calls
            while not done.is_set():
                calls += 1
                asked = {"id": str(calls)}
                assert await client.call("User.Find", asked) == asked

        calling = [asyncio.create_task(keep_calling()) for _ in range(4)]
        await stack.enter_async_context(new.connect())
        await _until(lambda: calls > 20)
        await leaving.aclose()
        before = calls
        await _until(lambda: calls > before + 20)
        done.set()
        await asyncio.gather(*calling)


async def test_an_instance_that_is_removed_learns_why_its_session_is_over(house: Station) -> None:
    key = await house.deploy("graphs", graph())
    async with answering(house, key).connect() as session:
        await house.authority.deployments.remove_instance(session.key)
        with pytest.raises(BootstrapError) as caught:
            await asyncio.wait_for(session.ended(), 20)
        assert caught.value.code == "unknown_session"
        with pytest.raises(UnavailableError):
            await session.publish("User.Changed", {"id": "1"}, within=0.2)


def busy() -> Contract:
    contract = Contract("busy@v1", display_name="Busy", description="Works.")
    contract.schema("Thing", {"type": "object", "properties": {"n": {"type": "integer"}}})
    contract.operation("Thing.Make", "Thing", "Thing", progress="Thing", signals={"go": "Thing"})
    contract.job("count", "Thing", "Thing")
    contract.job("note", "Thing")
    contract.kv("things", "Thing", "Keeps things.")
    contract.serves_callers()
    return contract


def foreman() -> Contract:
    contract = Contract("foreman@v1", display_name="Foreman", description="Has things made.")
    contract.uses("busy", "busy@v1", operations=["Thing.Make"])
    return contract


async def test_a_service_runs_operations_and_jobs_and_the_journal_is_told(
    house: Station, tmp_path: Path
) -> None:
    key = await house.deploy("busy", busy())
    async with open_store(tmp_path / "journal", Schema("calls", MetaData())) as store:
        service = Service(busy(), key=key, authority=house.url, store=store)

        @service.operation("Thing.Make")
        async def make(context: OperationContext, payload: Any) -> Any:
            await context.progress({"n": 1})
            signal = await context.signal("go")
            counted = await service.session.jobs("count").run(signal, within=20)
            await service.session.kv("things").put("made", counted)
            assert await service.session.jobs("note").run({"n": 7}, within=20) is None
            return counted

        @service.job("count")
        async def count(_context: JobContext, payload: Any) -> Any:
            return {"n": payload["n"] + 1}

        @service.job("note")
        async def note(_context: JobContext, _payload: Any) -> Any:
            return "nobody is promised this"

        caller = await house.deploy("foremen", foreman())
        async with (
            service.connect() as own,
            Service(foreman(), key=caller, authority=house.url).connect() as session,
        ):
            run = await session.client(busy()).start("Thing.Make", {"n": 0})
            await run.signal("go", {"n": 41})
            assert await run.result() == {"n": 42}
            kept = await own.kv("things").get("made")
            assert kept is not None
            assert kept.value == {"n": 42}
        entries = await store.read(lambda connection: journal.read(connection, CALLS_STREAM))
    bodies = [json.loads(entry.body) for entry in entries]
    assert [(body["kind"], body["part"], body.get("payload")) for body in bodies] == [
        ("operations", "input", {"n": 0}),
        ("jobs", "payload", {"n": 41}),
        ("jobs", "result", {"n": 42}),
        ("jobs", "payload", {"n": 7}),
        ("jobs", "result", None),
        ("operations", "output", {"n": 42}),
    ]
    contracts = Manifests({digest(busy().manifest()): busy().to_json()})
    for body in bodies:
        check_call(body, contracts)
        assert redact(CALLS_STREAM, json.dumps(body)) == json.dumps(body)


def viewer(kind: Literal["app", "device"]) -> Contract:
    contract = Contract(f"viewer.{kind}@v1", display_name="View", description="Sees.", kind=kind)
    contract.uses("graph", "graph@v1", rpc=["User.Find"])
    return contract


async def test_an_app_acts_for_a_person_who_logged_in(house: Station) -> None:
    async with answering(house, await house.deploy("graphs", graph())).connect():
        person = await house.identities.people.add("ada", ["graph::users.read"])
        app = App(viewer("app"), key=SigningKey.generate(), authority=house.url)
        with pytest.raises(BootstrapError):
            async with app.connect():
                pass
        begun = await app.begin_login("https://app.example/back")
        assert begun.url.startswith(house.url)
        login = await house.identities.login_flows.find(begun.id)
        back = await house.identities.login_flows.approve(login, person)
        with pytest.raises(BootstrapError):
            await app.bind_login("another")
        await app.bind_login(parse_qs(urlsplit(back).query)["flowId"][0])
        async with app.connect() as session:
            client = session.client(graph())
            assert await client.call("User.Find", {"id": "7"}) == {"id": "7"}
            with pytest.raises(UnauthorizedError, match="may not subscribe here"):
                await client.listen("User.Changed").__aenter__()


async def test_a_device_comes_in_when_a_person_has_activated_it(house: Station) -> None:
    async with answering(house, await house.deploy("graphs", graph())).connect():
        await house.deploy("viewers", viewer("device"), kind=DeploymentKind.DEVICE)
        device = Device(viewer("device"), key=SigningKey.generate(), authority=house.url)
        with pytest.raises(BootstrapError):
            async with device.connect():
                pass
        asked = await device.activate("viewers", "kitchen")
        person = await house.identities.people.add("ada", ["trellis.auth::devices.activate"])
        await house.identities.devices.confirm(asked.code, person)
        async with device.connect() as session:
            assert session.link.bound.deployment == "viewers"
            answer = await session.client(graph()).call("User.Find", {"id": "7"})
            assert answer == {"id": "7"}


@pytest.mark.parametrize("kill", [signal.SIGTERM, signal.SIGKILL])
async def test_what_was_acknowledged_outlives_the_nats_server(house: Station, kill: int) -> None:
    key = await house.deploy("graphs", graph())
    service = answering(house, key)
    taken: set[str] = set()

    @service.events("changes")
    async def take(event: Received) -> None:
        taken.add(event.payload["id"])

    published: set[str] = set()
    async with service.connect() as session:
        done = asyncio.Event()

        async def publish(lane: int) -> None:
            number = 0
            while not done.is_set():
                name = f"{lane}-{number}"
                with suppress(FabricError):
                    await session.publish("User.Changed", {"id": name}, within=20)
                    published.add(name)
                number += 1

        publishing = [asyncio.create_task(publish(lane)) for lane in range(4)]
        await _until(lambda: len(published) > 20)
        pid = house.server.pid
        assert pid is not None
        os.kill(pid, kill)
        before = len(published)
        await _until(lambda: len(published) > before + 20)
        done.set()
        await asyncio.gather(*publishing)
        await _until(lambda: published <= taken)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - it happens in other processes
            await asyncio.sleep(0.02)
