"""Two stations on one machine, started from the command line, live through what nodes live through.

The stations are real processes; what their owners ask of them goes the way of the commands.
"""

import asyncio
import contextlib
import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.owners import SECONDS, Owner, agree, meet, until, write
from typer.testing import CliRunner

from accord.cli import app
from accord.community.rules import Invite
from accord.kernel.signing import SigningKey
from accord.testing.processes import python_child

SOMEBODY = SigningKey.from_seed(b"s" * 32)
NOBODY = SigningKey.from_seed(b"n" * 32)


@pytest.fixture
def alice(tmp_path: Path) -> Owner:
    return Owner("alice", tmp_path)


@pytest.fixture
def bob(tmp_path: Path) -> Owner:
    return Owner("bob", tmp_path)


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
            answer = json.loads(alice.run("call", "community.invite", "--input", asked))
            invite = Invite.parse(answer["output"]["invite_blob"])
            listed = bob.run("call", "market.list", "--node", "alice", "--input", "{}")
            assert json.loads(listed)["output"]["posts"] == []
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
from accord.community.rules import read_descriptor
from accord.station import load
from accord.station.community import CommunityPlane
from accord.station.run import serve

COUNT = read_descriptor({
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
    announce=lambda ground, _: print(json.dumps({"address": ground.address}), flush=True),
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
