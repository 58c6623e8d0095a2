"""Two stations on one machine, started from the command line, live through what nodes live through.

The stations are real processes; what their owners ask of them goes the way of the commands.
"""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accord.cli import app
from accord.community.client import Client
from accord.community.envelope.invites import Invite
from accord.kernel.signing import SigningKey
from accord.testing.faults import Child, python_child

SOMEBODY = SigningKey.from_seed(b"s" * 32)
NOBODY = SigningKey.from_seed(b"n" * 32)
SECONDS = 40.0


class Owner:
    """Somebody with a home, who starts and stops a station and gives commands."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.home = folder / name
        self.address = ""

    @contextmanager
    def up(self, *program: str) -> Iterator[Child]:
        """The station as a process of its own."""
        words = program or ("-m", "accord.cli", "up", "--json", "--port", "0")
        env = {
            "ACCORD_HOME": str(self.home),
            "ACCORD_STATION__NAME": self.name,
            "ACCORD_STATION__PORT": "0",
            "ACCORD_COMMUNITY__PORT": "0",
            "ACCORD_COMMUNITY__SYNC_SECONDS": "0.5",
        }
        with python_child(*words, env=env) as child:
            self.address = json.loads(child.read_line())["address"]
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


@pytest.fixture
def alice(tmp_path: Path) -> Owner:
    return Owner("alice", tmp_path)


@pytest.fixture
def bob(tmp_path: Path) -> Owner:
    return Owner("bob", tmp_path)


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


async def hear(listener: Owner, writer: Owner, community: str) -> Any:
    """What somebody hears on the own node when another writes a post on theirs."""
    async with listener.client(community) as client:
        heard = client.subscribe("marketplace.post.created", 0)
        async with contextlib.aclosing(heard):  # type: ignore[type-var]
            listening = asyncio.ensure_future(anext(heard))
            await write(writer, community, range(1))
            _, told = await asyncio.wait_for(listening, SECONDS)
            return told


def test_two_nodes_meet_call_listen_part_and_converge(alice: Owner, bob: Owner) -> None:
    with ExitStack() as stations:
        stations.enter_context(alice.up())
        with bob.up() as station:
            community = meet(alice, bob)
            agree(alice, bob)
            assert {each["display_name"] for each in bob.ask("members")["members"]} == {
                "alice",
                "bob",
            }

            asked = json.dumps({"invitee_node_id": SOMEBODY.id})
            answer = json.loads(
                bob.run("call", "community.invite", "--node", "alice", "--input", asked)
            )
            invite = Invite.parse(answer["output"]["invite_blob"])
            assert invite.inviter_node_id == alice.run("id").strip()
            assert [each["invitee"] for each in alice.ask("show")["invites"]] == [SOMEBODY.id]
            assert asyncio.run(hear(bob, alice, community))["data"]["title"] == "Ladder 0"

            station.terminate()
            assert station.wait() == 0
            station.assert_gone()

        # Alice goes on alone; so does Bob, by a command that needs no station.
        alice.ask("promote", "bob", "trusted")
        assert len(asyncio.run(write(alice, community, range(1, 5)))) == 4
        asked = json.dumps({"invitee_node_id": NOBODY.id})
        assert "invite_blob" in bob.run("call", "community.invite", "--input", asked)
        assert bob.ask("show")["level"] == "member"
        assert alice.digest != bob.digest

        with bob.up() as station:
            agree(alice, bob)
            assert bob.ask("show")["level"] == "trusted"
            # Bob's station has another port now, and Alice finds it.
            assert len(asyncio.run(write(bob, community, range(5, 8)))) == 3
            agree(alice, bob)
            (peer,) = alice.ask("peers")["peers"]
            until(lambda: alice.ask("peers")["peers"][0]["failures"] == 0, "Bob is not found")
            assert peer["display_name"] == "bob"
            for owner in (alice, bob):
                assert owner.ask("verify")["ok"]
                assert owner.ask("log", "--refused")["entries"] == []


def test_a_node_killed_in_the_middle_of_writing_loses_nothing_that_it_acknowledged(
    alice: Owner, bob: Owner
) -> None:
    with bob.up():
        with alice.up() as station:
            community = meet(alice, bob)

            with ThreadPoolExecutor(1) as beside:
                writing = beside.submit(asyncio.run, write(alice, community, range(10_000)))
                before = bob.ask("show")["head_lamport"]
                until(lambda: bob.ask("show")["head_lamport"] > before + 3, "nothing comes over")
                station.kill()
                written = writing.result(SECONDS)
            assert written
        with alice.up():
            for owner in (alice, bob):
                for wanted in (written[0], written[-1]):
                    until(lambda: _knows(owner, wanted), "an acknowledged event is lost")  # noqa: B023
            asyncio.run(write(alice, community, range(20_000, 20_003)))
            agree(alice, bob)
            for owner in (alice, bob):
                about = owner.ask("show")
                assert about["equivocations"] == []
                assert about["counts"]["accepted"] >= len(written) + 3
                assert owner.ask("verify")["ok"]


def _knows(owner: Owner, wanted: str) -> bool:
    result = CliRunner().invoke(
        app, ["community", "event", wanted, "--json", "--home", str(owner.home)]
    )
    return result.exit_code == 0


# A station whose node counts for whoever asks, and notes when it is told to stop counting.
COUNTING = """
import asyncio, json, sys
from pathlib import Path
from accord.community.bus import Frame
from accord.community.envelope.schemas import describe
from accord.station import load
from accord.station.community import CommunityPlane
from accord.station.run import serve

COUNT = describe({
    "name": "experimental.count", "version": "1.0", "stability": "experimental",
    "trust": "member", "idempotent": False, "request_schema": {"type": "object"},
    "stream_schema": {"type": "object"},
})

async def count(call):
    try:
        for number in range(call.body["input"]["upto"]):
            yield Frame("progress", {"current": number, "total": call.body["input"]["upto"]})
            if number > 2 and call.body["input"].get("forever"):
                await asyncio.sleep(3600)
        yield Frame("done", {"counted": number + 1})
    finally:
        Path(load().home, "ended").touch()

def offer(node, clock):
    node.bus.registry.register(COUNT, count)

serve(
    load(),
    announce=lambda ground: print(json.dumps({"address": ground.address}), flush=True),
    assemble=lambda ground: [
        CommunityPlane(ground.settings, ground.key, ground.clock, more=(offer,))
    ],
)
"""
# However this test was started, Ctrl-C must reach the command.
INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from accord.cli import main
main()
"""


def test_a_stream_comes_frame_by_frame_and_ctrl_c_ends_it_on_the_other_node(
    alice: Owner, bob: Owner
) -> None:
    words = ["call", "experimental.count", "--node", "alice", "--stream", "--input"]
    ended = alice.home / "ended"
    with alice.up("-c", COUNTING), bob.up():
        meet(alice, bob)
        frames = [json.loads(line) for line in bob.run(*words, '{"upto": 3}').splitlines()]
        assert [frame["event"] for frame in frames] == ["progress"] * 3 + ["done"]
        assert frames[-1]["data"] == {"counted": 3}
        until(ended.exists, "the stream does not end")
        ended.unlink()

        endless = json.dumps({"upto": 100, "forever": True})
        command = ["-c", INTERRUPTIBLE, "community", *words, endless, "--home", str(bob.home)]
        with python_child(*command) as listening:
            assert json.loads(listening.read_line())["data"]["current"] == 0
            assert json.loads(listening.read_line())["data"]["current"] == 1
            assert not ended.exists()
            os.kill(listening.pid, signal.SIGINT)
            assert listening.wait() == 130
        until(ended.exists, "the other node goes on")
