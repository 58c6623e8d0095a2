"""The fake's interactions: signed requests, first answers, follow-ups, and tokens that end."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import orjson
import pytest
from tests.fakes.discord.channels import Channel
from tests.fakes.discord.guilds import Guild
from tests.fakes.discord.interactions import CallbackType
from tests.fakes.discord.people import User
from tests.fakes.discord.rest.api import Answer, Request
from tests.fakes.discord.server import FakeDiscord, listening
from tests.fakes.discord.websocket import GatewaySocket
from tests.testing.discord_client import USER_AGENT, calling, ready

from accord.kernel.signing import verify_bytes
from accord.testing import HarnessError, VirtualClock


class Endpoint:
    """A bot's endpoint that verifies, keeps what it got, and answers what it is told to."""

    def __init__(self, public_key: str) -> None:
        self.public = bytes.fromhex(public_key)
        self.got: list[dict[str, Any]] = []
        self.answer = Answer(200, b'{"type": 5}', {"Content-Type": "application/json"})
        self.silent = False
        self.is_careless = False
        self.url = ""

    async def take(self, request: Request) -> Answer | None:
        signature = bytes.fromhex(request.headers["x-signature-ed25519"])
        signed = request.headers["x-signature-timestamp"].encode() + request.body
        if not self.is_careless and not verify_bytes(self.public, signed, signature):
            return Answer(401)
        self.got.append(orjson.loads(request.body))
        if self.got[-1]["type"] == 1:
            return Answer(200, b'{"type": 1}')
        return None if self.silent else self.answer

    async def upgrade(self, socket: GatewaySocket, head: bytes) -> None:
        socket.refuse(head, 404)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def fake(clock: VirtualClock) -> AsyncIterator[FakeDiscord]:
    made = FakeDiscord(token="t0ken", clock=clock)
    async with made.serving():
        yield made


@pytest.fixture
async def api(fake: FakeDiscord) -> AsyncIterator[httpx.AsyncClient]:
    async with calling(fake) as client:
        yield client


@pytest.fixture
async def endpoint(fake: FakeDiscord) -> AsyncIterator[Endpoint]:
    made = Endpoint(fake.public_key)
    async with listening(made.take, made.upgrade) as port:
        made.url = f"http://127.0.0.1:{port}/interactions"
        yield made


@pytest.fixture
def ada(fake: FakeDiscord) -> User:
    return fake.user("ada")


@pytest.fixture
def harbour(fake: FakeDiscord, ada: User) -> Guild:
    guild = fake.guild("Harbour")
    guild.join(ada)
    return guild


@pytest.fixture
def general(harbour: Guild) -> Channel:
    return harbour.channel("general")


def _hook(fake: FakeDiscord, got: dict[str, Any]) -> str:
    return f"/webhooks/{fake.application.id}/{got['token']}"


async def test_an_endpoint_is_pinged_and_another_key_is_not_the_services(
    fake: FakeDiscord, endpoint: Endpoint
) -> None:
    assert (await fake.ping(endpoint.url)).kind is CallbackType.PONG
    endpoint.public = bytes.fromhex(FakeDiscord(seed=1).public_key)
    assert (await fake.ping(endpoint.url)).status == 401


async def test_an_endpoint_is_tried_with_wrong_signatures_too(
    fake: FakeDiscord, endpoint: Endpoint
) -> None:
    await fake.try_endpoint(endpoint.url)
    endpoint.is_careless = True
    with pytest.raises(HarnessError, match="wrong signature"):
        await fake.try_endpoint(endpoint.url)


async def test_a_test_can_deliver_by_itself(
    fake: FakeDiscord, endpoint: Endpoint, general: Channel, ada: User
) -> None:
    body = orjson.dumps(fake.command(ada, general, "ask").payload)
    async with httpx.AsyncClient(trust_env=False) as client:
        good = await client.post(endpoint.url, content=body, headers=fake.signed(body))
        bad = await client.post(endpoint.url, content=body, headers=fake.signed(body + b" "))
    assert (good.status_code, bad.status_code) == (200, 401)


async def test_a_command_is_deferred_and_then_answered(
    fake: FakeDiscord,
    api: httpx.AsyncClient,
    endpoint: Endpoint,
    harbour: Guild,
    general: Channel,
    ada: User,
) -> None:
    answered = await fake.interact(
        ada, general, "ask", {"text": "why", "times": 2, "loud": True}, endpoint=endpoint.url
    )
    assert answered.kind is CallbackType.DEFERRED_CHANNEL_MESSAGE_WITH_SOURCE
    (got,) = endpoint.got
    assert got["data"]["name"] == "ask"
    assert [(each["name"], each["type"]) for each in got["data"]["options"]] == [
        ("text", 3),
        ("times", 4),
        ("loud", 5),
    ]
    assert got["member"]["user"]["id"] == ada.id
    assert (got["guild_id"], got["channel_id"]) == (harbour.id, general.id)
    assert fake.said(general) == []
    form = {"content": "because"}
    made = await api.patch(f"{_hook(fake, got)}/messages/@original", json=form)
    assert made.status_code == 200
    assert made.json()["flags"] == 0
    assert fake.said(general) == ["because"]
    assert answered.interaction is not None
    assert answered.interaction.texts == ["because"]


async def test_the_first_follow_up_of_a_deferred_answer_is_that_answer(
    fake: FakeDiscord, api: httpx.AsyncClient, endpoint: Endpoint, general: Channel, ada: User
) -> None:
    await fake.interact(ada, general, "ask", endpoint=endpoint.url)
    hook = _hook(fake, endpoint.got[0])
    first = (await api.post(hook, json={"content": "one"})).json()
    second = (await api.post(hook, json={"content": "two"})).json()
    original = (await api.get(f"{hook}/messages/@original")).json()
    assert first["id"] == original["id"] != second["id"]
    assert first["webhook_id"] == fake.application.id
    assert fake.said(general) == ["one", "two"]
    await api.patch(f"{hook}/messages/{second['id']}", json={"content": "three"})
    await api.delete(f"{hook}/messages/@original")
    assert fake.said(general) == ["three"]
    assert (await api.get(f"{hook}/messages/@original")).json()["code"] == 10008


async def test_a_follow_up_needs_no_token_of_the_bot_and_keeps_the_rules_of_messages(
    fake: FakeDiscord, endpoint: Endpoint, general: Channel, ada: User
) -> None:
    await fake.interact(ada, general, "ask", endpoint=endpoint.url)
    hook = fake.api_url + _hook(fake, endpoint.got[0])
    headers = {"User-Agent": USER_AGENT}
    async with httpx.AsyncClient(trust_env=False, headers=headers) as client:
        for form, code in (({}, 50006), ({"content": "x" * 2001}, 50035)):
            answer = await client.post(hook, json=form)
            assert (answer.status_code, answer.json()["code"]) == (400, code)
        assert fake.said(general) == []
        assert (await client.post(hook, json={"content": "x"})).status_code == 200
    assert endpoint.got[0]["token"] not in repr(fake.api.asked)


async def test_a_token_ends_after_fifteen_minutes(
    fake: FakeDiscord,
    api: httpx.AsyncClient,
    endpoint: Endpoint,
    general: Channel,
    ada: User,
    clock: VirtualClock,
) -> None:
    await fake.interact(ada, general, "ask", endpoint=endpoint.url)
    hook = _hook(fake, endpoint.got[0])
    clock.advance(899)
    assert (await api.post(hook, json={"content": "in time"})).status_code == 200
    clock.advance(1)
    late = await api.post(hook, json={"content": "late"})
    assert (late.status_code, late.json()["code"]) == (401, 50027)
    foreign = await api.post("/webhooks/1/x", json={"content": "x"})
    assert (foreign.status_code, foreign.json()["code"]) == (404, 10015)
    assert fake.said(general) == ["in time"]


async def test_an_answer_at_once_is_a_message(
    fake: FakeDiscord, endpoint: Endpoint, general: Channel, ada: User
) -> None:
    endpoint.answer = Answer(200, b'{"type": 4, "data": {"content": "at once"}}')
    await fake.interact(ada, general, "ask", endpoint=endpoint.url)
    assert fake.said(general) == ["at once"]


@pytest.mark.parametrize(
    "body", [b"", b"x", b"[]", b'{"type": 1}', b'{"type": 3}', b'{"type": true}', b'{"type": 4}']
)
async def test_an_answer_of_the_wrong_form_is_a_finding(
    fake: FakeDiscord, endpoint: Endpoint, general: Channel, ada: User, body: bytes
) -> None:
    endpoint.answer = Answer(200, body)
    with pytest.raises(HarnessError):
        await fake.interact(ada, general, "ask", endpoint=endpoint.url)


async def test_no_answer_is_a_finding_and_the_token_is_worth_nothing(
    fake: FakeDiscord, api: httpx.AsyncClient, endpoint: Endpoint, general: Channel, ada: User
) -> None:
    endpoint.silent = True
    with pytest.raises(HarnessError, match="no answer"):
        await fake.interact(ada, general, "ask", endpoint=endpoint.url)
    answer = await api.post(_hook(fake, endpoint.got[0]), json={"content": "x"})
    assert (answer.status_code, answer.json()["code"]) == (404, 10015)


async def test_a_refusal_of_the_endpoint_is_told_to_the_test(
    fake: FakeDiscord, endpoint: Endpoint, general: Channel, ada: User
) -> None:
    endpoint.answer = Answer(503)
    answered = await fake.interact(ada, general, "ask", endpoint=endpoint.url)
    assert (answered.status, answered.kind) == (503, None)


async def test_a_command_over_the_gateway_is_answered_by_callback_once(
    fake: FakeDiscord, api: httpx.AsyncClient, general: Channel, ada: User, clock: VirtualClock
) -> None:
    async with ready(fake) as (line, _):
        asked = fake.interact_by_gateway(ada, general, "ask")
        got = (await line.hear_event("INTERACTION_CREATE"))["d"]
    path = f"/interactions/{got['id']}/{got['token']}/callback"
    wrong = await api.post(path, json={"type": 2})
    assert (wrong.status_code, wrong.json()["code"]) == (400, 50035)
    form = {"type": 4, "data": {"content": "here"}}
    assert (await api.post(path, json=form)).status_code == 204
    assert (await api.post(path, json=form)).json()["code"] == 40060
    assert asked.texts == fake.said(general) == ["here"]
    told = fake.interact_by_gateway(ada, general, "ask")
    path = f"/interactions/{told.id}/{told.token}/callback"
    full = await api.post(path, params={"with_response": "true"}, json={"type": 5})
    assert full.json()["interaction"]["response_message_loading"] is True
    assert full.json()["resource"]["message"]["content"] == ""
    late = fake.interact_by_gateway(ada, general, "ask")
    clock.advance(3.5)
    path = f"/interactions/{late.id}/{late.token}/callback"
    assert (await api.post(path, json=form)).json()["code"] == 10062


async def test_an_endpoint_may_answer_by_callback_and_then_202(
    fake: FakeDiscord, api: httpx.AsyncClient, endpoint: Endpoint, general: Channel, ada: User
) -> None:
    async def take(request: Request) -> Answer | None:
        got = orjson.loads(request.body)
        form = {"type": 4, "data": {"content": "by callback"}}
        await api.post(f"/interactions/{got['id']}/{got['token']}/callback", json=form)
        return Answer(202)

    async with listening(take, endpoint.upgrade) as port:
        answered = await fake.interact(ada, general, "ask", endpoint=f"http://127.0.0.1:{port}/")
    assert answered.status == 202
    assert fake.said(general) == ["by callback"]


async def test_a_command_in_direct_messages_has_a_user_and_no_member(
    fake: FakeDiscord, endpoint: Endpoint, ada: User
) -> None:
    await fake.interact(ada, fake.dm(ada), "ask", endpoint=endpoint.url)
    (got,) = endpoint.got
    assert got["user"]["id"] == ada.id
    assert "member" not in got
    assert "guild_id" not in got


async def test_commands_are_replaced_as_a_whole_and_keep_their_ids(
    fake: FakeDiscord, api: httpx.AsyncClient, endpoint: Endpoint, general: Channel, ada: User
) -> None:
    path = f"/applications/{fake.application.id}/commands"
    ask = {"name": "ask", "description": "Ask something"}
    first = (await api.put(path, json=[ask])).json()
    second = (await api.put(path, json=[ask, {**ask, "name": "stop"}])).json()
    assert [each["name"] for each in second] == ["ask", "stop"]
    assert second[0]["id"] == first[0]["id"]
    assert (await api.get(path)).json() == second
    await fake.interact(ada, general, "stop", endpoint=endpoint.url)
    assert endpoint.got[0]["data"]["id"] == second[1]["id"]
    assert (await api.put("/applications/1/commands", json=[ask])).json()["code"] == 50001


@pytest.mark.parametrize(
    "commands",
    [
        {},
        [5],
        [{"name": "Ask", "description": "x"}],
        [{"name": "a b", "description": "x"}],
        [{"name": "", "description": "x"}],
        [{"name": "ask"}],
        [{"name": "ask", "description": "x"}, {"name": "ask", "description": "y"}],
        [{"name": f"c{number}", "description": "x"} for number in range(101)],
    ],
)
async def test_wrong_commands_are_refused_and_change_nothing(
    fake: FakeDiscord, api: httpx.AsyncClient, commands: Any
) -> None:
    path = f"/applications/{fake.application.id}/commands"
    await api.put(path, json=[{"name": "kept", "description": "x"}])
    assert (await api.put(path, json=commands)).status_code == 400
    assert [each["name"] for each in (await api.get(path)).json()] == ["kept"]


async def test_whoever_waits_hears_of_an_interaction(
    fake: FakeDiscord, endpoint: Endpoint, general: Channel, ada: User
) -> None:
    endpoint.answer = Answer(200, b'{"type": 4, "data": {"content": "x"}}')
    waiting = asyncio.ensure_future(fake.until(lambda: fake.said(general) == ["x"]))
    await fake.interact(ada, general, "ask", endpoint=endpoint.url)
    await waiting
