"""Three nodes in namespaces of their own: an anchor, and two members that only it can reach.

Run as `unshare --map-root-user --net python nat_ground.py FOLDER`; it prints what it found as JSON.
The anchor lives in the outer namespace, which forwards nothing between the two links. As
`nat_ground.py FOLDER NAME` it is one of the nodes, which does what lines on its stdin say.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from accord.capabilities import membership
from accord.community.bus import Call, Frame
from accord.community.client import Client, LocalTransport
from accord.community.dialler import addresses_of
from accord.community.identity import ensure_certificate, fingerprint, read_certificate
from accord.community.node import Node, open_node
from accord.community.peers import Endpoint
from accord.community.rules import Invite, read_descriptor
from accord.community.rules.tunnels import TunnelLimits, relayed_address
from accord.community.settings import NodeSettings
from accord.kernel.clock import SystemClock
from accord.kernel.signing import SigningKey
from accord.station.listener import Listener, bind

SECONDS = 90.0
PORT = 7080
HOSTS = {"anchor": ("10.0.9.1",), "bob": ("10.0.1.2",), "carol": ("10.0.2.2",)}
FRAMES = 200


def described(name: str, **schemas: Any) -> Any:
    common = {"version": "1.0", "stability": "experimental", "trust": "member"}
    named = {"name": f"experimental.{name}", "request_schema": {"type": "object"}}
    return read_descriptor({**named, **common, "idempotent": False, **schemas})


async def echo(call: Call) -> dict[str, Any]:
    return {"output": call.body["input"], "meta": {"caller": call.caller}}


async def count(_call: Call) -> AsyncIterator[Frame]:
    for number in range(FRAMES):
        yield Frame("token", {"number": number, "text": "x" * 5000})
    yield Frame("done", {})


async def live(folder: Path, name: str) -> None:
    """Be one of the nodes until stdin ends."""
    clock, home = SystemClock(), folder / name
    (home / "keys").mkdir(parents=True)
    key = SigningKey.create(home / "keys" / "device.ed25519")
    secret = ensure_certificate(home / "keys")
    shown = fingerprint(read_certificate(secret))
    endpoints = [Endpoint("https", host, PORT, shown) for host in HOSTS[name]]
    settings = NodeSettings(
        display_name=name, sync_seconds=1, relay=TunnelLimits() if name == "anchor" else None
    )
    async with open_node(key, home=home, stores=home, clock=clock, settings=settings) as node:
        node.presence.endpoints = endpoints
        membership.register(node, clock)
        node.bus.registry.register(described("echo", response_schema={"type": "object"}), echo)
        node.bus.registry.register(described("count", stream_schema={"type": "object"}), count)
        with bind("0.0.0.0", PORT) as listening:
            server = Listener(node.application(), certificate=secret)
            serving = asyncio.create_task(server.serve([listening]))
            await server.serving.wait()
            running = asyncio.create_task(node.run(endpoints, None, server.accept))
            print(json.dumps(key.id), flush=True)
            while line := await asyncio.to_thread(sys.stdin.readline):
                print(json.dumps(await do(node, *json.loads(line))), flush=True)
            running.cancel()
            server.should_exit = True
            await asyncio.wait([running, serving])


async def do(node: Node, what: str, *given: Any) -> Any:
    match what:
        case "found":
            return (await node.found("Two homes", {}))["community_id"]
        case "join":
            return (await node.join(given[0]))["level"]
        case "reached":
            found = (await node.peers(given[0]))["peers"]
            return next((each["reached"] for each in found if each["node_id"] == given[1]), None)
        case "call":
            return await call(node, *given)
    transport = LocalTransport(node.application())
    async with Client("http://node", node.key, given[0], node.key.id, transport=transport) as own:
        asked = {"invitee_node_id": given[1], "initial_level": "member"}
        answer = await own.call("community.invite", {}, asked)
        return Invite.parse(answer["output"]["invite_blob"]).link


async def call(node: Node, community: str, other: str) -> Any:
    """Call another node, and read a stream of it."""
    now = node.community(community).log.clock.now()
    known = addresses_of(node.dialler, node.book, node.community(community), other, now=now)
    async with node.links.reach(community, known, other) as link:
        answer = await link.client.call("experimental.echo", {}, {"text": "x" * 500_000})
        frames = [each.event async for each in link.client.stream("experimental.count", {}, {})]
    return {"caller": answer["meta"]["caller"], "frames": len(frames), "by": link.address}


class Process:
    """One of the nodes, in a namespace of its own unless it is the anchor."""

    def __init__(self, folder: Path, name: str, number: int | None = None) -> None:
        self.at: int | None = None
        program = [sys.executable, __file__, str(folder), name]
        if number is not None:
            program = ["unshare", "--net", "sh", "-c", 'read go && exec "$@"', "sh", *program]
        self.process = subprocess.Popen(
            program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if number is not None:
            self._link(number)
        self.id: str = self._read()

    def __call__(self, *words: Any) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self.process.stdout is not None
        while not (line := self.process.stdout.readline()).startswith(('"', "{", "null")):
            assert line, "the node has ended"
        return json.loads(line)

    def _link(self, number: int) -> None:
        self.at, ours = self.process.pid, f"link{number}"
        theirs, own = Path(f"/proc/{self.at}/ns/net"), Path("/proc/self/ns/net")
        until(lambda: theirs.readlink() != own.readlink())
        ip("link", "add", ours, "type", "veth", "peer", "name", "wan", "netns", str(self.at))
        ip("addr", "add", f"10.0.{number}.1/24", "dev", ours)
        ip("link", "set", ours, "up")
        ip("link", "set", "lo", "up", at=self.at)
        ip("addr", "add", f"10.0.{number}.2/24", "dev", "wan", at=self.at)
        ip("link", "set", "wan", "up", at=self.at)
        ip("route", "add", HOSTS["anchor"][0], "via", f"10.0.{number}.1", at=self.at)
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def can_reach(self, host: str) -> bool:
        """Whether this node's namespace has a way to an address."""
        looked = ["nsenter", "-t", str(self.at), "-n", "ip", "route", "get", host]
        return subprocess.run(looked, capture_output=True, check=False).returncode == 0

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def ip(*words: str, at: int | None = None) -> None:
    inside = [] if at is None else ["nsenter", "-t", str(at), "-n"]
    subprocess.run([*inside, "ip", *words], check=True)


def until(is_so: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := is_so()):
        assert time.monotonic() < deadline, "it never came to this"
        time.sleep(0.2)
    return found


def main(folder: Path) -> None:
    ip("link", "set", "lo", "up")
    ip("addr", "add", f"{HOSTS['anchor'][0]}/32", "dev", "lo")
    anchor = Process(folder, "anchor")
    bob, carol = Process(folder, "bob", 1), Process(folder, "carol", 2)
    community = anchor("found")
    for each in (bob, carol):
        each("join", anchor("invite", community, each.id))

    def relayed(who: Process, other: Process) -> bool:
        found = who("reached", community, other.id)
        return bool(found == {"how": "relayed", "anchor": anchor.id})

    until(lambda: relayed(carol, bob))
    until(lambda: relayed(bob, carol))
    print(
        json.dumps(
            {
                "has_route": carol.can_reach("10.0.1.2") or bob.can_reach("10.0.2.2"),
                "called": carol("call", community, bob.id),
                "caller": carol.id,
                "address": relayed_address(anchor.id, bob.id),
                "direct": carol("reached", community, anchor.id)["how"],
            }
        )
    )
    for each in (bob, carol, anchor):
        each.end()


if len(sys.argv) > 2:
    asyncio.run(live(Path(sys.argv[1]), sys.argv[2]))
else:
    main(Path(sys.argv[1]))
