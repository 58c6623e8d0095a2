"""The planes behind a console, real and in this process, for the tests of their pages."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette
from tests.console.consoles import EVIL, Browser, Opened, opened, with_parts
from tests.fakes.platform import MemoryChat, MemoryPlatform
from tests.fakes.sockets import MemorySocket

from accord.authority.admin import AdminCommands
from accord.authority.assembly import RunningAuthority, run_authority
from accord.authority.contracts import builtins
from accord.authority.http import Refusals
from accord.authority.identities import Identities
from accord.authority.nats import ListenAddress, embedded_server
from accord.authority.service import open_authority
from accord.console.parts import CommandRun, CommandRunner
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.kernel import canonical, tokens
from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource
from accord.kernel.signing import SigningKey
from accord.relay.connector import RELAY, Connector, DeliveryLimits, Keyring, open_connector
from accord.station.listener import Listener, bind
from accord.storage import open_store

CLOCK = SystemClock()
SECONDS = 30
THING: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "string"}},
    "required": ["id"],
}
COUNTED: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["id", "count"],
}
# A command that behaves as ours do: progress on a terminal, the answer on stdout, and an exit code.
COMMAND = """
import pathlib, sys, time
assert sys.stderr.isatty() and not sys.stdout.isatty()
folder = pathlib.Path(__file__).parent
(folder / "arguments").write_text("\\n".join(sys.argv[1:]))
(folder / "input").write_bytes(sys.stdin.buffer.read())
sys.stderr.write("\\r\\x1b[2Kstarting Spark           \\u2501\\u2501\\u2501 0:00:01")
sys.stderr.flush()
deadline = time.monotonic() + 30
while not (folder / "go").exists() and time.monotonic() < deadline:
    time.sleep(0.01)
mode = (folder / "go").read_text()
if mode == "fail":
    sys.stderr.write("\\r\\x1b[2Kerror: Java is missing <script>\\n")
    raise SystemExit(1)
if mode == "much":
    sys.stdout.write("x" * 3_000_000)
sys.stderr.write("\\r\\x1b[2Kleft out: a segment\\n")
print("Published version 00000007. <script>")
raise SystemExit(1 if mode == "found" else 0)
"""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


class Introduced(MemoryPlatform):
    """A chat service that knows what those are called who were introduced to it."""

    def __init__(self, chat: MemoryChat) -> None:
        super().__init__(chat)
        self.called: dict[str, str] = {}

    async def names(self, ids: Collection[str]) -> dict[str, str]:
        return {each: self.called[each] for each in ids if each in self.called}


@dataclass
class Relay:
    """A connector with one chat service, and a console before it."""

    found: Opened
    connector: Connector
    chat: MemoryChat
    called: dict[str, str] = field(default_factory=dict)
    is_up: bool = True

    async def enrol(self, instance: str = "echo") -> str:
        """An agent whose owner is ann; what its gateway shows when it dials."""
        control = self.connector.control
        made = await control.enrol((await control.mint_token("t1", instance)).token, "gw")
        await control.bind(instance, "memory", "ann")
        return tokens.make("gw", made.secret, CLOCK.now())

    async def write(self, user: str, event_id: str, text: str = "private words") -> None:
        self.chat.write(user, "c1", text, event_id=event_id)
        await until(lambda: event_id in self.chat.received)


@asynccontextmanager
async def relayed(home: Path, sample: float = 0.0) -> AsyncIterator[Relay]:
    chat = MemoryChat()
    chat.channel("c1", scope_id="g1")
    platform = Introduced(chat)
    async with (
        opened(home) as found,
        open_store(home / "relay", RELAY) as store,
        open_connector(
            store,
            Keyring.load(home / "relay.key"),
            CLOCK,
            name="here",
            platforms=[platform],
            limits=DeliveryLimits(unlinked_sample=sample),
        ) as connector,
    ):
        await connector.control.route("t1", "memory", "g1")
        relay: Relay

        def now() -> Connector | None:
            return connector if relay.is_up else None

        relay = Relay(with_parts(found, relay=now), connector, chat, platform.called)
        yield relay


@asynccontextmanager
async def connected(relay: Relay, bearer: str) -> AsyncIterator[MemorySocket]:
    socket = MemorySocket()
    serving = asyncio.create_task(relay.connector.delivery.endpoint.serve(socket, bearer))
    await until(lambda: bool(relay.connector.delivery.hub.connections))
    try:
        yield socket
    finally:
        socket.cut()
        await serving


async def buried(relay: Relay, *events: str) -> None:
    for event in events:
        await relay.write("ann", event)
    await relay.connector.delivery.dead_letter("echo", f"too old {EVIL}")


def shop(schema: dict[str, Any] = THING, *, cache: bool = False) -> dict[str, Any]:
    contract = Contract("shop@v1", display_name=f"Shop {EVIL}", description=f"Sells {EVIL}")
    contract.serves_callers()
    contract.schema("Thing", schema)
    contract.capability("buy", "Buy", "Buys things.")
    contract.rpc("Shop.Find", "Thing", "Thing", call=["buy"])
    if cache:
        contract.kv("cache", "Thing", "Keeps what was found.")
    return contract.manifest()


@asynccontextmanager
async def ruled(home: Path) -> AsyncIterator[tuple[Opened, RunningAuthority]]:
    """A console before an authority that serves nobody."""
    async with opened(home) as found, ruling(found) as ruled_found:
        yield ruled_found


@asynccontextmanager
async def ruling(found: Opened) -> AsyncIterator[tuple[Opened, RunningAuthority]]:
    """The same console, before such an authority."""
    ids = UlidSource(CLOCK)
    folder = found.home / "authority"
    async with open_authority(folder, CLOCK, ids, builtins(), round_seconds=None) as authority:
        identities = Identities(authority, CLOCK, ids)
        running = RunningAuthority(
            authority,
            identities,
            (),
            cast("Any", None),
            Refusals(),
            AdminCommands(authority, identities),
        )
        yield with_parts(found, authority=lambda: running), running


async def proposed(running: RunningAuthority, manifest: dict[str, Any]) -> dict[str, Any]:
    told = await running.operating.do("deploy", {"deployment": "shop", "manifest": manifest})
    return cast("dict[str, Any]", told["plan"])


@dataclass
class Town:
    """A console before a real authority, with its NATS server."""

    found: Opened
    running: RunningAuthority
    url: str

    async def deploy(self, contract: Contract) -> SigningKey:
        """Accept a contract for the deployment `post`, and let a key run it."""
        key = SigningKey.generate()
        do = self.running.operating.do
        manifest = canonical.decode(contract.to_json())
        await do("deploy", {"deployment": "post", "manifest": manifest, "accept": True})
        await do("instances/add", {"deployment": "post", "key": session_key(key), "name": "one"})
        return key


def post() -> Contract:
    contract = Contract("post@v1", display_name="Post", description="Carries letters.")
    contract.schema("Letter", {"type": "object"})
    contract.job("carry", "Letter", "Letter", max_deliver=1)
    return contract


@asynccontextmanager
async def town(home: Path) -> AsyncIterator[Town]:
    async with (
        opened(home) as found,
        embedded_server(home / "nats", ListenAddress(), CLOCK) as server,
        run_authority(home / "authority", server.cluster, CLOCK, token="operators") as authority,
    ):
        listener = Listener(Starlette(routes=list(authority.routes)))
        with bind("127.0.0.1", 0) as listening:
            serving = asyncio.create_task(listener.serve([listening]))
            await listener.serving.wait()
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            try:
                shown = with_parts(found, authority=lambda: authority, address=url)
                yield Town(shown, authority, url)
            finally:
                listener.should_exit = True
                await serving


class Bench:
    """A console whose commands are a script that waits to be told how to end."""

    def __init__(self, found: Opened, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "command.py").write_text(COMMAND)
        self.children = CommandRunner(program=(sys.executable, str(folder / "command.py")))
        self.found = with_parts(found, children=self.children, landing=str(found.home / "landing"))

    def go(self, mode: str = "well") -> None:
        (self.folder / "part").write_text(mode)
        (self.folder / "part").replace(self.folder / "go")

    async def ended(self) -> CommandRun:
        await until(lambda: self.children.latest is not None and self.children.latest.has_ended)
        assert self.children.latest is not None
        return self.children.latest

    @property
    def arguments(self) -> list[str]:
        return (self.folder / "arguments").read_text().split("\n")

    @property
    def given(self) -> Any:
        return json.loads((self.folder / "input").read_bytes())


@asynccontextmanager
async def benched(tmp_path: Path) -> AsyncIterator[tuple[Bench, Browser]]:
    async with opened(tmp_path / "home") as found:
        bench = Bench(found, tmp_path / "bench")
        try:
            async with bench.found.inside() as browser:
                yield bench, browser
        finally:
            await bench.children.stop()
