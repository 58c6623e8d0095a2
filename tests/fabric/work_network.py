"""What tests of durable work share: a contract, and resources as the authority makes them."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
from nats.aio.client import Client
from tests.fabric.fabric_network import Sessions, linked

from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.fabric import Link
from accord.fabric.link import SessionBindings
from accord.fabric.requests import Callers, RequestDispatcher
from accord.kernel.signing import SigningKey

ALL = ("work::run", "work::cancel", "work::control")
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def work() -> Contract:
    """A service with every kind of durable work."""
    contract = Contract("work@v1", display_name="Work", description="Works.")
    for name in ("run", "cancel", "control"):
        contract.capability(name, name, f"May {name}.")
    contract.schema("Number", NUMBER)
    tags = {"type": "object", "additionalProperties": {"type": "string"}}
    named = {"name": {"type": "string"}, "tags": tags}
    contract.schema("File", {"type": "object", "properties": named, "required": ["name"]})
    contract.operation(
        *("Work.Run", "Number", "Number"),
        progress="Number",
        signals={"more": "Number"},
        call=["run"],
        cancel=["cancel"],
        control=["control"],
    )
    contract.operation("Work.Own", "Number", "Number", signals={"more": "Number"})
    contract.operation(
        *("Work.Store", "File", "Number"),
        call=["run"],
        transfer={
            "store": "files",
            "key": "/name",
            "metadata": "/tags",
            "expires_in_ms": 5000,
            "max_bytes": 2_000_000,
        },
    )
    contract.schema("Any", True)
    contract.rpc("Work.Fetch", "File", "Any", receives=True)
    contract.kv("notes", "Number", purpose="Notes.", history=5, max_value_bytes=100)
    contract.store("files", purpose="Files.", max_object_bytes=3_000_000)
    contract.job("plain", "Number", "Number", max_deliver=3, backoff_ms=[1, 1], ack_wait_ms=2000)
    return contract


async def create(admin: Client, name: str, config: Mapping[str, Any]) -> None:
    """Create a stream as the authority does."""
    asked = orjson.dumps({"name": name, "storage": "file", **config})
    subject = f"$JS.API.STREAM.CREATE.{name}"
    answer = orjson.loads((await admin.request(subject, asked, timeout=10)).data)
    assert "error" not in answer, answer


async def bucket(admin: Client, history: int = 1) -> str:
    """A fresh bucket."""
    name = f"acc_kv_{secrets.token_hex(8)}"
    config = {"subjects": [f"$KV.{name}.>"], "max_msgs_per_subject": history, "discard": "new"}
    flags = {"allow_rollup_hdrs": True, "allow_direct": True, "deny_delete": True}
    await create(admin, f"KV_{name}", {**config, **flags})
    return name


async def store(admin: Client) -> str:
    """A fresh object store."""
    name = f"acc_obj_{secrets.token_hex(8)}"
    subjects = [f"$O.{name}.C.>", f"$O.{name}.M.>"]
    flags = {"allow_rollup_hdrs": True, "allow_direct": True, "discard": "new"}
    await create(admin, f"OBJ_{name}", {"subjects": subjects, **flags})
    return name


@asynccontextmanager
async def received(link: Link, sessions: Sessions, queue: str) -> AsyncIterator[RequestDispatcher]:
    """Where the requests of one instance come in."""
    dispatcher = RequestDispatcher(
        link.nats,
        Callers(sessions.resolve, link.clock),
        queue=queue,
        clock=link.clock,
        ids=link.ids,
    )
    try:
        yield dispatcher
    finally:
        await dispatcher.drain(1.0)


@asynccontextmanager
async def calling(
    url: str, sessions: Sessions, *capabilities: str, subject: str = "app"
) -> AsyncIterator[Link]:
    """The link of a caller who holds some capabilities."""
    key = SigningKey.generate()
    caller = sessions.admit(key, capabilities)
    sessions.known[session_key(key)] = type(caller)(
        caller.session, "person", subject, capabilities=caller.capabilities
    )
    async with linked(url, key) as link:
        yield link


def bound(**resources: Any) -> SessionBindings:
    """What is bound to an instance."""
    return SessionBindings(resources, deployment="workers", instance="one")


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what must come to be so."""
    async with asyncio.timeout(60):
        while True:
            if await check():
                return
            await asyncio.sleep(0.01)


async def job_streams(admin: Client) -> None:
    """The streams that all jobs share."""
    await create(admin, "JOBS", {"subjects": ["trellis.jobs.>"], "allow_direct": True})
    await create(admin, "JOBS_WORK", {"subjects": ["trellis.work.>"], "retention": "workqueue"})


async def queue(admin: Client, **settings: Any) -> dict[str, Any]:
    """A fresh queue, as it is bound."""
    name = f"acc_q_{secrets.token_hex(8)}"
    work = f"trellis.work.acc_ns.{name}"
    config = {
        "durable_name": name,
        "ack_policy": "explicit",
        "ack_wait": settings.get("ackWaitMs", 2000) * 1_000_000,
        "max_deliver": -1,
        "filter_subject": work,
    }
    asked = orjson.dumps({"stream_name": "JOBS_WORK", "config": config})
    subject = f"$JS.API.CONSUMER.DURABLE.CREATE.JOBS_WORK.{name}"
    answer = orjson.loads((await admin.request(subject, asked)).data)
    assert "error" not in answer, answer
    bound = {
        "publishPrefix": f"trellis.jobs.acc_ns.{name}",
        "workSubject": work,
        "consumerName": name,
        "ackWaitMs": 2000,
        **settings,
    }
    if "keyConcurrency" in settings:
        bound["keyBucket"] = await bucket(admin)
    return bound
