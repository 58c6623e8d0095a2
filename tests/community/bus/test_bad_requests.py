"""Whatever comes over the socket, the node answers, changes nothing, and goes on."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from accord.community.bus import BusSettings, Call, Frame, RateLimits
from accord.community.client import Client
from accord.community.rules import wire as headers
from accord.kernel import canonical
from accord.kernel.clock import format_time
from accord.station import listener

SETTINGS = BusSettings(
    limits=RateLimits(per_capability=1e6, per_caller=1e6), max_body=65536, body_seconds=0.3
)
STRICT = {
    "type": "object",
    "required": ["params", "input"],
    "properties": {
        "params": {"type": "object", "maxProperties": 0},
        "input": {
            "type": "object",
            "required": ["text", "count", "tags"],
            "properties": {
                "text": {"type": "string", "minLength": 1},
                "count": {"type": "integer", "minimum": 0},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
GOOD: dict[str, Any] = {"params": {}, "input": {"text": "x", "count": 1, "tags": ["a"]}}
WRONG_VALUES: list[Any] = [None, True, -1, 1.5, "", "x", [], [1], {}, {"a": {}}]


@asynccontextmanager
async def listening(stage: Any) -> AsyncIterator[int]:
    server = listener.Listener(stage.app)
    with listener.bind("127.0.0.1", 0) as bound:
        serving = asyncio.create_task(server.serve([bound]))
        await server.serving.wait()
        try:
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


def wire(named: dict[str, str] | list[tuple[str, str]], content: bytes, **changes: Any) -> bytes:
    pairs = list(named.items()) if isinstance(named, dict) else named
    lines = [f"{name}: {value}" for name, value in pairs]
    lines += [f"Content-Length: {changes.get('length', len(content))}", "Connection: close"]
    start = changes.get("start", "POST /bus/v1/call HTTP/1.1")
    return "\r\n".join([start, "Host: node", *lines, "", ""]).encode("latin-1") + content


def wrong_bodies() -> Iterator[dict[str, Any]]:
    """The good body with one member of a wrong type, missing, or too many."""
    for member, value in itertools.product(("params", "input"), WRONG_VALUES):
        if not (member == "params" and value == {}):
            yield GOOD | {member: value}
    for member, value in itertools.product(("text", "count", "tags", "more"), WRONG_VALUES):
        changed = {"params": {}, "input": GOOD["input"] | {member: value}}
        if changed != GOOD and (member, value) not in (("text", "x"), ("tags", [])):
            yield changed
    yield {}
    yield GOOD | {"more": 1}


def bad_requests(stage: Any) -> Iterator[tuple[str, bytes]]:
    """One of each kind: its name, and the bytes on the wire."""
    raw = canonical.encode(GOOD)

    def signed(body: Any = GOOD, **changes: Any) -> dict[str, str]:
        named: dict[str, str] = stage.sign(body, "experimental.strict", **changes).headers
        return named

    for body in wrong_bodies():
        yield "schema", wire(signed(body), canonical.encode(body))
    for content in (b"", b"{", b"[1,2]", b'{"a":1,"a":1}', b"\xff\xfe", b"{" * 50_000, b"1e999"):
        yield "json", wire(signed(), content)
    for name in signed():
        for value in ("", "x", "ed25519:AAAA", "é", "1" * 8000, "null", "[]", "-1"):
            pairs = [(each, text) for each, text in signed().items() if each != name]
            yield "header", wire([*pairs, (name, value)], raw)
        yield "repeated", wire([*signed().items(), (name, signed()[name])], raw)
        yield "missing", wire({k: v for k, v in signed().items() if k != name} | {}, raw)
    yield "excess", wire(signed() | {f"X-{number}": "1" for number in range(200)}, raw)
    yield "excess", wire(signed() | {"X-Long": "1" * 70_000}, raw)
    for hours in (-1, 1):
        yield "clock", wire(signed(timestamp=format_time(stage.clock.now() + 3600 * hours)), raw)
    yield "size", wire(signed(), b"x" * 100, length=10**12)
    yield "size", wire(signed(), b"x" * 70_000)
    yield "size", wire(signed(), b"", length=-1)
    yield "stranger", wire(signed(key=stage.stranger), raw)
    yield "revoked", wire(signed(key=stage.revoked), raw)
    yield "node", wire(signed(to=stage.anchor.id), raw)
    yield "method", wire(signed(), raw, start="GET /bus/v1/call HTTP/1.1")
    yield "path", wire(signed(), raw, start="POST /bus/v2/call HTTP/1.1")
    yield "garbage", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n"
    yield "garbage", b"POST /bus/v1/call HTTP/9.9\r\nConnection: close\r\n\r\n"
    yield "half", wire(signed(), raw[:10], length=len(raw))
    yield "slow", wire(signed(), raw[:10], length=len(raw))


EXPECTED: dict[str, set[str]] = {
    "schema": {"bad_request"},
    "json": {"bad_request"},
    "header": {"bad_request", "invalid_signature"},
    "repeated": {"bad_request"},
    "clock": {"expired"},
    "size": {"bad_request"},
    "stranger": {"unauthorized"},
    "revoked": {"revoked"},
    "node": {"invalid_signature"},
    "slow": {"timeout"},
}


async def converse(port: int, kind: str, raw: bytes) -> bytes:
    """Send bytes and read until the node closes; a half-closed one leaves in the middle."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        if kind == "half":
            writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def open_sockets() -> int:
    links = (link.readlink().name for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return sum(name.startswith("socket:") for name in links)


async def settled(count: Callable[[], int], expected: int) -> int:
    """The count, once the loop has let go of what was closed."""
    for _ in range(1000):
        if count() <= expected:
            break
        await asyncio.sleep(0.001)
    return count()


@pytest.mark.parametrize("total", [3_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_thousands_of_bad_requests_change_nothing_and_a_good_one_is_served(
    open_stage: Any, total: int
) -> None:
    async with open_stage(SETTINGS) as stage, listening(stage) as port:
        stage.offer(stage.capability("strict", request_schema=STRICT))
        tasks, sockets = len(asyncio.all_tasks()), open_sockets()
        random = Random(4)
        made: dict[str, int] = {}
        strange: list[tuple[str, bytes]] = []

        def endless() -> Iterator[tuple[str, bytes]]:
            while True:
                batch = list(bad_requests(stage))
                random.shuffle(batch)
                yield from batch

        queue = itertools.islice(endless(), total)

        async def worker() -> None:
            for kind, raw in queue:
                answer = await converse(port, kind, raw)
                made[kind] = made.get(kind, 0) + 1
                if kind in EXPECTED and answer:
                    head, _, body = answer.partition(b"\r\n\r\n")
                    try:
                        is_right = json.loads(body)["error"] in EXPECTED[kind]
                    except ValueError:
                        # h11 refuses what is no HTTP at all before anything of ours sees it.
                        is_right = head.startswith(b"HTTP/1.1 400")
                    if not is_right:
                        strange.append((kind, answer))

        await asyncio.gather(*(worker() for _ in range(64)))
        assert sum(made.values()) == total
        assert set(EXPECTED) <= set(made)
        assert strange == []
        assert stage.served == []
        assert stage.bus.registry.in_hand == 0
        await stage.ledger.close()
        assert await settled(lambda: len(asyncio.all_tasks()), tasks) <= tasks
        assert await settled(open_sockets, sockets) <= sockets
        assert len(stage.bus._rates) < 100
        endpoint = f"http://127.0.0.1:{port}"
        async with Client(
            endpoint, stage.member, stage.community, stage.node.id, clock=stage.clock
        ) as client:
            answer = await client.call("experimental.strict", {}, GOOD["input"])
        assert answer["output"] == GOOD["input"]


async def test_an_oversized_body_is_answered_although_it_is_still_being_sent(
    open_stage: Any,
) -> None:
    async with open_stage(SETTINGS) as stage, listening(stage) as port:
        body = {"params": {}, "input": {"text": "x" * 2_000_000}}
        named = stage.sign(body).headers
        answer = await converse(port, "size", wire(named, canonical.encode(body)))
        assert b'"error":"bad_request"' in answer
        assert headers.SIGNATURE.lower().encode() in answer


async def test_a_client_that_closes_its_socket_ends_the_handler(open_stage: Any) -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def endless(_call: Call) -> AsyncIterator[Frame]:
        try:
            yield Frame("token", {})
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with open_stage(SETTINGS) as stage, listening(stage) as port:
        stage.offer_tokens(endless)
        raw = canonical.encode(GOOD)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire(stage.sign(GOOD, "experimental.tokens").headers, raw))
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        await started.wait()
        writer.close()
        await writer.wait_closed()
        await ended.wait()
        assert await settled(lambda: stage.bus.registry.in_hand, 0) == 0


async def test_a_client_that_stops_reading_ends_the_handler(open_stage: Any) -> None:
    ended = asyncio.Event()

    async def endless(_call: Call) -> AsyncIterator[Frame]:
        try:
            while True:
                yield Frame("token", {"text": "x" * 100_000})
        finally:
            ended.set()

    settings = BusSettings(limits=SETTINGS.limits, stall_seconds=0.05)
    async with open_stage(settings) as stage, listening(stage) as port:
        stage.offer_tokens(endless)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        raw = canonical.encode(GOOD)
        writer.write(wire(stage.sign(GOOD, "experimental.tokens").headers, raw))
        await ended.wait()
        assert await settled(lambda: stage.bus.registry.in_hand, 0) == 0
        writer.transport.abort()
        del reader


async def test_bodies_that_arrive_from_one_address_take_only_a_quarter_of_the_room(
    open_stage: Any,
) -> None:
    settings = BusSettings(limits=SETTINGS.limits, max_unverified=400_000, body_seconds=0.3)
    async with open_stage(settings) as stage, listening(stage) as port:
        named = stage.sign(GOOD).headers
        holding = [
            asyncio.create_task(converse(port, "slow", wire(named, b"x" * 40_000, length=60_000)))
            for _ in range(4)
        ]
        answers = await asyncio.gather(*holding)
        refused = [b'"error":"capacity_exceeded"' in answer for answer in answers]
        assert sorted(refused) == [False, False, True, True]
        answer = await converse(
            port, "good", wire(stage.sign(GOOD).headers, canonical.encode(GOOD))
        )
        assert b"200 OK" in answer
