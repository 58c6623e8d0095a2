"""The journal of calls: what crossed, as the pipeline reads it, and what is kept out."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import MetaData
from tests.fabric.fabric_authority import Miniature, miniature
from tests.fabric.fabric_network import graph

from accord.fabric import (
    App,
    Caller,
    NotFoundError,
    Request,
    Service,
    Terms,
    UnauthorizedError,
    ValidationError,
)
from accord.fabric.journal import CALLS_STREAM, CallJournal, keep_none, keep_unless_secret
from accord.kernel.schema import compile_schema
from accord.kernel.signing import SigningKey
from accord.storage import Schema, Store, journal, open_store
from accord.testing.servers import Server as Process

FORM = compile_schema(
    json.loads(
        (resources.files("accord.pipeline") / "data/streams/contracts.calls.json").read_bytes()
    )
)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Store]:
    async with open_store(folder, Schema("calls", MetaData())) as store:
        yield store


async def told(store: Store) -> list[dict[str, Any]]:
    entries = await store.read(lambda connection: journal.read(connection, CALLS_STREAM))
    bodies = [json.loads(entry.body) for entry in entries]
    for body in bodies:
        assert FORM.findings(body) == []
    return bodies


@asynccontextmanager
async def exchange(
    nats: Process, store: Store, **more: Any
) -> AsyncIterator[tuple[Any, Miniature]]:
    """A client of a service whose calls are journaled; both have gone when the block ends."""
    async with miniature(nats.url) as authority:
        service = Service(
            graph(),
            partial=True,
            key=SigningKey.generate(),
            authority=authority.url,
            store=store,
            **more,
        )

        @service.rpc("User.Find")
        async def find(_request: Request, payload: Any) -> Any:
            if payload["id"] == "none":
                raise NotFoundError("no such user")
            if payload["id"] == "odd":
                raise RuntimeError("odd")
            return payload

        key = SigningKey.generate()
        authority.sessions.admit(key)
        app = App(graph(), key=key, authority=authority.url)
        async with service.connect(), app.connect() as session:
            yield session.client(graph()), authority


async def test_both_payloads_of_a_call_are_told(nats: Process, tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        async with exchange(nats, store) as (client, _):
            await client.call("User.Find", {"id": "7"})
        asked, answered = await told(store)
    assert (asked["part"], asked["payload"], asked["ms"]) == ("input", {"id": "7"}, None)
    assert (answered["part"], answered["payload"]) == ("output", {"id": "7"})
    assert answered["ms"] >= 0
    assert asked["request_id"] == answered["request_id"]
    assert asked["service"] == "graphs"
    assert asked["caller"]["deployment"] == "app"


async def test_failures_are_told_with_their_type(nats: Process, tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        async with exchange(nats, store) as (client, authority):
            for name in ("none", "odd"):
                with pytest.raises(Exception, match=r"no such user|failed to answer"):
                    await client.call("User.Find", {"id": name})
            with pytest.raises(ValidationError):
                await client.link.request("rpc.v1.User.Find", b'{"id":5}')
            stranger = SigningKey.generate()
            authority.sessions.admit(stranger, ())
            app = App(graph(), key=stranger, authority=authority.url)
            async with app.connect() as session:
                with pytest.raises(UnauthorizedError):
                    await session.client(graph()).call("User.Find", {"id": "7"})
        bodies = await told(store)
    assert [(body["part"], body["error"], "payload" in body) for body in bodies] == [
        ("input", None, True),
        ("output", "NotFoundError", False),
        ("input", None, True),
        ("output", "UnexpectedError", False),
        ("input", "ValidationError", False),
        ("input", "UnauthorizedError", False),
    ]


async def test_a_policy_keeps_payloads_out(nats: Process, tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        async with exchange(nats, store, policy=keep_none) as (client, _):
            await client.call("User.Find", {"id": "7"})
        assert not any("payload" in body for body in await told(store))


async def test_a_payload_with_a_secret_is_left_out_whole(nats: Process, tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        async with exchange(nats, store) as (client, _):
            await client.call("User.Find", {"id": "7", "deep": [{"apiKey": "hunter2"}]})
            await client.call("User.Find", {"id": "8"})
        bodies = await told(store)
    assert ["payload" in body for body in bodies] == [False, False, True, True]
    assert "hunter2" not in json.dumps(bodies)


@given(st.sampled_from(("password", "accessToken", "refresh_token", "client_secret", "jwt")))
def test_names_of_secrets_are_recognised_however_deep(name: str) -> None:
    assert not keep_unless_secret("rpc", "X", "input", {"a": [{"b": {name: "x"}}]})
    assert keep_unless_secret("rpc", "X", "input", {"tokens_used": 5, "keyboard": "x"})


async def test_calls_wait_where_the_store_cannot_keep_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        caller = Caller("s" * 43, "person", "ada")
        async with CallJournal(store, Terms(graph()), "graphs") as calls:
            await asyncio.gather(
                *(
                    calls.record("rpc", "User.Find", "input", caller=caller, request_id=str(number))
                    for number in range(12_000)
                )
            )
        entries = await store.read(
            lambda connection: journal.stream_ranges(connection)[CALLS_STREAM]
        )
    assert entries.head == 12_000
