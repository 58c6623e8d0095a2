"""People, agents and services that keep a station busy, and count what they did.

Each does one thing again and again and waits in between, so that all of them together take a part
of one processor only.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from accord.capabilities.file import Blobs, pull, push
from accord.community.client import Client
from accord.contracts.authoring import Contract
from accord.contracts.session_proof import session_key
from accord.fabric import Authority, Request, Service
from accord.kernel.signing import SigningKey
from accord.relay.gateway import (
    GatewayCredentials,
    GatewaySettings,
    GatewayState,
    RelayGateway,
    Turn,
    enrol,
)
from accord.testing.stations import RunningStation

PAGES = (
    *("", "ask", "chat", "market", "files", "members"),
    *("agents", "contracts", "services", "pipeline", "settings", "log"),
)
STREAMS = ("log/live?after=0", "agents/live")
GREETER = Contract("greeter@v1", display_name="Greeter", description="Greets people.")
GREETER.serves_callers()
GREETER.schema("Name", {"type": "object", "properties": {"name": {"type": "string"}}})
GREETER.schema("Text", {"type": "object", "properties": {"text": {"type": "string"}}})
GREETER.rpc("Greet", "Name", "Text")


_SECONDS = 60.0
# A small model may take long on a busy machine.
_ANSWER_SECONDS = 240.0
QUESTION = "How does a ladder lean?"


async def echo(turn: Turn) -> str:
    """An agent that says back what it is told."""
    return f"Heard: {turn.event.text}"


class Crowd:
    """Everybody who uses one station.

    Attributes:
        done: How often each thing was acknowledged.
        posted: The posts that were acknowledged.
        said: What was said in the chat and acknowledged.
        files: The files that were put onto the station.
    """

    def __init__(self, running: RunningStation, folder: Path) -> None:
        self.done: Counter[str] = Counter()
        self.posted: list[str] = []
        self.said: list[str] = []
        self.files: list[str] = []
        self._read: set[str] = set()
        self._running = running
        self._folder = folder
        self._one_command = asyncio.Lock()
        self._community = ""
        self._gateway: GatewayCredentials | None = None
        self._chat = ""
        self._key = SigningKey.load(running.home / "keys" / "device.ed25519")
        self._service = SigningKey.generate()
        self._serves = asyncio.Event()
        self._person, self._asker = self._somebody(), self._somebody()
        self._lobby = ""

    async def command(self, *words: str) -> str:
        """Give a command; one at a time, for each has the process's output to itself."""
        async with self._one_command:
            return await asyncio.to_thread(self._running.command, *words)

    async def arrive(self) -> None:
        """Let everybody in, once."""
        shown = json.loads(await self.command("community", "show", "--json"))
        self._community = shown["community_id"]
        document = self._folder / "ladders.txt"
        document.write_text("A ladder leans at four to one. Paint it every third spring.")
        await self.command("rag", "add", "manuals", str(document))
        await self.command("relay", "chat", "space", "kitchen")
        token = (await self.command("relay", "token", "new", "--instance", "echo")).strip()
        file = self._folder / "echo" / "credentials.json"
        file.parent.mkdir()
        self._gateway = await enrol(self._running.address, token, "echo-gateway", file)
        bot = (await self._joined("kitchen", "ann", self._person))["bots"][0]["id"]
        self._chat = (await self._ask("POST", f"bots/{bot}/chat"))["chat"]
        await self._say((await self.command("relay", "link", "echo")).strip())
        async with asyncio.timeout(_SECONDS):
            while not any("Answer yes" in text for text in self._read):
                await asyncio.sleep(1)
                await self.catch_up()
        await self._say("yes")
        contract = self._folder / "greeter.json"
        contract.write_bytes(GREETER.to_json())
        await self.command("authority", "deploy", "greeter", str(contract), "--accept")
        await self.command("authority", "instance", "add", "greeter", session_key(self._service))
        await self.command("rpc", "allow")
        bea = await self._joined("lobby", "bea", self._asker)
        (self._lobby,) = [
            each["id"] for each in bea["spaces"][0]["channels"] if each["name"] == "concierge"
        ]
        linked = self._running.home / "concierge" / "linked"
        async with asyncio.timeout(_SECONDS):
            while not linked.exists() or bea["me"]["id"] not in linked.read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        await self._ask_concierge()

    async def leave(self) -> None:
        """Close what they hold open."""
        await self._person.aclose()
        await self._asker.aclose()

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """Let everybody do what they do until the block ends."""
        stop = asyncio.Event()
        work = (
            (1.0, self._post),
            (1.0, self._talk),
            (0.7, self._look),
            (3.0, self._listen),
            (2.0, self._search),
            (5.0, self._share),
            (20.0, self._ask_concierge),
            (6.0, self._greet),
            (10.0, self.catch_up),
        )
        async with asyncio.TaskGroup() as group:
            for seconds, each in work:
                group.create_task(self._again(each, seconds, stop))
            group.create_task(self._dial_and_leave(stop))
            group.create_task(self._serve(stop))
            yield
            stop.set()

    async def backup(self, folder: Path) -> None:
        """Copy the station while it is busy."""
        await self.command("backup", str(folder))
        self.done["backups"] += 1

    async def catch_up(self) -> None:
        """Read what the agent has answered, back to what was read before."""
        path = f"chats/{self._chat}/messages"
        before = ""
        while True:
            page = await self._ask("GET", f"{path}{before}")
            fresh = {
                each["text"] for each in page["messages"] if each["author"]["bot"]
            } - self._read
            self._read |= fresh
            if not fresh or not page["more"]:
                return
            before = f"?before={page['messages'][0]['id']}"

    @property
    def unanswered(self) -> list[str]:
        """What was said and not answered, as far as it was read."""
        return [text for text in self.said if f"Heard: {text}" not in self._read]

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """The agent is there until the block ends."""
        assert self._gateway is not None
        settings = GatewaySettings(inbox=self._folder / "echo")
        gateway = RelayGateway(
            self._running.address,
            secret=self._gateway.secret,
            gateway_id=self._gateway.gateway_id,
            agent=echo,
            settings=settings,
            on_health=lambda health: runs.set() if health.state is GatewayState.RUNNING else None,
        )
        runs = asyncio.Event()
        serving = asyncio.create_task(gateway.run())
        try:
            async with asyncio.timeout(_SECONDS):
                await runs.wait()
            yield
        finally:
            gateway.stop()
            await serving

    async def _again(
        self, work: Callable[[], Awaitable[None]], seconds: float, stop: asyncio.Event
    ) -> None:
        while not stop.is_set():
            await work()
            self.done[work.__name__.strip("_")] += 1
            await _pause(stop, seconds)

    async def _dial_and_leave(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            async with self.answering():
                self.done["dialled"] += 1
                await _pause(stop, 8)
            await _pause(stop, 1)

    async def _serve(self, stop: asyncio.Event) -> None:
        service = Service(GREETER, key=self._service, authority=Authority(self._running.address))

        @service.rpc("Greet")
        async def greet(_request: Request, asked: dict[str, str]) -> dict[str, str]:
            return {"text": f"Good morning, {asked['name']}!"}

        async with service.connect():
            self._serves.set()
            await stop.wait()
            self._serves.clear()
            # Whoever has just called is still answered.
            async with self._one_command:
                pass

    async def _post(self) -> None:
        name = f"post {len(self.posted)}"
        async with self._client() as client:
            given = {"client_id": name, "category": "offer", "title": name, "body": "To lend."}
            await client.call("market.post", {}, given, idempotent=True)
        self.posted.append(name)

    async def _talk(self) -> None:
        text = f"saying {len(self.said)}"
        await self._say(text)
        self.said.append(text)

    async def _search(self) -> None:
        async with self._client() as client:
            await client.call("market.search", {}, {"query": "something to climb with"})
            asked = {"query": "How does a ladder lean?", "k": 2}
            await client.call("rag.query", {"corpus": "manuals"}, asked)
            await client.call("chat.history", {}, {"limit": 10})

    async def _share(self) -> None:
        """Put a file onto the station, find it in its list, and get it back from there."""
        text = f"Sheet {len(self.files)} of a manual. " * 400
        ours, copies = Blobs(self._folder / "ours"), Blobs(self._folder / "copies")
        cid = await ours.put(text.encode())
        async with self._client() as client:
            await push(client, ours, cid)
            assert cid in (await client.call("file.list", {}, {}))["output"]["cids"]
            async for _ in pull(client, copies, cid):
                pass
        assert b"".join([part async for part in copies.read(cid)]) == text.encode()
        self.files.append(cid)

    async def _ask_concierge(self) -> None:
        """Ask the concierge in its lobby, and wait for an answer that names its sources."""
        path = f"chats/{self._lobby}/messages"
        asked = {"text": QUESTION, "key": f"question {self.done['ask_concierge']}"}
        after = (await self._ask("POST", path, asked, self._asker))["id"]
        async with asyncio.timeout(_ANSWER_SECONDS):
            while True:
                page = await self._ask("GET", path, who=self._asker)
                answers = [each for each in page["messages"] if each["id"] > after]
                if any(each["author"]["bot"] and "Sources:" in each["text"] for each in answers):
                    return
                await asyncio.sleep(1)

    async def _greet(self) -> None:
        if not self._serves.is_set():
            return
        contract = str(self._folder / "greeter.json")
        assert "Ann" in await self.command("rpc", "call", contract, "Greet", '{"name": "Ann"}')

    async def _look(self) -> None:
        page = PAGES[self.done["look"] % len(PAGES)]
        answer = await asyncio.to_thread(self._running.http.get, f"/console/{page}")
        assert answer.status_code == httpx.codes.OK, (page, answer.status_code)

    async def _listen(self) -> None:
        stream = STREAMS[self.done["listen"] % len(STREAMS)]
        cookies = dict(self._running.http.cookies)
        async with (
            httpx.AsyncClient(base_url=self._running.address, cookies=cookies) as browser,
            browser.stream("GET", f"/console/{stream}") as events,
        ):
            assert events.status_code == httpx.codes.OK, (stream, events.status_code)
            await asyncio.sleep(1)

    def _client(self) -> Client:
        return Client(self._running.address, self._key, self._community, self._key.id)

    async def _say(self, text: str) -> None:
        body = {"text": text, "key": f"k{text}"}
        await self._ask("POST", f"chats/{self._chat}/messages", body)

    async def _joined(self, space: str, name: str, who: httpx.AsyncClient) -> Any:
        """Let somebody into a space of the web chat; what is to be seen there."""
        words = ("relay", "chat", "invite", "--space", space, "--json")
        invite = json.loads(await self.command(*words))["url"].partition("#invite=")[2]
        await self._ask("POST", "join", {"invite": invite, "name": name}, who)
        return await self._ask("GET", "me", who=who)

    def _somebody(self) -> httpx.AsyncClient:
        address = f"{self._running.address}/chat/api/"
        return httpx.AsyncClient(base_url=address, headers={"x-accord-chat": "1"}, timeout=60)

    async def _ask(
        self, method: str, path: str, body: Any = None, who: httpx.AsyncClient | None = None
    ) -> Any:
        sent = body if method != "GET" else None
        answer = await (who or self._person).request(method, path, json=sent)
        assert answer.status_code == httpx.codes.OK, answer.text
        return answer.json()


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
