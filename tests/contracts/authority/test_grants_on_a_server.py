"""Grants on a real server: they suffice for what is bound, and reach no further."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import ConsumerConfig, StreamConfig

from accord.contracts import Bindings, Grants, SessionRole, grants, resolve_uses
from accord.contracts.permissions import ConsumerBinding, QueueBinding, inbox_prefix
from accord.testing.servers import Server, nats_server

Make = Callable[..., dict[str, Any]]

KEY = "0123456789abcdefGHIJKLMNOPQRSTUVWXYZ-_abcde"
BINDINGS = Bindings(
    kv={"activity": "bound"},
    store={"uploads": "files"},
    consumers={"ledger": ConsumerBinding("EVENTS", "ledger")},
    jobs={"settle": QueueBinding("billing", "settle", "settle")},
)


@pytest.fixture
def granted(billing: Make) -> Grants:
    return grants(
        billing(),
        role=SessionRole.SERVICE,
        resolution=resolve_uses(billing(), {}),
        capabilities=set(),
        bindings=BINDINGS,
        session_key=KEY,
    )


@pytest.fixture
def server(granted: Grants, tmp_path: Path) -> Iterator[Server]:
    permissions = {
        "publish": {"allow": list(granted.publish)},
        "subscribe": {"allow": list(granted.subscribe)},
    }
    users = [
        {"user": "admin", "password": "x"},
        {"user": "service", "password": "x", "permissions": permissions},
    ]
    configuration = tmp_path / "server.conf"
    configuration.write_text(
        json.dumps({"accounts": {"A": {"jetstream": "enabled", "users": users}}})
    )
    with nats_server(jetstream=True, options=["-c", str(configuration)]) as running:
        yield running


@pytest.fixture
async def admin(server: Server) -> AsyncIterator[Client]:
    client = await nats.connect(server.url, user="admin", password="x")
    streams = client.jetstream()
    for bucket in ("bound", "foreign"):
        await streams.create_key_value(bucket=bucket)
    await streams.create_object_store("files")
    for name, subject in (("EVENTS", "events.v1.>"), ("JOBS_WORK", "trellis.work.>")):
        await streams.add_stream(StreamConfig(name=name, subjects=[subject]))
    await streams.add_stream(StreamConfig(name="JOBS", subjects=["trellis.jobs.>"]))
    for stream, consumer, subject in (
        ("EVENTS", "ledger", "events.v1.Paid.*"),
        ("JOBS_WORK", "settle", "trellis.work.billing.settle"),
    ):
        config = ConsumerConfig(durable_name=consumer, filter_subject=subject)
        await streams.add_consumer(stream, config=config)
    yield client
    await client.close()


@pytest.fixture
async def refusals() -> asyncio.Queue[str]:
    return asyncio.Queue()


@pytest.fixture
async def service(
    server: Server, admin: Client, refusals: asyncio.Queue[str]
) -> AsyncIterator[Client]:
    async def refused(error: Exception) -> None:
        refusals.put_nowait(str(error).lower())

    client = await nats.connect(
        server.url,
        user="service",
        password="x",
        inbox_prefix=inbox_prefix(KEY).encode(),
        error_cb=refused,
    )
    yield client
    await client.close()


async def test_a_service_reads_writes_and_lists_its_bucket(
    service: Client, refusals: asyncio.Queue[str]
) -> None:
    bucket = await service.jetstream().key_value("bound")
    await bucket.put("one", b"1")
    await bucket.put("two", b"2")
    await bucket.delete("two")
    assert (await bucket.get("one")).value == b"1"
    answer = await service.request(
        "$JS.API.STREAM.INFO.KV_bound", json.dumps({"subjects_filter": "$KV.bound.>"}).encode()
    )
    assert set(json.loads(answer.data)["state"]["subjects"]) == {"$KV.bound.one", "$KV.bound.two"}
    assert refusals.empty()


async def test_a_service_writes_replaces_and_reads_its_objects(
    service: Client, refusals: asyncio.Queue[str]
) -> None:
    store = await service.jetstream().object_store("files")
    await store.put("scan", b"first")
    await store.put("scan", b"second")
    info = await store.get_info("scan")
    chunk = await service.request(
        "$JS.API.DIRECT.GET.OBJ_files",
        json.dumps({"seq": 1, "next_by_subj": f"$O.files.C.{info.nuid}"}).encode(),
    )
    assert chunk.data == b"second"
    assert refusals.empty()


async def test_a_service_pulls_its_events_and_its_work(
    service: Client, refusals: asyncio.Queue[str]
) -> None:
    streams = service.jetstream()
    await streams.publish("events.v1.Paid.7", b"paid")
    await streams.publish("trellis.work.billing.settle", b"work")
    await streams.publish("trellis.jobs.billing.settle.id.created", b"created")
    for stream, consumer, expected in (
        ("EVENTS", "ledger", b"paid"),
        ("JOBS_WORK", "settle", b"work"),
    ):
        pulled = await streams.pull_subscribe_bind(consumer, stream)
        (message,) = await pulled.fetch(1, timeout=5)
        assert message.data == expected
        await message.ack_sync()
    assert refusals.empty()


@pytest.mark.parametrize(
    "subject",
    [
        "$KV.foreign.one",
        "$JS.API.STREAM.INFO.KV_foreign",
        "$JS.API.STREAM.DELETE.KV_bound",
        "$JS.API.STREAM.PURGE.KV_bound",
        "$JS.API.CONSUMER.CREATE.KV_bound",
        "$JS.API.CONSUMER.MSG.NEXT.JOBS_WORK.other",
        "trellis.work.billing.other",
        "trellis.jobs.other.settle.id.created",
        "events.v1.Other.7",
        "rpc.v1.Invoice.Get",
        "_INBOX.somebody.else",
    ],
)
async def test_a_service_reaches_no_further(
    service: Client, refusals: asyncio.Queue[str], subject: str
) -> None:
    await service.publish(subject, b"{}")
    await service.flush()
    refusal = await asyncio.wait_for(refusals.get(), 5)
    assert f'permissions violation for publish to "{subject.lower()}"' in refusal
