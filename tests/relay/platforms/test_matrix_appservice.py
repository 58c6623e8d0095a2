"""The bot as an application service: told by a real homeserver, or by one who is none."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr, ValidationError
from starlette.applications import Starlette
from starlette.routing import BaseRoute
from tests.fakes.platform import KeptContext
from tests.relay.platforms.matrix_people import Town

from accord.kernel.clock import SystemClock
from accord.relay.connector import InboundEvent
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import matrix
from accord.relay.rules import Send
from accord.station import listener
from accord.testing.servers import MATRIX_SERVER, synapse_server

pytestmark = pytest.mark.slow

HS_TOKEN = "hs-t0ken-of-the-server"
AS_TOKEN = "as-t0ken-of-the-bot"
PATH = f"/relay/platforms/matrix/agent:{MATRIX_SERVER}/_matrix/app/v1"


def service(homeserver: str = "http://127.0.0.1:9", **given: Any) -> matrix.MatrixSettings:
    return matrix.MatrixSettings(
        homeserver=homeserver,
        user_id=f"@agent:{MATRIX_SERVER}",
        mode="appservice",
        access_token=SecretStr(AS_TOKEN),
        hs_token=SecretStr(HS_TOKEN),
        **given,
    )


class Connector(KeptContext):
    """A connector that tells when it refused something."""

    def __init__(self) -> None:
        super().__init__()
        self.turned_away = asyncio.Event()

    async def ingest(self, inbound: InboundEvent) -> bool:
        if self.refusing is not None:
            self.turned_away.set()
        return await super().ingest(inbound)


@asynccontextmanager
async def serving(routes: Sequence[BaseRoute], socket: Any) -> AsyncIterator[None]:
    server = listener.Listener(Starlette(routes=list(routes)))
    task = asyncio.create_task(server.serve([socket]))
    await server.serving.wait()
    try:
        yield
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def called(context: KeptContext | None) -> AsyncIterator[httpx.AsyncClient]:
    """One who calls the bot's routes, with the homeserver's token unless said otherwise."""
    async with matrix.open_matrix(service(), SystemClock()) as platform:
        if context is not None:
            platform.bind(context)
        app = httpx.ASGITransport(Starlette(routes=list(platform.routes)))
        headers = {"authorization": f"Bearer {HS_TOKEN}"}
        async with httpx.AsyncClient(
            transport=app, base_url="http://connector", headers=headers
        ) as client:
            yield client


async def test_a_homeserver_tells_the_bot_and_hears_its_answer(tmp_path: Path) -> None:
    registration = tmp_path / "registration.yaml"
    context = Connector()
    with listener.bind("127.0.0.1", 0) as socket:
        await asyncio.to_thread(
            matrix.write_registration, service(), listener.address(socket), registration
        )
        assert stat.S_IMODE(registration.stat().st_mode) == 0o600
        with synapse_server(appservices=[registration]) as server:
            async with (
                matrix.open_matrix(service(server.url), SystemClock()) as platform,
                serving(platform.routes, socket),
                Town.open(server) as town,
            ):
                platform.bind(context)
                running = asyncio.create_task(platform.run(context))
                await context.until(lambda: bool(context.standings))
                ann = await town.person("ann")
                room = await ann.room(name="kitchen", invite=[platform.bot_id])
                await ann.until_member(room, platform.bot_id)
                await ann.say(room, "hello")
                await context.until(lambda: context.texts == ["hello"])
                assert (await platform.perform(Send(room, "hi"), "k")).success
                (said,) = await ann.heard(room, platform.bot_id, 1)
                assert said["body"] == "hi"
                context.refusing = RelayError(Code.UNAVAILABLE, "the disk is full")
                await ann.say(room, "kept until it can be taken")
                await asyncio.wait_for(context.turned_away.wait(), 20)
                context.refusing = None
                await context.until(lambda: len(context.taken) == 2, within=60)
                assert await platform.can_view(ann.id, room, room) is True
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("given", "status"),
    [("", 401), ("Bearer wrong", 403), (HS_TOKEN, 403), (f"Bearer {AS_TOKEN}", 403)],
)
async def test_who_is_not_the_homeserver_is_refused(given: str, status: int) -> None:
    context = KeptContext()
    async with called(context) as client:
        for method, path in [
            ("PUT", "transactions/1"),
            ("POST", "ping"),
            ("GET", "users/@x:y"),
            ("GET", "rooms/%23x:y"),
        ]:
            answer = await client.request(
                method, f"{PATH}/{path}", headers={"authorization": given}, json={"events": []}
            )
            assert answer.status_code == status
            assert HS_TOKEN not in answer.text
    assert context.taken == []


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"7", b'{"events": {}}', b'{"events": null}', b"\xff", b"[" * 5000]
)
async def test_a_transaction_that_is_none_is_refused(body: bytes) -> None:
    context = KeptContext()
    async with called(context) as client:
        answer = await client.put(f"{PATH}/transactions/1", content=body)
        assert (answer.status_code, answer.json()["errcode"]) == (400, "M_BAD_JSON")


async def test_a_transaction_that_is_too_large_is_refused() -> None:
    async with called(KeptContext()) as client:
        answer = await client.put(f"{PATH}/transactions/1", content=b" " * (16 * 1024 * 1024 + 1))
        assert answer.status_code == 413


async def test_events_that_make_no_sense_are_passed_over() -> None:
    context = KeptContext()
    odd: list[Any] = [
        None,
        7,
        [],
        {},
        {"room_id": 7},
        {"room_id": "!r"},
        {"room_id": "!r", "type": "m.room.member", "state_key": 7, "content": 7},
        {"room_id": "!r", "type": "m.room.message", "content": {"body": "x"}, "sender": 7},
    ]
    async with called(context) as client:
        answer = await client.put(f"{PATH}/transactions/1", content=json.dumps({"events": odd}))
        assert (answer.status_code, answer.json()) == (200, {})
    assert context.taken == []


async def test_what_the_bot_cannot_look_up_is_not_acknowledged() -> None:
    message = {
        "room_id": "!r",
        "event_id": "$e",
        "sender": "@ann:x",
        "type": "m.room.message",
        "content": {"msgtype": "m.text", "body": "hello"},
    }
    async with called(KeptContext()) as client:  # its homeserver does not answer
        answer = await client.put(f"{PATH}/transactions/1", json={"events": [message]})
        assert answer.status_code == 503


async def test_nothing_is_taken_before_the_connector_is_there() -> None:
    async with called(None) as client:
        answer = await client.put(f"{PATH}/transactions/1", json={"events": []})
        assert answer.status_code == 503


def test_a_registration_overwrites_nothing(tmp_path: Path) -> None:
    path = tmp_path / "registration.yaml"
    path.write_text("mine")
    with pytest.raises(RelayError, match="cannot be written"):
        matrix.write_registration(service(), "https://relay.example", path)
    assert path.read_text() == "mine"


def test_a_token_of_the_homeserver_belongs_to_an_application_service() -> None:
    with pytest.raises(ValidationError, match="hs_token"):
        service().model_validate({**service().model_dump(), "mode": "sync"})
