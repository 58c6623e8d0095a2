"""People with homes of their own who run stations as processes, and what they do with them."""

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from accord.cli import app
from accord.community.client import Client
from accord.kernel.signing import SigningKey
from accord.testing.processes import Child, python_child

SECONDS = 40.0


class Owner:
    """Somebody with a home, who starts and stops a station and gives commands."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.home = folder / name
        self.address = ""
        self.bus_port = 0

    @contextmanager
    def up(self, *program: str) -> Iterator[Child]:
        """The station as a process of its own."""
        words = program or ("-m", "accord.cli", "up", "--json")
        env = {
            "ACCORD_HOME": str(self.home),
            "ACCORD_STATION__NAME": self.name,
            "ACCORD_STATION__PORT": "0",
            "ACCORD_COMMUNITY__PORT": str(self.bus_port),
            "ACCORD_COMMUNITY__SYNC_SECONDS": "0.5",
        }
        with python_child(*words, env=env) as child:
            self.address = json.loads(child.read_line(within=120))["address"]
            yield child

    def run(self, *words: str) -> str:
        """A command, which must succeed; what it printed."""
        result = CliRunner().invoke(app, ["community", *words, "--home", str(self.home)])
        if result.exception is not None:
            raise AssertionError(f"{words}: {result.exception} {result.stderr}")
        return result.stdout

    def ask(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    @property
    def digest(self) -> str:
        return str(self.ask("show")["state_digest"])

    @property
    def key(self) -> SigningKey:
        return SigningKey.load(self.home / "keys" / "device.ed25519")

    def client(self, community: str) -> Client:
        key = self.key
        return Client(self.address, key, community, key.id)


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def agree(*owners: Owner) -> None:
    until(lambda: len({owner.digest for owner in owners}) == 1, "they do not come to agree")


def meet(host: Owner, guest: Owner) -> str:
    """Let one found a community and the other join; the community's id."""
    made = host.ask("create", "Our street")
    link = host.run("invite", guest.run("id").strip(), "--name", guest.name).strip()
    joined = guest.ask("join", link)
    assert joined["community_id"] == made["community_id"]
    assert (joined["level"], joined["members"]) == ("member", 2)
    return str(made["community_id"])


def post(number: int) -> dict[str, Any]:
    data = {
        "client_id": f"post {number}",
        "category": "offer",
        "title": f"Ladder {number}",
        "body": "To lend.",
        "tags": [],
        "ttl_seconds": 86400,
    }
    return {"event_type": "market.post.created", "data": data}


async def write(owner: Owner, community: str, numbers: range) -> list[str]:
    """Write posts on a node; the hashes of those that it acknowledged before it went away."""
    written: list[str] = []
    async with owner.client(community) as client:
        for number in numbers:
            try:
                told = await client.post("/node/v1/act", post(number))
            except Exception:  # noqa: BLE001 - however the end of the node shows itself
                break
            written.append(told["hash"])
    return written


def console_answer(owner: Owner, question: str) -> str:
    """The page of the console with the whole answer to a question."""
    link = json.loads(
        CliRunner().invoke(app, ["console", "link", "--home", str(owner.home), "--json"]).stdout
    )["link"]
    with httpx.Client(base_url=owner.address, timeout=60, follow_redirects=True) as http:
        http.post("/console/login", data={"link": link.partition("=")[2]})
        token = re.search(r'name="csrf" value="([^"]+)"', http.get("/console/ask").text)
        assert token is not None
        asked = http.post("/console/ask/ask", data={"csrf": token[1], "q": question})
        return http.get(f"/console/ask/whole?c={asked.url.params['c']}").text
