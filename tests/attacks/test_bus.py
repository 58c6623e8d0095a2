"""Bodies that are sent to the bus and never finished, and who is served meanwhile."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.community.bus.conftest import key_of, open_stage  # noqa: F401 - a fixture
from tests.community.bus.test_bad_requests import listening, wire

from accord.community.bus import BusSettings, RateLimits
from accord.community.client import Client
from accord.community.errors import Code
from accord.community.rules import Level
from accord.community.rules import wire as headers
from accord.kernel import canonical
from accord.kernel.clock import format_time

MAX_BODY = 64 * 1024
SETTINGS = BusSettings(
    limits=RateLimits(per_capability=1e6, per_caller=1e6),
    max_body=MAX_BODY,
    max_unverified=16 * MAX_BODY,
    max_stranger_body=4 * 1024,
    body_seconds=600,
)
HELLO: dict[str, Any] = {"params": {}, "input": {"say": "hello"}}


@dataclass
class Sending:
    """A request whose body stops in the middle, and what came of it."""

    stage: Any
    named: dict[str, str]
    part: bytes
    address: str
    declared: int = MAX_BODY
    asked: int = 0
    status: int = 0
    body: bytes = b""
    stuck: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        length = ("content-length", str(self.declared))
        sent = [(k.lower().encode(), v.encode()) for k, v in [*self.named.items(), length]]
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "headers": sent,
            "scheme": "http",
            "path": "/bus/v1/call",
            "raw_path": b"/bus/v1/call",
            "query_string": b"",
            "client": (self.address, 4000),
            "server": ("node", 80),
            "root_path": "",
        }
        await self.stage.app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        self.asked += 1
        if self.asked == 1:
            return {"type": "http.request", "body": self.part, "more_body": True}
        self.stuck.set()
        if self.status:  # it was answered, and leaves
            return {"type": "http.disconnect"}
        await asyncio.Event().wait()
        raise AssertionError

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.body += message.get("body", b"")

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"]) if self.body else ""


@asynccontextmanager
async def held(*sending: Sending) -> AsyncIterator[None]:
    """Let requests arrive as far as they come, and hold them there."""
    tasks = [asyncio.create_task(each.run()) for each in sending]
    try:
        for each, task in zip(sending, tasks, strict=True):
            waiting = asyncio.create_task(each.stuck.wait())
            await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def forged(stage: Any, caller: str, **changes: str) -> dict[str, str]:
    """The headers of a request that somebody else did not sign."""
    named: dict[str, str] = stage.sign(HELLO, key=stage.stranger).headers
    return named | {headers.FROM: caller, **changes}


async def is_served(stage: Any, key: Any, address: str) -> bool:
    answer = await stage.call(key=key, address=address, body=HELLO)
    return bool(answer.status_code == 200)


@pytest.fixture
async def stage(open_stage: Any) -> AsyncIterator[Any]:  # noqa: F811
    async with open_stage(SETTINGS) as made:
        yield made


LONG: dict[str, tuple[Callable[[Any], dict[str, str]], str]] = {
    "a stranger": (lambda stage: forged(stage, stage.stranger.id), "unauthorized"),
    "a revoked member": (lambda stage: forged(stage, stage.revoked.id), "revoked"),
    "somebody of elsewhere": (
        lambda stage: forged(stage, stage.member.id, **{headers.COMMUNITY: stage.member.id}),
        "not_found",
    ),
    "an old request": (
        lambda stage: forged(
            stage, stage.member.id, **{headers.TIMESTAMP: format_time(stage.clock.now() - 61)}
        ),
        "expired",
    ),
    "a request for another node": (
        lambda stage: forged(stage, stage.member.id, **{headers.TO: stage.anchor.id}),
        "invalid_signature",
    ),
    "the node itself from elsewhere": (lambda stage: forged(stage, stage.node.id), "bad_request"),
    "nobody": (lambda _: {}, "bad_request"),
    "a header that is none": (
        lambda stage: forged(stage, "ed25519:nobody"),
        "bad_request",
    ),
}


@pytest.mark.parametrize("who", LONG)
async def test_a_long_body_is_refused_by_its_headers_before_a_byte_of_it_is_read(
    stage: Any, who: str
) -> None:
    make, error = LONG[who]
    sending = Sending(stage, make(stage), b"x" * 60_000, "203.0.113.5")
    async with held(sending):
        assert sending.error == error
        # Only to let the sender hear the answer, after that was sent.
        assert sending.asked <= 2
    assert stage.served == []


async def test_strangers_leave_room_for_everybody_else(stage: Any) -> None:
    crowd = [
        Sending(stage, forged(stage, stage.stranger.id), b"x" * 4000, f"203.0.113.{n}", 4000 + 1)
        for n in range(200)
    ]
    async with held(*crowd):
        waiting = [each for each in crowd if not each.status]
        refused = [each.error for each in crowd if each.status]
        assert len(waiting) == 16
        assert set(refused) == {"capacity_exceeded"}
        assert await is_served(stage, stage.member, "198.51.100.7")
        assert await is_served(stage, stage.member, "203.0.113.5")
        assert await is_served(stage, stage.node, "127.0.0.1")
    assert await is_served(stage, stage.member, "198.51.100.7")
    assert len(stage.bus._admission._unverified) == 0


async def test_an_address_of_a_stranger_has_room_for_two_bodies(stage: Any) -> None:
    crowd = [
        Sending(stage, forged(stage, stage.stranger.id), b"x" * 4000, f"2001:db8::{n}", 4000 + 1)
        for n in range(1, 9)
    ]
    async with held(*crowd):
        assert len([each for each in crowd if not each.status]) == 2


async def test_whoever_borrows_a_members_name_takes_a_quarter_of_the_room(stage: Any) -> None:
    crowd = [
        Sending(stage, forged(stage, stage.member.id), b"x" * 60_000, f"203.0.113.{n}")
        for n in range(32)
    ]
    async with held(*crowd):
        assert len([each for each in crowd if not each.status]) == 4
        assert await is_served(stage, stage.trusted, "198.51.100.7")
        assert await is_served(stage, stage.node, "127.0.0.1")


async def test_one_address_that_borrows_every_name_takes_a_quarter_of_the_room(stage: Any) -> None:
    names = [key_of(number).id for number in range(100, 132)]
    stage.village.levels |= dict.fromkeys(names, Level.MEMBER)
    crowd = [Sending(stage, forged(stage, name), b"x" * 60_000, "203.0.113.5") for name in names]
    async with held(*crowd):
        assert len([each for each in crowd if not each.status]) == 4
        assert await is_served(stage, stage.member, "198.51.100.7")


async def test_the_owner_has_room_when_all_of_the_members_is_taken(stage: Any) -> None:
    names = [key_of(number).id for number in range(100, 120)]
    stage.village.levels |= dict.fromkeys(names, Level.MEMBER)
    crowd = [
        Sending(stage, forged(stage, name), b"x" * (MAX_BODY - 1), f"203.0.113.{number}")
        for number, name in enumerate(names)
    ]
    async with held(*crowd):
        assert len([each for each in crowd if not each.status]) == 16
        assert not await is_served(stage, stage.member, "198.51.100.7")
        assert await is_served(stage, stage.node, "127.0.0.1")
        assert await is_served(stage, stage.node, "::1")


async def test_a_proxy_on_this_machine_does_not_make_a_stranger_the_owner(stage: Any) -> None:
    named = forged(stage, stage.node.id) | {"x-forwarded-for": "203.0.113.5"}
    sending = Sending(stage, named, b"x" * 60_000, "127.0.0.1")
    async with held(sending):
        assert sending.error == "bad_request"


async def test_sixteen_sockets_of_strangers_do_not_silence_a_node(
    open_stage: Any,  # noqa: F811
) -> None:
    limits = RateLimits(per_capability=1e6, per_caller=1e6)
    async with open_stage(BusSettings(limits=limits)) as stage, listening(stage) as port:
        body = 8 << 20
        answers = []

        async def attack() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                named = forged(stage, stage.stranger.id)
                writer.write(wire(named, b"x" * (body - 1), length=body))
                answers.append(await reader.read())
            except ConnectionError:
                answers.append(b"")
            finally:
                writer.transport.abort()

        attacking = [asyncio.create_task(attack()) for _ in range(32)]
        endpoint = f"http://127.0.0.1:{port}"
        async with Client(
            endpoint, stage.member, stage.community, stage.node.id, clock=stage.clock
        ) as client:
            said = {"say": "x" * 1_000_000}
            for _ in range(5):
                assert (await client.call("experimental.echo", {}, said))["output"] == said
        async with asyncio.timeout(60):
            await asyncio.gather(*attacking)
        assert all(b"unauthorized" in answer for answer in answers if answer)
        assert len(stage.bus._admission._unverified) == 0


async def test_a_short_body_of_a_stranger_is_still_read_and_verified_before_it_is_refused(
    stage: Any,
) -> None:
    body = {"params": {}, "input": {"say": "x" * 3000}}
    raw = canonical.encode(body)
    assert len(raw) <= SETTINGS.max_stranger_body
    request = stage.sign(body, key=stage.stranger)
    answer = await stage.send(request, raw)
    # It was read and verified, and only then refused for whose it is.
    stage.refused(answer, "membership", Code.UNAUTHORIZED)
