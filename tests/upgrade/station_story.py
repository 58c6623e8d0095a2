"""What somebody does with a running station, as a program for whichever version runs it.

    python station_story.py HOME ADDRESS write|add|show|hear ...

Speaks by commands and HTTP alone, as the first version had them, and prints one line of JSON for
each verb. What it shows are names and digests: a later version may tell more of each thing, never
something else. What a later run needs to know lies beside the home.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

import accord
from accord.cli import app
from accord.contracts.authoring import Contract
from accord.relay.gateway import GatewaySettings, RelayGateway, Turn

SECONDS = 30.0


class Story:
    """Somebody with a home and a station that runs in it."""

    def __init__(self, home: Path, address: str) -> None:
        self.home = home
        self.address = address
        self.http = httpx.Client(
            base_url=f"{address}/chat/api/", headers={"x-accord-chat": "1"}, timeout=20
        )
        self._notes = home.parent / "notes.json"

    @property
    def notes(self) -> dict[str, Any]:
        """What `write` left for later runs."""
        found: dict[str, Any] = json.loads(self._notes.read_text())
        self.http.cookies.update(found["cookies"])
        return found

    def run(self, *words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--home", str(self.home)])
        if result.exit_code:
            raise SystemExit(f"{words}: {result.exception!r} {result.output}")
        return result.stdout

    def ask(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def chat(self, method: str, path: str, body: Any = None) -> Any:
        answer = self.http.request(method, path, json=body if method != "GET" else None)
        if answer.status_code != 200:
            raise SystemExit(f"{path}: {answer.text}")
        return answer.json()

    def say(self, chat: str, text: str, key: str) -> None:
        self.chat("POST", f"chats/{chat}/messages", {"text": text, "key": key})

    def write(self) -> None:
        """Something in every plane."""
        note = self.home.parent / "ladders.txt"
        note.write_text("A ladder leans at four to one.")
        self.run("file", "add", str(note))
        for number in range(3):
            self.run("market", "post", f"Ladder {number}", "--body", "To lend.")
        made = self.ask("market", "list")["posts"]
        self.run("market", "expire", made[0]["event_id"])
        self.deploy()
        self.enrol()
        self.run("pipeline", "export")

    def deploy(self) -> None:
        """A contract that is accepted, and an instance of it."""
        bakery = Contract("bakery@v1", display_name="Bakery", description="Bakes bread.")
        bakery.schema("Order", {"type": "object", "properties": {"id": {"type": "string"}}})
        bakery.event("Bakery.Baked", "Order", params=["/id"])
        manifest = self.home.parent / "bakery.json"
        manifest.write_bytes(bakery.to_json())
        self.run("authority", "deploy", "bakery", str(manifest), "--accept")
        key = str(self.home.parent / "bakery.key")
        self.run("authority", "instance", "add", "bakery", "--key-file", key, "--name", "one")

    def enrol(self) -> None:
        """Two agents that are away: for one, messages wait; for the other, they were given up."""
        general = self.ask("relay", "chat", "space", "kitchen")["channel"]
        secrets = {}
        for instance in ("echo", "gone"):
            token = self.run("relay", "token", "new", "--instance", instance).strip()
            body = {"enrollmentToken": token, "gatewayId": f"gw-{instance}"}
            answer = httpx.post(f"{self.address}/relay/enroll", json=body, timeout=20)
            secrets[instance] = answer.json()["secret"]
        invite = self.ask("relay", "chat", "invite")["url"].partition("#invite=")[2]
        self.chat("POST", "join", {"invite": invite, "name": "ann"})
        bot = self.chat("GET", "me")["bots"][0]["id"]
        direct = self.chat("POST", f"bots/{bot}/chat")["chat"]
        for instance in secrets:
            self.say(direct, self.run("relay", "link", instance).strip(), f"link {instance}")
            self.answered(direct, instance)
            self.say(direct, "yes", f"yes {instance}")
            self.answered(direct, "linked")
        for number in range(3):
            self.say(general, f"message {number}", f"general {number}")
        self.run("relay", "revoke", "gone")
        cookies = dict(self.http.cookies.items())
        told = {"general": general, "secret": secrets["echo"], "cookies": cookies}
        self._notes.write_text(json.dumps(told))

    def answered(self, chat: str, part: str) -> None:
        def look() -> bool:
            page = self.chat("GET", f"chats/{chat}/messages")["messages"]
            said = [each["text"] for each in page if each["author"]["bot"]]
            return bool(said) and part in said[-1]

        until(look, f"the bot never said {part!r}")

    def add(self) -> None:
        """Somewhat more, by somebody who was there before."""
        self.run("market", "post", "Wheelbarrow", "--body", "To lend, too.")
        self.say(self.notes["general"], "message 3", "general 3")
        note = self.home.parent / "barrows.txt"
        note.write_text("A wheelbarrow leans on nothing.")
        self.run("file", "add", str(note))
        self.run("pipeline", "export")

    def show(self) -> dict[str, list[Any]]:
        """Everything that there is, by names and digests."""
        page = self.chat("GET", f"chats/{self.notes['general']}/messages")["messages"]
        landed = self.home / "pipeline" / "landing"
        return {
            "code": [str(Path(accord.__file__).parent)],
            "events": [
                [each["event_id"], each["status"]]
                for each in self.ask("community", "log", "--limit", "1000")["entries"]
            ],
            "posts": [each["event_id"] for each in self.ask("market", "list")["posts"]],
            "files": [each["cid"] for each in self.ask("file", "list")["files"]],
            "said": [each["text"] for each in page],
            "agents": [each["instance"] for each in self.ask("relay", "instances")["instances"]],
            "letters": [
                [each["instance"], each["seq"]]
                for each in self.ask("relay", "deadletters", "list")["letters"]
            ],
            "acts": [
                [each["revision"], each["act"], each["digest"]]
                for each in self.ask("authority", "history")["history"]
            ],
            "instances": [
                each["key"] for each in self.ask("authority", "instance", "list")["instances"]
            ],
            "segments": [
                [str(file.relative_to(landed)), sha256(file.read_bytes()).hexdigest()]
                for file in sorted(landed.rglob("*.parquet"))
            ],
            "sound": [self.ask("store", "check")["ok"], self.ask("community", "verify")["ok"]],
        }

    def hear(self) -> list[str]:
        """What waited for the agent that was away."""
        heard: list[str] = []

        async def take() -> None:
            async def agent(turn: Turn) -> str:
                heard.append(turn.event.text)
                if heard[-1] == "message 3":
                    gateway.stop()
                return f"heard {turn.event.text}"

            gateway = RelayGateway(
                self.address,
                secret=self.notes["secret"],
                gateway_id="gw-echo",
                agent=agent,
                settings=GatewaySettings(inbox="memory", identities=(("webchat", ""),)),
            )
            async with asyncio.timeout(SECONDS):
                await gateway.run()

        asyncio.run(take())
        return heard


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise SystemExit(what)
        time.sleep(0.05)


if __name__ == "__main__":
    home, address, *verbs = sys.argv[1:]
    story = Story(Path(home), address)
    with story.http:
        for verb in verbs:
            print(json.dumps(getattr(story, verb)()), flush=True)
