"""Durable work within exactly the subjects that grants derive, on a real server."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import nats
import pytest
from tests.fabric.fabric_network import Sessions
from tests.fabric.work_network import NUMBER, bound, bucket, job_streams, queue, received, store

from accord.contracts import Bindings, Grants, SessionRole, grants, resolve_uses, union
from accord.contracts.authoring import Contract
from accord.contracts.permissions import QueueBinding
from accord.contracts.session_proof import session_key
from accord.fabric import Link, Terms
from accord.fabric.jobs import JobContext, Worker, open_queue
from accord.fabric.kv import open_kv
from accord.fabric.link import NatsClient
from accord.fabric.objects import open_store
from accord.fabric.operations import OperationContext, Operations, start
from accord.fabric.transfer import Downloads, download, upload
from accord.kernel.signing import SigningKey
from accord.testing.servers import nats_server


def service_contract() -> Contract:
    contract = Contract("work@v1", display_name="Work", description="Works.")
    named = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    contract.schema("Number", NUMBER)
    contract.schema("Named", named)
    contract.operation("Work.Run", "Number", "Number", signals={"more": "Number"}, cancel=[])
    contract.operation("Work.Store", "Named", "Number", transfer={"store": "files", "key": "/name"})
    contract.rpc("Work.Fetch", "Named", "Named", receives=True)
    contract.kv("notes", "Number", "Notes.", history=3)
    contract.store("files", "Files.")
    contract.job(
        "task",
        "Number",
        key_concurrency={"key": ["/n"]},
        queue={"max_queued_per_key": 3},
    )
    return contract


def caller_contract() -> Contract:
    contract = Contract("desk@v1", display_name="Desk", description="A desk.", kind="agent")
    contract.uses("work", "work@v1", operations=["Work.Run", "Work.Store"], rpc=["Work.Fetch"])
    return contract


def permissions(granted: Grants, *, serves: bool) -> dict[str, Any]:
    allowed: dict[str, Any] = {
        "publish": {"allow": list(granted.publish)},
        "subscribe": {"allow": list(granted.subscribe)},
    }
    if serves:
        allowed["allow_responses"] = {"max": 1000, "expires": "1m"}
    return allowed


class Scene:
    """A service and a caller, each with its own grants and nothing else."""

    def __init__(self, service: Link, caller: Link, sessions: Sessions) -> None:
        self.service = service
        self.caller = caller
        self.sessions = sessions
        self.terms = Terms(service_contract())
        self.refusals: list[str] = []


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    keys = {"service": SigningKey.generate(), "caller": SigningKey.generate()}
    service, caller = service_contract().manifest(), caller_contract().manifest()
    with nats_server(jetstream=True) as first:
        admin = await nats.connect(first.url)
        await job_streams(admin)
        bindings = {
            "notes": await bucket(admin, history=3),
            "files": await store(admin),
            "records": await bucket(admin),
        }
        jobs = await queue(admin, **service["jobs"]["task"])
        await admin.close()
        name = jobs["consumerName"]
        health = {"trellis.health@v1": _health(), "trellis.auth@v1": _auth()}
        granted = {
            "service": grants(
                service,
                role=SessionRole.SERVICE,
                resolution=resolve_uses(service, health),
                capabilities=set(),
                bindings=Bindings(
                    kv={"notes": bindings["notes"]},
                    store={"files": bindings["files"]},
                    jobs={"task": QueueBinding("acc_ns", name, name, key_bucket=jobs["keyBucket"])},
                    operations=bindings["records"],
                ),
                session_key=session_key(keys["service"]),
            ),
            "caller": grants(
                caller,
                role=SessionRole.CALLER,
                resolution=resolve_uses(caller, {**health, "work@v1": union([service])}),
                capabilities=set(),
                session_key=session_key(keys["caller"]),
            ),
        }
        assert all(each.ok for each in granted.values())
        users = [
            {
                "user": user,
                "password": "x",
                "permissions": permissions(granted[user], serves=user == "service"),
            }
            for user in keys
        ]
        # The same data, with permissions.
        data = first.folder / "jetstream"
        configuration = tmp_path / "server.conf"
        configuration.write_text(json.dumps({"authorization": {"users": users}}))
        first.stop()
        options = ["-c", str(configuration), "-js", "-sd", str(data)]
        with nats_server(options=options) as second:
            async with AsyncExitStack() as stack:
                links: dict[str, Link] = {}
                refusals: list[str] = []

                async def refused(error: Exception) -> None:
                    refusals.append(str(error))

                for user, key in keys.items():
                    connection = NatsClient()
                    prefix = f"_INBOX.{session_key(key)[:16]}"
                    await connection.connect(
                        second.url,
                        user=user,
                        password="x",
                        inbox_prefix=prefix,
                        error_cb=refused,
                    )
                    stack.push_async_callback(connection.close)
                    links[user] = Link(connection, key)
                links["service"].bound = bound(
                    kv={"notes": {"bucket": bindings["notes"]}},
                    store={"files": {"name": bindings["files"]}},
                    operations={"bucket": bindings["records"]},
                    jobs={"queues": {"task": jobs}, "workStream": "JOBS_WORK"},
                )
                sessions = Sessions()
                sessions.admit(keys["caller"], ())
                scene = Scene(links["service"], links["caller"], sessions)
                yield scene
                assert refusals == []


def _health() -> Any:
    contract = Contract("trellis.health@v1", display_name="H", description="H.")
    contract.schema("Any", True)
    contract.event("Health.Heartbeat", "Any")
    return union([contract.manifest()])


def _auth() -> Any:
    contract = Contract("trellis.auth@v1", display_name="A", description="A.")
    contract.schema("Any", True)
    for name in ("Me", "Logout"):
        contract.rpc(f"Auth.Sessions.{name}", "Any", "Any")
    return union([contract.manifest()])


async def test_operations_and_uploads_need_nothing_else(scene: Scene) -> None:
    files = open_store(scene.service, scene.terms, "files")

    async def run(context: OperationContext, payload: Any) -> Any:
        await context.progress(payload)
        return {"n": payload["n"] + (await context.signal("more"))["n"]}

    async def count(context: OperationContext, payload: Any) -> Any:
        return {"n": len(await files.get(payload["name"]))}

    async with received(scene.service, scene.sessions, "work") as dispatcher:
        operations = Operations(scene.service, scene.terms, dispatcher)
        operations.serve("Work.Run", run)
        operations.serve("Work.Store", count)
        async with operations:
            running = await start(scene.caller, scene.terms, "Work.Run", {"n": 1})
            assert await running.signal("more", {"n": 2}) == 1
            assert [each.state async for each in running.watch()][-1] == "completed"
            assert (await running.get()).output == {"n": 3}
            stopped = await start(scene.caller, scene.terms, "Work.Run", {"n": 1})
            assert (await stopped.cancel()).state == "cancelled"
            storing = await start(scene.caller, scene.terms, "Work.Store", {"name": "a"})
            await upload(scene.caller, storing.transfer, b"x" * 300_000)
            assert await storing.result() == {"n": 300_000}


async def test_downloads_need_nothing_else(scene: Scene) -> None:
    files = open_store(scene.service, scene.terms, "files")
    await files.put("a", b"x" * 5_000_000)
    async with Downloads(scene.service, "workers") as downloads:
        grant = await downloads.offer(scene.caller.session, files, "a")
        fetched = [chunk async for chunk in download(scene.caller, grant)]
    assert b"".join(fetched) == b"x" * 5_000_000
    assert [found.key async for found in files.list()] == ["a"]
    assert await files.delete("a")


async def test_keyed_jobs_and_values_need_nothing_else(scene: Scene) -> None:
    async def work(context: JobContext, payload: Any) -> None:
        await context.progress(payload)
        await context.log("done")

    jobs = open_queue(scene.service, scene.terms, "task")
    async with Worker(scene.service, jobs.queue, work).running():
        first = await jobs.submit({"n": 1})
        assert first != await jobs.submit({"n": 1})
        assert await jobs.run({"n": 2}, within=20) is None
    notes = open_kv(scene.service, scene.terms, "notes")
    await notes.put("a", {"n": 1})
    await notes.put("a", {"n": 2})
    assert await notes.keys() == ["a"]
    assert [value and value.value["n"] async for value in notes.history("a")] == [1, 2]
