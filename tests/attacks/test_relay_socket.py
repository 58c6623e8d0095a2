"""A gateway that goes beyond its rights on its socket, or that sends what wears a connector out."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from tests.fakes.platform import MemoryChat, MemoryPlatform
from tests.fakes.sockets import MemorySocket

from accord.kernel import tokens
from accord.kernel.clock import SystemClock
from accord.relay.connector import (
    RELAY,
    Control,
    ControlRoutes,
    ControlSettings,
    Delivery,
    DeliveryLimits,
    Directory,
    FoundCapability,
    Keyring,
    LocalBus,
    tables,
)
from accord.relay.errors import Code, RelayError
from accord.relay.rules import LineReader, PrincipalPolicy
from accord.storage import Store, open_store

FAR = 4_102_444_800_000
UNLINKED = "egress declined: this instance may not do this there"


class Gateway:
    """An agent's end of the socket, which says whatever a test wants."""

    def __init__(self, delivery: Delivery, bearer: str) -> None:
        self.socket = MemorySocket()
        self.serving = asyncio.create_task(delivery.endpoint.serve(self.socket, bearer))
        self._text = ""
        self._lines: list[str] = []
        self._asked = 0

    def say(self, frame: dict[str, Any]) -> None:
        self.socket.put(json.dumps(frame) + "\n")

    async def hear(self, kind: str) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while True:
                while not self._lines:
                    message = await self.socket.get()
                    assert message is not None, f"closed: {self.socket.closed}"
                    *lines, self._text = (self._text + message).split("\n")
                    self._lines += lines
                frame: dict[str, Any] = json.loads(self._lines.pop(0))
                if frame["type"] == kind:
                    return frame

    async def hello(self, platform: str = "memory", bot_id: str = "bot") -> dict[str, Any]:
        self.say({"type": "hello", "platform": platform, "botId": bot_id})
        return await self.hear("descriptor")

    async def event(self) -> str:
        frame = await self.hear("inbound")
        self.say({"type": "inbound_ack", "bufferId": frame["bufferId"]})
        return str(frame["event"]["text"])

    async def ask(self, op: str, chat_id: str, **members: Any) -> dict[str, Any]:
        return await self.request({"op": op, "chat_id": chat_id, **members})

    async def request(self, action: dict[str, Any]) -> dict[str, Any]:
        request_id = f"r{self._asked}"
        self._asked += 1
        self.say({"type": "outbound", "requestId": request_id, "action": action})
        answer = await self.hear("outbound_result")
        assert answer["requestId"] == request_id
        result: dict[str, Any] = answer["result"]
        return result

    async def close(self) -> None:
        self.socket.cut()
        await self.serving


@dataclass
class Station:
    """A whole connector with a chat service, and a second process's control half beside it."""

    store: Store
    delivery: Delivery
    control: Control
    elsewhere: Control
    chat: MemoryChat
    gateways: list[Gateway]

    async def agent(self, instance: str) -> Gateway:
        """Enrol an agent and connect its gateway."""
        minted = await self.control.mint_token("t1", instance, name=instance.title())
        credentials = await self.control.enrol(minted.token, f"gw-{instance}")
        bearer = tokens.make(f"gw-{instance}", credentials.secret, SystemClock().now())
        gateway = Gateway(self.delivery, bearer)
        self.gateways.append(gateway)
        await gateway.hello()
        return gateway

    async def received(self, event_id: str) -> None:
        """Wait until the service was told that an event was received."""
        async with asyncio.timeout(20):
            while event_id not in self.chat.received:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


@pytest.fixture
async def station(tmp_path: Path) -> AsyncIterator[Station]:
    clock, chat = SystemClock(), MemoryChat(limit=200)
    chat.channel("c1", scope_id="g1")
    chat.channel("t1", "thread", scope_id="g1", parent_id="c1")
    chat.channel("d1", "dm")
    platform = MemoryPlatform(chat)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(str(tmp_path / "stores"), RELAY))
        keyring = Keyring.load(tmp_path / "relay.key")
        settings = ControlSettings()
        directory, other = (
            Directory(store, keyring, clock, settings, platforms={"memory": platform})
            for _ in range(2)
        )
        limits = DeliveryLimits(renew_seconds=0.2, sweep_seconds=0.1)
        delivery = Delivery(
            store, directory, [platform], LocalBus(), clock, name="p1", limits=limits
        )
        await stack.enter_async_context(delivery.running())
        stack.push_async_callback(directory.close)
        stack.push_async_callback(other.close)
        control = Control(directory, clock)
        await control.route("t1", "memory", "g1")
        opened = Station(store, delivery, control, Control(other, clock), chat, [])
        yield opened
        for gateway in opened.gateways:
            await gateway.close()


async def _unlink_by_dm(station: Station) -> None:
    station.chat.write("ann", "d1", "/unlink", event_id="unlink")
    await station.received("unlink")


async def _unlink_by_operator(station: Station) -> None:
    await station.control.unbind("memory", "ann", "alpha")


async def _unlink_elsewhere(station: Station) -> None:
    """Another process on the same database, of which this one has not heard."""
    await station.elsewhere.unbind("memory", "ann")


UNLINKING = [_unlink_by_dm, _unlink_by_operator, _unlink_elsewhere]


@pytest.mark.parametrize("unlink", UNLINKING, ids=lambda each: each.__name__.strip("_"))
@pytest.mark.parametrize("chat_id", ["d1", "c1", "t1"])
async def test_an_agent_cannot_write_to_somebody_who_has_unlinked(
    station: Station, unlink: Callable[[Station], Awaitable[None]], chat_id: str
) -> None:
    alpha = await station.agent("alpha")
    await station.control.bind("alpha", "memory", "ann")
    station.chat.write("ann", chat_id, "hello")
    await alpha.event()
    first = await alpha.ask("send", chat_id, content="hello ann")
    assert first["success"]
    before = len(station.chat.said)
    await unlink(station)
    answers = len(station.chat.said)
    assert answers <= before + 1  # the bot's own answer to /unlink
    tries = [
        await alpha.ask("send", chat_id, content="come back"),
        await alpha.ask("edit", chat_id, message_id=first["message_id"], content="come back"),
        await alpha.ask("typing", chat_id),
        await alpha.ask("get_chat_info", chat_id),
    ]
    assert [each["error"] for each in tries] == [UNLINKED] * len(tries)
    assert len(station.chat.said) == answers
    assert station.chat.typed == []
    await station.control.bind("alpha", "memory", "ann")
    assert (await alpha.ask("send", chat_id, content="welcome back"))["success"]


async def test_unlinking_from_one_agent_leaves_the_others_theirs(station: Station) -> None:
    alpha, beta = await station.agent("alpha"), await station.agent("beta")
    for instance in ("alpha", "beta"):
        await station.control.bind(instance, "memory", "ann")
    station.chat.write("ann", "c1", "hello both")
    for gateway in (alpha, beta):
        await gateway.event()
    await station.control.unbind("memory", "ann", "alpha")
    assert (await alpha.ask("send", "c1", content="x"))["error"] == UNLINKED
    assert (await beta.ask("send", "c1", content="x"))["success"]


async def test_who_stays_linked_keeps_a_chat_that_another_one_left(station: Station) -> None:
    alpha = await station.agent("alpha")
    for user in ("ann", "bob"):
        await station.control.bind("alpha", "memory", user)
        station.chat.write(user, "t1", f"{user} here")
        await alpha.event()
    await station.control.unbind("memory", "bob")
    assert (await alpha.ask("send", "t1", content="hello ann"))["success"]
    await station.control.unbind("memory", "ann")
    assert (await alpha.ask("send", "t1", content="hello?"))["error"] == UNLINKED


async def _held(station: Station) -> Gateway:
    """Alpha holds c1 by ann's word and listens to everybody who is linked to some agent."""
    alpha = await station.agent("alpha")
    await station.agent("beta")
    await station.control.bind("alpha", "memory", "ann")
    await station.control.bind("beta", "memory", "bob")
    caller = await station.control.principal("alpha")
    await station.control.grant("alpha", "memory", "g1", "c1", "ann")
    await station.control.set_principal(caller, "memory", PrincipalPolicy.ANY)
    return alpha


async def _release(station: Station) -> None:
    caller = await station.control.principal("alpha")
    await station.control.release_scope(caller, "memory", "g1", "c1")


@pytest.mark.parametrize("end", [_release, _unlink_by_operator, _unlink_by_dm])
@pytest.mark.parametrize("chat_id", ["c1", "t1"])
async def test_a_grant_that_was_taken_back_ends_the_right_to_write_there(
    station: Station, end: Callable[[Station], Awaitable[None]], chat_id: str
) -> None:
    alpha = await _held(station)
    station.chat.write("bob", chat_id, "hello alpha", addressed=True)
    await alpha.event()
    assert (await alpha.ask("send", chat_id, content="hello bob"))["success"]
    await end(station)
    assert (await alpha.ask("send", chat_id, content="still here"))["error"] == UNLINKED


async def test_a_grant_is_enough_to_answer_whoever_it_lets_in(station: Station) -> None:
    alpha = await _held(station)
    await station.control.bind("alpha", "memory", "carl")
    await station.control.unbind("memory", "carl")
    station.chat.write("bob", "t1", "hello alpha", addressed=True)
    await alpha.event()
    assert (await alpha.ask("send", "t1", content="hello bob"))["success"]


@pytest.mark.parametrize("unlink", UNLINKING, ids=lambda each: each.__name__.strip("_"))
async def test_a_capability_ends_with_the_link_of_whose_event_carried_it(
    station: Station, unlink: Callable[[Station], Awaitable[None]]
) -> None:
    alpha = await station.agent("alpha")
    await station.control.bind("alpha", "memory", "ann")
    token = FoundCapability("memory.token", SecretStr("s3cret"), FAR)
    station.chat.write("ann", "c1", "press", found=[token])
    await alpha.event()
    action = {
        "op": "follow_up",
        "session_key": "agent:main:relay:group:c1:ann",
        "kind": "memory.token",
        "content": "done",
    }
    assert (await alpha.request(action))["success"]
    await unlink(station)
    refused = await alpha.request(action)
    assert refused["error"].startswith("egress declined")
    assert len(station.chat.followed) == 1


class _Hang(asyncio.Event):
    """Tells when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.reached.set()
        return await super().wait()


async def test_a_long_message_stops_where_the_link_ends(station: Station) -> None:
    alpha = await station.agent("alpha")
    await station.control.bind("alpha", "memory", "ann")
    station.chat.write("ann", "c1", "tell me everything")
    await alpha.event()
    station.chat.hang = hang = _Hang()
    action = {"op": "send", "chat_id": "c1", "content": "word " * 200}
    alpha.say({"type": "outbound", "requestId": "long", "action": action})
    await asyncio.wait_for(hang.reached.wait(), 20)
    await station.control.unbind("memory", "ann")
    hang.set()
    result = (await alpha.hear("outbound_result"))["result"]
    assert (result["success"], result["error"]) == (False, UNLINKED)
    assert len(station.chat.said) == 1


async def test_chats_of_before_the_upgrade_count_while_anybody_is_linked(station: Station) -> None:
    alpha = await station.agent("alpha")
    await station.control.bind("alpha", "memory", "ann")
    station.chat.write("ann", "c1", "hello")
    await alpha.event()
    await station.store.write(lambda c: c.execute(tables.chat_authors.delete()))
    assert (await alpha.ask("send", "c1", content="hello ann"))["success"]
    await station.control.unbind("memory", "ann")
    assert (await alpha.ask("send", "c1", content="hello ann"))["error"] == UNLINKED


FLOODS = {
    "megabytes of newlines": ["\n" * 1_000_000] * 8,
    "megabytes of blank lines": [" \r\n" * 300_000] * 8,
    "newlines in small helpings": ["\n" * 100] * 100,
    "one newline at a time": ["\n"] * 5000,
    "empty messages": [""] * 5000,
    "a line letter by letter": ["x"] * 5000,
    "large messages of nothing": [" " * 1_000_000] * 400,
    "frames of an unknown type": ['{"type":"noise"}\n' * 100] * 50,
}


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
async def test_a_gateway_that_floods_is_sent_away(station: Station, flood: list[str]) -> None:
    alpha = await station.agent("alpha")
    for message in flood:
        alpha.socket.put(message)
    await asyncio.wait_for(alpha.serving, 60)
    assert alpha.socket.closed == (1008, "too many frames")


async def test_a_message_that_is_only_newlines_is_not_taken_apart(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    feed = LineReader.feed

    def counted(reader: LineReader, chunk: bytes | str) -> list[bytes]:
        taken.append(len(chunk))
        return feed(reader, chunk)

    monkeypatch.setattr(LineReader, "feed", counted)
    alpha = await station.agent("alpha")
    alpha.socket.put("\n" * 1_000_000)
    await asyncio.wait_for(alpha.serving, 60)
    assert max(taken) < 1000


async def test_acknowledging_a_whole_window_with_blank_lines_between_is_no_flood(
    station: Station,
) -> None:
    alpha = await station.agent("alpha")
    await station.control.bind("alpha", "memory", "ann")
    for number in range(200):
        station.chat.write("ann", "c1", f"event {number}")
    frames = [await alpha.hear("inbound") for _ in range(200)]
    acks = [{"type": "inbound_ack", "bufferId": each["bufferId"]} for each in frames]
    alpha.socket.put("\n".join(json.dumps(each) + "\n" for each in acks))
    async with asyncio.timeout(20):
        while not await station.delivery.is_empty("alpha"):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert (await alpha.ask("typing", "c1"))["success"]


async def test_a_hello_for_an_unknown_platform_leaves_the_others_on_the_socket_alone(
    station: Station,
) -> None:
    alpha = await station.agent("alpha")
    await station.control.bind("alpha", "memory", "ann")
    alpha.say({"type": "hello", "platform": "telegraph", "botId": "t1"})
    assert await alpha.hear("hello_refused") == {
        "type": "hello_refused",
        "platform": "telegraph",
        "botId": "t1",
        "error": "no such platform",
    }
    station.chat.write("ann", "c1", "hello")
    assert await alpha.event() == "hello"
    assert (await alpha.ask("send", "c1", content="hello ann"))["success"]


@pytest.mark.parametrize("first", ["telegraph", "memory"])
async def test_of_two_hellos_at_once_the_known_one_is_served(station: Station, first: str) -> None:
    minted = await station.control.mint_token("t1", "alpha")
    credentials = await station.control.enrol(minted.token, "gw-alpha")
    await station.control.bind("alpha", "memory", "ann")
    bearer = tokens.make("gw-alpha", credentials.secret, SystemClock().now())
    station.chat.write("ann", "c1", "waiting", event_id="w")
    await station.received("w")
    gateway = Gateway(station.delivery, bearer)
    station.gateways.append(gateway)
    for platform in sorted(["telegraph", "memory"], key=lambda each: each != first):
        gateway.say({"type": "hello", "platform": platform, "botId": ""})
    assert (await gateway.hear("descriptor"))["descriptor"]["platform"] == "memory"
    assert await gateway.event() == "waiting"
    assert await station.delivery.dead_letters("alpha") == []


async def test_one_ipv6_network_has_the_tries_of_one_address(station: Station) -> None:
    routes = ControlRoutes(station.control, SystemClock())
    app = Starlette(routes=routes.routes)
    statuses = []
    for number in range(60):
        transport = httpx.ASGITransport(app, client=(f"2001:db8:1:2:{number:x}::1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://relay.test") as client:
            body = {"enrollmentToken": "enrol_guess", "gatewayId": "gw"}
            statuses.append((await client.post("/relay/enroll", json=body)).status_code)
    assert statuses[0] == 403
    assert statuses[-1] == 429


async def test_no_agent_is_called_like_another_to_the_eye(station: Station) -> None:
    await station.agent("alpha")
    with pytest.raises(RelayError) as caught:
        await station.control.mint_token("t2", "other", name="\u0430lpha")
    assert caught.value.code is Code.CONFLICT
    await station.control.mint_token("t1", "alpha", name="Alpha")
    await station.control.revoke("alpha")
    await station.control.mint_token("t2", "other", name="\u0430lpha")
