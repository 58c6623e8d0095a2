"""Signed and verified bus calls per second, by 1 and by 32 clients; a stream's first frame.

The server is a process of its own, as it runs in a station. The baseline is a bare route of the
same server, in the same run, that only verifies the request and signs the answer; clients sign and
verify in both cases. A call, beside that, passes every check, and its id is on disk before it is
served; an idempotent one's answer is on disk before it is sent.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from accord.community.bus import BUS_STORE, Bus, BusSettings, Call, Frame, RateLimits, open_ledger
from accord.community.rules import Level, capabilities, wire
from accord.kernel import canonical
from accord.kernel.clock import SystemClock, format_time
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.station.listener import Listener, bind
from accord.storage import open_store
from bench.figure import Figure

SECONDS = 2.0
ROUNDS = 3
NODE, CALLER, ROOT = (SigningKey.from_seed(bytes([number]) * 32) for number in (1, 2, 3))
CLOCK = SystemClock()
BODY = {"params": {"corpus": "bench"}, "input": {"query": "How do I clean rain water?", "k": 5}}
ANSWER = {"output": {"chunks": [{"rank": 1, "text": "Let it settle. " * 20}]}, "meta": {"ms": 1}}
ANY = {"type": "object"}


class Commons:
    """A community in which everybody is a member."""

    community_id = ROOT.id

    def level_of(self, node_id: str) -> Level:
        """Everybody is a member."""
        return Level.MEMBER

    def is_revoked(self, node_id: str) -> bool:
        """Nobody is."""
        return False

    def requires_to(self, node_id: str) -> bool:
        """Everybody must."""
        return True


def describe(name: str, **members: Any) -> capabilities.CapabilityDescriptor:
    """A capability that takes and gives any object."""
    form: dict[str, Any] = {"name": f"experimental.{name}", "version": "1.0"}
    form |= {
        "stability": "experimental",
        "trust": "member",
        "idempotent": False,
        "request_schema": ANY,
    }
    return capabilities.read_descriptor(form | members)


async def serve(folder: str) -> None:
    """Run the server until its input ends; its port is the first line it prints."""

    async def answer(_call: Call) -> dict[str, Any]:
        return ANSWER

    async def frames(_call: Call) -> AsyncIterator[Frame]:
        yield Frame("token", {"text": "first"})
        yield Frame("done", {})

    async def bare(http: Request) -> Response:
        body = canonical.decode(await http.body())
        request = wire.read_request(http.scope["headers"], body)
        wire.verify_request(request, NODE.id)
        signed = wire.sign_response(
            NODE,
            request_id=request.request_id,
            request_digest=request.digest,
            to=request.caller,
            timestamp=format_time(CLOCK.now()),
            status=200,
            body=ANSWER,
        )
        return Response(canonical.encode(ANSWER), headers=signed, media_type="application/json")

    limits = RateLimits(per_capability=1e9, per_caller=1e9)
    async with (
        open_store(folder, BUS_STORE) as store,
        open_ledger(store, CLOCK, source=NODE.id) as ledger,
    ):
        bus = Bus(NODE, ledger, clock=CLOCK, settings=BusSettings(limits=limits))
        bus.join(Commons())
        bus.registry.register(describe("plain", response_schema=ANY), answer, max_concurrent=64)
        again = describe("again", response_schema=ANY, idempotent=True)
        bus.registry.register(again, answer, max_concurrent=64)
        bus.registry.register(describe("stream", stream_schema=ANY), frames)
        routes = [*bus.routes, Route("/bare", bare, methods=["POST"])]
        server = Listener(Starlette(routes=routes))
        with bind("127.0.0.1", 0) as listening:
            serving = asyncio.create_task(server.serve([listening]))
            await server.serving.wait()
            print(listening.getsockname()[1], flush=True)
            await asyncio.to_thread(sys.stdin.read)
            server.should_exit = True
            await serving


class Wire:
    """One connection that speaks just enough HTTP to be no bottleneck."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = UlidSource(CLOCK)

    def send(self, path: str, capability: str) -> wire.SignedRequest:
        """Sign a call and send it."""
        request = wire.sign_request(
            CALLER,
            capability=capability,
            version="1.0",
            request_id=self._ids.new(),
            community=ROOT.id,
            timestamp=format_time(CLOCK.now()),
            body=BODY,
            to=NODE.id,
        )
        content = canonical.encode(BODY)
        head = f"POST {path} HTTP/1.1\r\nHost: node\r\nContent-Length: {len(content)}\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        self._writer.write(head.encode() + b"\r\n" + content)
        return request

    async def head(self) -> list[tuple[bytes, bytes]]:
        """Read the head of an answer; its status must be 200."""
        raw = await self._reader.readuntil(b"\r\n\r\n")
        status, *lines = raw.split(b"\r\n")[:-2]
        assert status.split(b" ")[1] == b"200", raw
        pairs = (line.partition(b": ") for line in lines)
        return [(name.lower(), value) for name, _, value in pairs]

    async def call(self, path: str, capability: str) -> None:
        """Call, and verify the answer."""
        request = self.send(path, capability)
        head = await self.head()
        raw = await self._reader.readexactly(int(dict(head)[b"content-length"]))
        body = canonical.decode(raw)
        wire.verify_response(
            head, request=request, server=NODE.id, status=200, body=body, now=CLOCK.now()
        )

    async def first_frame(self) -> float:
        """Open a stream; seconds until its first frame is here."""
        start = time.perf_counter()
        self.send("/bus/v1/call", "experimental.stream")
        await self.head()
        await self._reader.readuntil(b"\n\n")
        taken = time.perf_counter() - start
        await self._reader.readuntil(b"0\r\n\r\n")
        return taken

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()


async def rate(wires: list[Wire], path: str, capability: str) -> float:
    """Calls per second of all connections together."""
    end = time.perf_counter() + SECONDS / ROUNDS
    done = 0

    async def go(connection: Wire) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await connection.call(path, capability)
            done += 1

    start = time.perf_counter()
    await asyncio.gather(*map(go, wires))
    return done / (time.perf_counter() - start)


async def measure(port: int) -> list[Figure]:
    """Measure everything against a running server."""
    figures = []
    async with AsyncExitStack() as stack:
        wires = []
        for _ in range(32):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            wires.append(await stack.enter_async_context(Wire(reader, writer)))
        kinds = {
            "bare": ("/bare", "experimental.plain"),
            "call": ("/bus/v1/call", "experimental.plain"),
            "idempotent call": ("/bus/v1/call", "experimental.again"),
        }
        for clients, goal in ((1, None), (32, 0.3)):
            rates: dict[str, float] = dict.fromkeys(kinds, 0.0)
            for _ in range(ROUNDS):
                for kind, target in kinds.items():
                    rates[kind] = max(rates[kind], await rate(wires[:clients], *target))
            for kind in ("call", "idempotent call"):
                name = f"{kind}, {clients} client{'s' if clients > 1 else ''}"
                bare = "bare route that verifies and signs"
                figures.append(Figure(name, "calls/s", rates[kind], rates["bare"], bare, goal))
        firsts = [await wires[0].first_frame() for _ in range(50)]
        calls_taken = []
        for _ in range(50):
            start = time.perf_counter()
            await wires[0].call("/bare", "experimental.plain")
            calls_taken.append(time.perf_counter() - start)
        figures.append(
            Figure(
                "first frame of a stream, median",
                "us",
                statistics.median(firsts) * 1e6,
                statistics.median(calls_taken) * 1e6,
                "one call of the bare route",
            )
        )
    return figures


def run() -> Iterator[Figure]:
    """Start the server and measure it."""
    with tempfile.TemporaryDirectory(prefix="accord-bench-") as folder:
        yield from uvloop.run(_run(folder))


async def _run(folder: str) -> list[Figure]:
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "bench.community_bus",
        folder,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        return await measure(int(await server.stdout.readline()))
    finally:
        server.stdin.close()
        await server.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="The server that is measured.")
    parser.add_argument("folder")
    uvloop.run(serve(parser.parse_args().folder))
