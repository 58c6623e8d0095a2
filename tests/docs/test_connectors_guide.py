"""The guide for two connectors is followed, with a balancer before them, and one is lost."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from tests.docs.pages import File, Left, steps
from tests.docs.reading import ROOT
from tests.faults.two_connectors import Program, until

from accord.kernel.clock import SystemClock
from accord.relay.connector import RELAY, Keyring, open_connector
from accord.relay.gateway import GatewaySettings, RelayGateway, Turn
from accord.relay.platforms.webchat import open_admin
from accord.storage import open_store
from accord.testing.servers import Server, reserved_port

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs/guides/deploy/connectors.md"
CLOCK = SystemClock()


class Reader:
    """Does what the page says, in a folder, with servers of our own instead of those it names."""

    def __init__(self, folder: Path, named: dict[str, str]) -> None:
        self.folder = folder
        self.named = named
        self.said: dict[str, str] = {}
        self.started: list[subprocess.Popen[bytes]] = []

    def put(self, text: str) -> str:
        for name, ours in self.named.items():
            text = text.replace(name, ours)
        return text

    def follow(self, page: str) -> None:
        env = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        for step in steps(page):
            if isinstance(step, File):
                (self.folder / step.path).write_text(self.put(step.text))
            for command in step.commands if isinstance(step, Left) else ():
                text = self.put(command.text)
                if command.goes_on:
                    words = text.removesuffix("&").split()
                    self.started.append(
                        subprocess.Popen(words, cwd=self.folder, env=env, stdout=subprocess.DEVNULL)
                    )
                    continue
                done = subprocess.run(
                    ["bash", "-c", text],
                    cwd=self.folder,
                    env=env,
                    capture_output=True,
                    text=True,
                    timeout=120,
                    check=False,
                )
                assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
                self.said[command.text] = done.stdout

    def end(self) -> None:
        for child in self.started:
            with suppress(psutil.NoSuchProcess):
                for each in psutil.Process(child.pid).children(recursive=True):
                    each.kill()
            child.kill()
            child.wait()


@contextmanager
def reading(folder: Path, named: dict[str, str]) -> Iterator[Reader]:
    folder.mkdir()
    reader = Reader(folder, named)
    try:
        yield reader
    finally:
        reader.end()


@asynccontextmanager
async def balancer(ports: list[int]) -> AsyncIterator[int]:
    """Passes each connection to the next connector that accepts one; the balancer's port."""
    turn = 0

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.CancelledError):
            await pass_on(reader, writer)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        for _ in ports:
            turn += 1
            try:
                there = await asyncio.open_connection("127.0.0.1", ports[turn % len(ports)])
            except OSError:
                continue
            await asyncio.gather(carry(reader, there[1]), carry(there[0], writer))
            return
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.timeout(300)
async def test_two_connectors_serve_behind_a_balancer_and_one_may_be_lost(
    postgres_url: str, redis: Server, tmp_path: Path
) -> None:
    with reserved_port() as first, reserved_port() as second:
        ports = [first, second]
    heard: list[int] = []

    async def echo(turn: Turn) -> str:
        heard.append(int(turn.event.text))
        return turn.event.text

    async with balancer(ports) as port:
        named = {
            "postgresql://accord@db.example/accord": postgres_url,
            "redis://bus.example:6379/0": redis.url,
            "https://relay.example": f"http://127.0.0.1:{port}",
            "7091": str(ports[0]),
            "7092": str(ports[1]),
        }
        with reading(tmp_path / "reader", named) as reader:
            await asyncio.to_thread(reader.follow, PAGE.read_text())
            for each in ports:
                await ready(each)
            await talk(reader, port, postgres_url, echo, heard)
    assert list(dict.fromkeys(heard)) == list(range(len(set(heard))))


async def ready(port: int) -> None:
    async with asyncio.timeout(60), httpx.AsyncClient() as client:
        while True:
            with suppress(httpx.HTTPError):
                if (await client.get(f"http://127.0.0.1:{port}/readyz")).status_code == 200:
                    return
            await asyncio.sleep(0.1)


async def talk(
    reader: Reader, port: int, where: str, echo: Callable[[Turn], Awaitable[str]], heard: list[int]
) -> None:
    """Let somebody write to an agent by the balancer, and kill a connector meanwhile."""
    asked = next(text for text in reader.said if "token new" in text)
    token = json.loads(reader.said[asked])
    keys = Keyring.load(reader.folder / "one/keys/relay.key")
    async with (
        open_store(where, RELAY) as store,
        open_connector(store, keys, CLOCK, name="operator", serve=False) as office,
        open_admin(where, CLOCK) as admin,
    ):
        secret = (await office.control.enrol(token["token"], "gw-echo")).secret
        gateway = RelayGateway(
            f"http://127.0.0.1:{port}",
            secret=secret,
            gateway_id="gw-echo",
            agent=echo,
            settings=GatewaySettings(identities=(("webchat", ""),), inbox="memory"),
        )
        running = asyncio.create_task(gateway.run())
        [space] = await admin.spaces()
        [general] = await admin.channels(space.id)
        invite = (await admin.invite(space.id)).url.partition("#invite=")[2]
        person = Program("ann", general.id, lambda: port)
        joined = await person.ask("join", {"invite": invite, "name": "ann"})
        await office.control.bind("echo", "webchat", joined["me"]["id"])
        posting = asyncio.create_task(person.post_on())
        try:
            await until(lambda: len(heard) > 20, lambda: heard)
            for each in psutil.Process(reader.started[0].pid).children(recursive=True):
                each.kill()
            reader.started[0].kill()
            reached = len(heard)
            await until(lambda: len(heard) > reached + 20, lambda: heard)
        finally:
            posting.cancel()
            gateway.stop()
            await running
            await person.close()
