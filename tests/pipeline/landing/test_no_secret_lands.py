"""No secret, token or chat text is in any byte of the landing, whatever the planes write."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fakes.histories import HistoryWriter
from typer.testing import CliRunner

from accord.cli import app
from accord.community.client import Client
from accord.kernel import canonical
from accord.kernel.signing import SigningKey
from accord.pipeline.exporter import ExportSource, export
from accord.pipeline.landing import Landing, read_records
from accord.pipeline.rules import STREAMS, redaction
from accord.storage import JournalEntry, JournalRecord, Schema, open_store
from accord.testing.processes import Child, python_child

pytestmark = pytest.mark.slow

SECONDS = 40.0
SAID = "the treasure lies under the old mill"
PROGRAM = 'import json, sys; print(json.load(sys.stdin)["event"]["text"].upper())'
SHOUT = f"{sys.executable} -c '{PROGRAM}'"


def records(landing: Landing) -> dict[str, list[JournalEntry]]:
    """Everything that landed, by stream."""
    return {
        stream: [
            record
            for segment in landing.segments(stream)
            for record in read_records(landing.read(segment))
        ]
        for stream in STREAMS
    }


def every_byte(folder: Path) -> bytes:
    """The landing as it lies there, and as it reads."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    told = [repr(each) for many in records(Landing(folder)).values() for each in many]
    names = [str(path.relative_to(folder)) for path in files]
    return b"\n".join([*(path.read_bytes() for path in files), *map(str.encode, told + names)])


async def test_what_is_planted_in_any_stream_stays_out(tmp_path: Path, plane: Schema) -> None:
    scribe = HistoryWriter(1, signed=True)
    ann, bob = scribe.pen("ann"), scribe.pen("bob")
    said = {"client_id": "c", "recipient": bob.id, "body": SAID}
    events = [
        scribe.found(ann),
        scribe.write(ann, "chat.message.sent", said),
        scribe.write(ann, "chat.group.said", {"text": SAID}),
        scribe.write(ann, "chat.message.sent", said | {"style": "bold"}, version=2),
    ]
    bodies = {"community.events": [event.encode().decode() for event in events]}
    planted = {"text": SAID, "token": "hunter2hunter2", "vault": {"value": "hunter2hunter2"}}
    for stream in STREAMS:
        whole = canonical.encode(planted).decode()
        bodies.setdefault(stream, []).extend([whole, whole[:-1], f'"{SAID}"', SAID])
    async with open_store(tmp_path / "stores", plane) as store:
        for stream, written in bodies.items():
            await store.append(
                *(JournalRecord(stream, f"{n}", 1, "node", body) for n, body in enumerate(written))
            )
        done = await export(
            [ExportSource("plane", store, "0a1b2c3d")], Landing(tmp_path / "landing")
        )
    assert done.records == {stream: len(written) for stream, written in bodies.items()}
    seen = every_byte(tmp_path / "landing")
    for secret in (SAID, "hunter2"):
        assert secret.encode() not in seen


@contextmanager
def station(home: Path, *words: str) -> Iterator[tuple[Child, str]]:
    env = {
        "ACCORD_HOME": str(home),
        "ACCORD_STATION__PORT": "0",
        "ACCORD_COMMUNITY__PORT": "0",
        "ACCORD_PIPELINE__EXPORT_SECONDS": "0.2",
    }
    with python_child("-m", "accord.cli", *words, "--json", env=env) as child:
        yield child, json.loads(child.read_line())["address"]


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Somebody:
    """Operates a station, chats with its agent, and is a member of a community."""

    def __init__(self, home: Path, address: str) -> None:
        self.home = home
        self.address = address
        self.http = httpx.Client(
            base_url=f"{address}/chat/api/", headers={"x-accord-chat": "1"}, timeout=20
        )
        self._keys = iter(range(100))

    def run(self, *words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--home", str(self.home)])
        assert result.exit_code == 0, f"{words}: {result.exception} {result.output}"
        return result.stdout.strip()

    def ask(self, path: str, body: Any = None) -> Any:
        answer = self.http.post(path, json=body) if body is not None else self.http.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def say(self, chat: str, text: str) -> None:
        self.ask(f"chats/{chat}/messages", {"text": text, "key": f"k{next(self._keys)}"})

    def hears(self, chat: str, part: str) -> None:
        def is_said() -> bool:
            page = self.ask(f"chats/{chat}/messages")["messages"]
            return any(part in each["text"] for each in page if each["author"]["bot"])

        until(is_said, f"the bot never said {part}")

    async def write(self, community: str, event_type: str, data: Any) -> None:
        key = SigningKey.load(self.home / "keys" / "device.ed25519")
        async with Client(self.address, key, community, key.id) as client:
            told = await client.post("/node/v1/act", {"event_type": event_type, "data": data})
            assert told["hash"].startswith("blake3:")


@pytest.fixture
def exporting() -> Callable[..., Any]:
    """Runs `accord pipeline export` beside the station."""

    def run(home: Path) -> Any:
        result = CliRunner().invoke(app, ["pipeline", "export", "--home", str(home), "--json"])
        assert result.exit_code == 0, f"{result.exception} {result.output}"
        return json.loads(result.stdout)

    return run


def test_what_the_planes_of_a_running_station_write_lands_without_a_word_that_was_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exporting: Callable[..., Any]
) -> None:
    home, state = tmp_path / "home", tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    landing = Landing(home / "pipeline" / "landing")
    with ExitStack() as up:
        child, address = up.enter_context(station(home, "up"))
        until(lambda: httpx.get(f"{address}/readyz").status_code == 200, "it is not ready")
        ann = Somebody(home, address)
        up.callback(ann.http.close)

        community = json.loads(ann.run("community", "create", "Our street", "--json"))[
            "community_id"
        ]
        me = ann.run("community", "id")
        asyncio.run(
            ann.write(
                community, "chat.message.sent", {"client_id": "1", "recipient": me, "body": SAID}
            )
        )

        said = json.dumps({"recipient": me, "text": SAID})
        words = ("community", "call", "chat.send", "--input", said, "--home", str(home))
        assert CliRunner().invoke(app, words).exit_code == 1, "nobody offers that, and it is told"

        ann.run("relay", "chat", "space", "kitchen")
        token = ann.run("relay", "token", "new", "--instance", "shout")
        enrolled = CliRunner().invoke(app, ["relay", "gateway", "enroll", address, token])
        assert enrolled.exit_code == 0, enrolled.output
        words = ("-m", "accord.cli", "relay", "gateway", "run", "--command", SHOUT)
        agent = up.enter_context(python_child(*words, env={"XDG_STATE_HOME": str(state)}))
        assert [agent.read_line(), agent.read_line()] == ["connecting", "running"]
        invite = json.loads(ann.run("relay", "chat", "invite", "--json"))["url"]
        invite = invite.partition("#invite=")[2]
        ann.ask("join", {"invite": invite, "name": "ann"})
        bot = ann.ask("me")["bots"][0]["id"]
        chat = ann.ask(f"bots/{bot}/chat", {})["chat"]
        code = ann.run("relay", "link", "shout")
        ann.say(chat, code)
        ann.hears(chat, "shout")
        ann.say(chat, "yes")
        ann.hears(chat, "linked")
        ann.say(chat, SAID)
        ann.hears(chat, SAID.upper())

        wanted = {"bus.calls", "community.events", *(s for s in STREAMS if s.startswith("relay."))}
        # What strangers wrote is told when the hour has ended.
        wanted.remove("relay.unlinked")
        until(
            lambda: {s for s, found in records(landing).items() if found} >= wanted, "not all land"
        )
        figures = httpx.get(f"{address}/metrics").text
        assert 'accord_pipeline_exported_records_total{stream="relay.inbound"}' in figures
        assert "accord_pipeline_export_failures_total 0.0" in figures
        cookies = [value for _, value in ann.http.cookies.items()]
        child.terminate()
        assert child.wait() == 0

    exporting(home)
    assert exporting(home)["records"] == {}
    found = records(landing)
    for stream, landed in found.items():
        assert [each.seq for each in landed] == list(range(1, len(landed) + 1))
        bodies = [canonical.decode(each.body) for each in landed]
        assert not any("withheld" in body for body in bodies), f"{stream} is not as described"
    (chat_event,) = [each for each in found["community.events"] if '"redacted"' in each.body]
    restored = redaction.restore_event(chat_event.body)
    assert restored is not None
    assert restored.event_type == "chat.message.sent"

    seen = every_byte(home / "pipeline" / "landing")
    held = [SAID, SAID.upper(), token, invite, code, *cookies]
    (credentials,) = state.rglob("*.json")
    assert cookies
    held.append(json.loads(credentials.read_bytes())["secret"])
    for secret in held:
        assert secret.encode() not in seen, "something landed that must not"
    for file in (home / "keys").iterdir():
        assert file.read_bytes().strip() not in seen
