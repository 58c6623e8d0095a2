"""Interactions: verified on the exact bytes, taken before they are answered, followed up."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.signing import SigningKey
from starlette.applications import Starlette
from tests.fakes.platform import KeptContext

from accord.relay.connector import InboundEvent, InboundKind
from accord.relay.errors import Code, RelayError
from accord.relay.platforms import discord
from accord.relay.rules import interaction_event
from accord.storage import StoreError
from accord.testing import VirtualClock, run_virtual

APPLICATION = "900"
KEY = SigningKey(bytes(range(32)))
PATH = f"/relay/platforms/discord/{APPLICATION}/interactions"


def command(**more: Any) -> dict[str, Any]:
    return {
        "id": "7000",
        "type": 2,
        "token": "SECRET-TOKEN",
        "application_id": APPLICATION,
        "channel_id": "300",
        "guild_id": "100",
        "channel": {"id": "300", "type": 0},
        "member": {"user": {"id": "2", "username": "ada"}},
        "data": {"name": "ask", "options": [{"name": "what", "type": 3, "value": "time?"}]},
        **more,
    }


class Desk:
    """A door without a socket, and what went through it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.context = KeptContext()
        settings = discord.DiscordSettings(
            application_id=APPLICATION, public_key=KEY.verify_key.encode().hex()
        )
        self.door = discord.InteractionEndpoint(settings, self.clock)
        self.door.context = self.context
        app = Starlette(routes=[self.door.route])
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://connector"
        )

    async def post(
        self,
        payload: Any,
        *,
        late: float = 0.0,
        tamper: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        body = payload if isinstance(payload, bytes) else orjson.dumps(payload)
        timestamp = str(int(self.clock.now() - late))
        signature = KEY.sign(timestamp.encode() + body).signature.hex()
        signed = {"x-signature-timestamp": timestamp, "x-signature-ed25519": signature}
        return await self.http.post(
            PATH, content=body + tamper, headers=signed | dict(headers or {})
        )

    @property
    def taken(self) -> InboundEvent:
        [taken] = self.context.taken
        return taken


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    made = Desk()
    async with made.http:
        yield made


async def test_a_ping_is_answered_with_a_pong(desk: Desk) -> None:
    answer = await desk.post({"id": "1", "type": 1, "token": "x"})
    assert (answer.status_code, answer.json()) == (200, {"type": 1})
    assert desk.context.taken == []


async def test_a_command_is_taken_without_its_token_and_then_deferred(desk: Desk) -> None:
    answer = await desk.post(command())
    assert (answer.status_code, answer.json()) == (200, {"type": 5})
    taken = desk.taken
    assert taken.kind is InboundKind.PASSTHROUGH
    assert (taken.event_id, taken.bot_id, taken.addressed) == ("7000", APPLICATION, True)
    assert taken.event.text == "ask time?"
    source = taken.event.source
    assert (source.platform, source.chat_id, source.chat_type) == ("discord", "300", "group")
    assert (source.user_id, source.scope_id) == ("2", "100")
    assert taken.forward is not None
    assert b"SECRET" not in taken.forward.body
    assert "SECRET" not in repr(taken)
    [found] = taken.found
    assert found.kind == "discord.interaction_token"
    assert found.value.get_secret_value() == "SECRET-TOKEN"
    assert found.expires_at == int(desk.clock.now() * 1000) + 900_000
    # An existing gateway finds the same message in what is forwarded.
    forwarded = interaction_event(taken.forward)
    assert forwarded is not None
    assert forwarded.text == taken.event.text


async def test_a_command_in_a_thread_a_direct_chat_and_elsewhere(desk: Desk) -> None:
    thread = {"id": "400", "type": 11, "parent_id": "300"}
    await desk.post(command(id="1", channel_id="400", channel=thread))
    private = {"guild_id": None, "member": None, "user": {"id": "2", "username": "ada"}}
    await desk.post(command(id="2", **private, context=1))
    await desk.post(command(id="3", **private, context=2))
    sources = [each.event.source for each in desk.context.taken]
    assert [each.chat_type for each in sources] == ["thread", "dm", "group"]
    assert (sources[0].thread_id, sources[0].parent_chat_id) == ("400", "300")


async def test_a_button_promises_a_change_and_a_form_an_answer(desk: Desk) -> None:
    button = await desk.post(command(id="1", type=3, data={"custom_id": "yes"}))
    form = await desk.post(command(id="2", type=5, data={"custom_id": "form"}))
    assert (button.json(), form.json()) == ({"type": 6}, {"type": 5})
    assert desk.context.texts == ["yes", "form"]


async def test_a_half_written_command_has_no_choices_and_is_nobodys(desk: Desk) -> None:
    answer = await desk.post(command(type=4))
    assert answer.json() == {"type": 8, "data": {"choices": []}}
    assert desk.context.taken == []


async def test_a_repeated_command_is_taken_once(desk: Desk) -> None:
    first, again = await desk.post(command()), await desk.post(command())
    assert first.json() == again.json() == {"type": 5}
    assert desk.context.repeated == ["7000"]


@pytest.mark.parametrize("seconds", [301.0, -301.0])
async def test_what_is_late_or_from_the_future_is_refused(desk: Desk, seconds: float) -> None:
    assert (await desk.post(command(), late=seconds)).status_code == 401
    assert desk.context.taken == []


@pytest.mark.parametrize(
    "headers",
    [
        {"x-signature-ed25519": ""},
        {"x-signature-ed25519": "zz" * 64},
        {"x-signature-ed25519": "00" * 64},
        {"x-signature-ed25519": "00" * 5000},
        {"x-signature-timestamp": ""},
        {"x-signature-timestamp": "-1"},
        {"x-signature-timestamp": "1e9"},
        {"x-signature-timestamp": "9" * 4000},
    ],
)
async def test_what_is_not_signed_is_refused(desk: Desk, headers: dict[str, str]) -> None:
    answer = await desk.post(command(), headers=headers)
    assert answer.status_code == 401
    assert desk.context.taken == []


async def test_what_was_tampered_with_is_refused(desk: Desk) -> None:
    assert (await desk.post(command(), tamper=b" ")).status_code == 401


async def test_what_is_too_large_is_refused(desk: Desk) -> None:
    assert (await desk.post(command(more="x" * 256 * 1024))).status_code == 413


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"type":"2"}',
        b'{"type":2,"type":1}',
        b'\xff"',
        b"[" * 9000,
    ],
)
async def test_what_is_signed_and_no_interaction_is_refused(desk: Desk, body: bytes) -> None:
    assert (await desk.post(body)).status_code == 400


@pytest.mark.parametrize(
    "more",
    [
        {"id": None},
        {"id": "x"},
        {"token": None},
        {"token": 7},
        {"channel_id": "../"},
        {"data": 3},
        {"type": 77, "data": {}},
        {"member": []},
    ],
)
async def test_what_cannot_be_understood_is_said_so_to_the_user(
    desk: Desk, more: dict[str, Any]
) -> None:
    answer = await desk.post(command(**more))
    assert answer.status_code == 200
    assert answer.json()["type"] == 4
    assert desk.context.taken == []


async def test_what_could_not_be_stored_is_not_acknowledged(desk: Desk) -> None:
    desk.context.refusing = StoreError("the disk is full")
    assert (await desk.post(command())).status_code == 503
    desk.context.refusing = RelayError(Code.UNAVAILABLE, "not now")
    assert (await desk.post(command())).status_code == 503
    desk.context.refusing = None
    desk.door.context = None
    assert (await desk.post(command())).status_code == 503
    desk.door.context = desk.context
    assert (await desk.post(command())).json() == {"type": 5}


def test_an_answer_comes_in_time_even_if_the_store_does_not() -> None:
    class Stuck(KeptContext):
        async def ingest(self, inbound: InboundEvent) -> bool:
            await asyncio.sleep(60)
            return True

    async def main() -> None:
        desk = Desk()
        desk.door.context = Stuck()
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with desk.http:
            assert (await desk.post(command())).status_code == 503
        assert loop.time() - began < 3

    run_virtual(main())


@given(st.binary(max_size=40), st.binary(min_size=1, max_size=3), st.integers(0, 120))
def test_only_the_exact_bytes_are_verified(body: bytes, change: bytes, place: int) -> None:
    signature = KEY.sign(b"1000" + body).signature.hex()
    assert discord.is_signed(KEY.verify_key, signature, "1000", body, 1000.0)
    assert not discord.is_signed(KEY.verify_key, signature, "1000", body + change, 1000.0)
    assert not discord.is_signed(KEY.verify_key, signature, "1001", body, 1000.0)
    digit = "0" if signature[place] != "0" else "1"
    other = signature[:place] + digit + signature[place + 1 :]
    assert not discord.is_signed(KEY.verify_key, other, "1000", body, 1000.0)
