"""The wake poke: one bare GET per cooldown, to where it may go, whatever comes of it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from accord.relay.connector import ControlSettings, Waker, tables
from accord.web.outgoing import Address, OutgoingPolicy

BOTH = pytest.mark.parametrize("engine", ["sqlite", "postgres"])
# Something that waits for a1.
ROW = {
    "instance": "a1",
    "seq": 1,
    "tenant": "t1",
    "platform": "chat",
    "scope_id": "",
    "session_key": "k",
    "event": "e",
    "kind": "inbound",
    "body": "{}",
    "state": "pending",
    "deliveries": 0,
    "epoch": 0,
    "created_at": 0,
}


class Machine:
    """A machine that can be poked, and a waker whose waiting ends when the test says so."""

    def __init__(self) -> None:
        self.requests: list[bytes] = []
        self.slept: list[float] = []
        self.answer = b"HTTP/1.1 204 No Content\r\n\r\n"
        self.hangs = False
        self.naps: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            if self.hangs:
                await reader.read()
            writer.write(self.answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        over = asyncio.Event()
        await self.naps.put(over)
        await over.wait()


@pytest.fixture
async def machine() -> AsyncIterator[tuple[Machine, int]]:
    machine = Machine()
    server = await asyncio.start_server(machine.serve, "127.0.0.1", 0)
    async with server:
        yield machine, server.sockets[0].getsockname()[1]


async def resolve(_host: str, _port: int) -> Sequence[Address]:
    return [ip_address("127.0.0.1")]


async def poking(half: Any, machine: Machine, port: int, *, inner: bool = True) -> Waker:
    """Enrol a1 with a wake URL at the machine and a row that waits, and make a waker for it."""
    outgoing = OutgoingPolicy(
        http=True,
        ports=frozenset({port}),
        networks=(ip_network("127.0.0.0/8"),) if inner else (),
    )
    half.directory.settings = settings = replace(
        half.directory.settings, outgoing=outgoing, wake_timeout_seconds=0.5
    )
    half.control._settings = settings
    await half.enrol("a1", wake_url=f"http://wake.example:{port}/up?k=s3cr3t")
    await half.store.write(lambda c: c.execute(tables.buffer.insert(), ROW))
    return Waker(half.store, settings, half.clock, resolver=resolve, sleep=machine.sleep)


@BOTH
async def test_one_bare_get_per_cooldown_while_something_waits(
    half: Any, machine: tuple[Machine, int]
) -> None:
    box, port = machine
    waker = await poking(half, box, port)
    for _ in range(10):
        waker.wake("a1")
    nap = await box.naps.get()
    [request] = box.requests
    assert request.startswith(b"GET /up?k=s3cr3t HTTP/1.1\r\n")
    head = request.lower()
    assert b"authorization" not in head
    assert b"cookie" not in head
    assert b"content-length" not in head
    # The nap was cut short, so that the cooldown is not over: no second poke.
    half.clock.advance(20)
    nap.set()
    nap = await box.naps.get()
    assert len(box.requests) == 1
    assert box.slept == [60, 40]
    half.clock.advance(40)
    nap.set()
    nap = await box.naps.get()
    assert len(box.requests) == 2
    await half.store.write(lambda c: c.execute(tables.buffer.delete()))
    half.clock.advance(60)
    nap.set()
    await asyncio.gather(*waker._waking.values())
    assert len(box.requests) == 2
    assert waker.counts == {"wake status_2xx": 2}
    await waker.close()


@BOTH
async def test_two_processes_share_one_cooldown(half: Any, machine: tuple[Machine, int]) -> None:
    box, port = machine
    one = await poking(half, box, port)
    two = Waker(half.store, half.directory.settings, half.clock, resolver=resolve, sleep=box.sleep)
    one.wake("a1")
    two.wake("a1")
    await box.naps.get()
    await box.naps.get()
    assert len(box.requests) == 1
    await one.close()
    await two.close()


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        (b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n", "status_5xx"),
        (b"HTTP/1.1 302 Go\r\nlocation: http://10.0.0.1/\r\n\r\n", "status_3xx"),
        (b"garbage\r\n\r\n", "failed"),
        (b"", "failed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\nx", "status_2xx"),
    ],
)
async def test_whatever_it_answers_is_counted_and_of_no_consequence(
    half: Any, machine: tuple[Machine, int], answer: bytes, counted: str
) -> None:
    box, port = machine
    box.answer = answer
    waker = await poking(half, box, port)
    waker.wake("a1")
    await box.naps.get()
    assert waker.counts == {f"wake {counted}": 1}
    assert len(box.requests) == 1
    await waker.close()


async def test_a_machine_that_hangs_is_left_after_the_time_limit(
    half: Any, machine: tuple[Machine, int]
) -> None:
    box, port = machine
    box.hangs = True
    waker = await poking(half, box, port)
    waker.wake("a1")
    await box.naps.get()
    assert waker.counts == {"wake failed": 1}
    await waker.close()


async def test_a_name_that_turns_out_to_be_inside_is_not_poked(
    half: Any, machine: tuple[Machine, int]
) -> None:
    box, port = machine
    waker = await poking(half, box, port, inner=False)
    waker.wake("a1")
    await box.naps.get()
    assert (waker.counts, box.requests) == ({"wake refused": 1}, [])
    await waker.close()


@BOTH
async def test_who_has_no_url_was_revoked_or_switched_off_is_not_poked(
    half: Any, machine: tuple[Machine, int]
) -> None:
    box, port = machine
    waker = await poking(half, box, port)
    await half.enrol("a2")
    for instance in ("a2", "nobody"):
        await half.directory.wake(instance)
        waker.wake(instance)
        await box.naps.get()
    await half.control.suspend("t1")
    waker.wake("a1")
    await box.naps.get()
    await half.control.resume("t1")
    await waker.close()
    assert (waker.counts, box.requests) == ({}, [])
    assert half.directory.waker._waking == {}
    await half.directory.wake("a1")
    assert list(half.directory.waker._waking) == ["a1"]
    await half.control.revoke("a1")
    await asyncio.sleep(0)
    assert half.directory.waker._waking == {}


def test_the_defaults_are_those_of_the_specification() -> None:
    settings = ControlSettings()
    assert settings.wake_timeout_seconds == 5
    assert settings.outgoing == OutgoingPolicy()
