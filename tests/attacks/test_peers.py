"""Members and strangers whose addresses this node dials, and what they try with its sync."""

import asyncio
import gzip
import socket
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.community.node.conftest import street  # noqa: F401 - a fixture

from accord.community import dialler, queries
from accord.community.dialler import Dialler
from accord.community.errors import Code, CommunityError
from accord.community.peers import Endpoint, announced
from accord.community.rules import formats
from accord.community.sync import sync_with

BOMB = gzip.compress(gzip.compress(bytes(64 << 20)))
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """A server that answers as it likes; its port."""
    tasks: set[asyncio.Task[Any]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        with announced(port):  # as an attacker's own node on this machine
            yield port
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def explode(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer whatever is asked with a few bytes that stand for 64 MiB."""
    await reader.readuntil(b"\r\n\r\n")
    packed = f"Content-Encoding: gzip, gzip\r\nContent-Length: {len(BOMB)}\r\n\r\n"
    writer.write(HEAD + packed.encode() + BOMB)
    await writer.drain()


@contextmanager
def unexpanded() -> Iterator[None]:
    """Check that nowhere near the size of the unpacked bomb is allocated meanwhile."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


async def move(member: Any, community: str, port: int) -> None:
    """Let a member log that it listens at another port."""
    endpoint = Endpoint("http", "127.0.0.1", port)
    member.node.presence.endpoints = (endpoint,)
    manifest = dict(member.node.presence.manifest(member.in_(community)))
    await member.node.act(community, "node.manifest.updated", {"manifest": manifest})
    await member.node.sync(community)


async def knows(house: Any, community: str, name: str) -> None:
    """Return once a node has an event."""
    arrived = asyncio.Event()
    end = house.in_(community).log.subscribe(lambda _: arrived.set())
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    await queries.find_events(house.in_(community), name)
                except CommunityError:
                    await arrived.wait()
                    arrived.clear()
                else:
                    return
    finally:
        end()


async def test_an_endpoint_that_drips_bytes_does_not_stop_sync_with_others(
    street: Any,  # noqa: F811
) -> None:
    alice, bob, mallory = [await street.house(name) for name in ("alice", "bob", "mallory")]
    community = await street.found(alice)
    for house in (bob, mallory):
        await street.admit(alice, house, community)
    held, left = asyncio.Event(), asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + b"Content-Length: 60000\r\n\r\n")
        try:
            while True:
                writer.write(b" ")
                await writer.drain()
                held.set()
                await asyncio.sleep(0.05)
        finally:
            left.set()

    async with listening(drip) as port:
        await move(mallory, community, port)
        running = asyncio.create_task(alice.node.run(alice.node.presence.endpoints))
        try:
            await held.wait()
            for number in range(3):
                told = await alice.post(community, number)
                await knows(bob, community, told["hash"])
            assert not left.is_set()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await left.wait()


async def test_a_meeting_whose_replies_drip_ends_by_one_deadline(
    street: Any,  # noqa: F811
) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    bytes_sent = 0

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal bytes_sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + b"Content-Length: 60000\r\n\r\n")
        while True:
            writer.write(b" ")
            await writer.drain()
            bytes_sent += 1
            await asyncio.sleep(0.01)

    async with listening(drip) as port:
        bob.url = f"http://127.0.0.1:{port}"
        async with alice.client(community, bob) as client:
            with pytest.raises(CommunityError) as refused:
                await sync_with(client, alice.in_(community).holdings, seconds=0.3)
            assert refused.value.code is Code.TIMEOUT
    assert bytes_sent > 1


@pytest.mark.parametrize("year", ["2020", "9" * 20])
async def test_a_date_that_is_none_does_not_end_the_rounds_of_a_node(
    street: Any,  # noqa: F811
    year: str,
) -> None:
    alice, mallory = await street.house("alice"), await street.house("mallory")
    community = await street.found(alice)
    await street.admit(alice, mallory, community)

    async def dated(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        date = f"Date: Mon, 01 Jan {year} 00:00:00 GMT\r\n"
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n" + date.encode() + b"\r\n")
        await writer.drain()

    async with listening(dated) as port:
        await move(mallory, community, port)
        (met,) = (await alice.node.sync(community))["met"]
        assert met["error"] == "not_found"


async def test_a_compressed_manifest_is_not_unpacked(street: Any) -> None:  # noqa: F811
    alice = await street.house("alice")
    community = await street.found(alice)
    async with listening(explode) as port:
        with unexpanded(), pytest.raises(CommunityError, match="compressed") as refused:
            await alice.node.dialler.dial(f"http://127.0.0.1:{port}", community, street.opened)
        assert refused.value.code is Code.BAD_REQUEST


async def test_a_compressed_answer_is_not_unpacked_before_its_signature_is_checked(
    street: Any,  # noqa: F811
) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    async with listening(explode) as port:
        bob.url = f"http://127.0.0.1:{port}"
        async with alice.client(community, bob) as client:
            for asking in (
                client.get("/sync/v1/heads"),
                client.post_bytes("/sync/v1/reconcile", b"x"),
                client.call("experimental.echo"),
                anext(client.stream("experimental.echo")),
            ):
                with unexpanded(), pytest.raises(CommunityError, match="compressed"):
                    await asking


def signed(member: Any, community: str, host: str, port: int) -> dict[str, Any]:
    """A manifest with any host, which the node itself would not sign."""
    made = dict(member.node.presence.manifest(member.in_(community)))
    members = {name: value for name, value in made.items() if name != "signature"}
    members["endpoints"] = [{"transport": "http", "host": host, "port": port}]
    signature = member.key.sign_bytes(formats.signed_bytes(members))
    return {**members, "signature": formats.write_signature(signature)}


NO_HOSTS = [
    "::ffff:127.0.0.1]:{port}/admin/delete?x=[",
    "127.0.0.1:{port}/admin/delete?x=",
    "127.0.0.1/admin#",
    "user@127.0.0.1",
    "user:password@127.0.0.1",
    "[::1]",
    "127.1",
    "2130706433",
    "0x7f000001",
    "127.0.0.1%00.example.org",
    "fe80::1%lo",
    "127.0.0.1 ",
    "127.0.0.1\\admin",
    "127.0.0.1\r\nHost: admin",
    "\uff11\uff12\uff17.0.0.1",
    "localhost.",
    "-",
    "a..b",
]
"""What is no DNS name and no IP address, but would be part of a URL."""

INNER_HOSTS = [
    "127.0.0.1",
    "127.255.255.254",
    "localhost",
    "LocalHost",
    "0.0.0.0",
    "::1",
    "::",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "2002:7f00:1::",
    "169.254.169.254",
    "fd00:ec2::254",
    "fe80::1",
    "255.255.255.255",
    "224.0.0.1",
]
"""Names and addresses of this machine and of what only machines beside it should reach."""


@pytest.mark.parametrize("hosts", [NO_HOSTS, INNER_HOSTS])
async def test_no_member_makes_a_node_knock_on_its_own_machine(
    street: Any,  # noqa: F811
    hosts: list[str],
) -> None:
    alice, mallory = await street.house("alice"), await street.house("mallory")
    community = await street.found(alice)
    await street.admit(alice, mallory, community)
    knocks: list[bytes] = []

    async def notice(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        knocks.append(await reader.read(100))

    server = await asyncio.start_server(notice, None, 0, family=socket.AF_INET)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for host in hosts:
            manifest = signed(mallory, community, host.format(port=port), port)
            await mallory.node.act(community, "node.manifest.updated", {"manifest": manifest})
            await mallory.node.sync(community)
            (met,) = (await alice.node.sync(community))["met"]
            assert met["error"] in ("bad_request", "partition"), (host, met)
    assert knocks == []


@pytest.mark.parametrize("host", NO_HOSTS)
async def test_a_manifest_with_a_host_that_is_none_is_not_admitted(
    street: Any,  # noqa: F811
    host: str,
) -> None:
    alice, mallory = await street.house("alice"), await street.house("mallory")
    community = await street.found(alice)
    await street.admit(alice, mallory, community)
    known = alice.node.book.peers(community)
    with pytest.raises(CommunityError, match="host is a DNS name or an IP address") as refused:
        alice.node.book.admit(
            signed(mallory, community, host, 7080),
            community,
            is_member=True,
            now=street.clock.now(),
        )
    assert refused.value.where == "/endpoints/0/host"
    assert alice.node.book.peers(community) == known
    mallory.node.presence.endpoints = (Endpoint("http", host, 7080),)
    with pytest.raises(CommunityError, match="host is a DNS name"):
        mallory.node.presence.manifest(mallory.in_(community))


@pytest.mark.parametrize(
    "host", ["10.1.2.3", "172.20.0.1", "192.168.1.4", "100.64.0.9", "fd12::5", "8.8.8.8"]
)
async def test_members_in_private_and_public_networks_are_dialled(
    street: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    host: str,
) -> None:
    alice = await street.house("alice")
    community = await street.found(alice)
    probed: list[str] = []

    async def probe(host: str, port: int, *, name: str) -> bytes:
        probed.append(host)
        raise CommunityError(Code.PARTITION, "nothing is sent in a test")

    monkeypatch.setattr(dialler, "probe_certificate", probe)
    with pytest.raises(CommunityError) as refused:
        await alice.node.dialler.dial(Endpoint("https", host, 7080).url, community, street.opened)
    assert refused.value.code is Code.PARTITION
    assert probed == [host]


async def test_a_peer_that_the_operator_configured_is_dialled_on_this_machine(
    street: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))  # no node announces itself there
    told = Dialler(bob.key, street.clock, plain_http=False, peers=[f"{alice.url}/"])
    client, _ = await told.dial(alice.url, community, street.opened)
    assert client.node_id == alice.id
    untold = Dialler(bob.key, street.clock, plain_http=False)
    with pytest.raises(CommunityError, match="peers") as refused:
        await untold.dial(alice.url, community, street.opened)
    assert refused.value.code is Code.PARTITION


async def test_a_name_is_resolved_once_and_what_was_judged_is_dialled(
    street: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    answers = [[ip_address("127.0.0.1")], [ip_address("127.0.0.2")]]

    async def resolve(_host: str, _port: int) -> Any:
        return answers.pop(0)

    monkeypatch.setattr(dialler, "resolve", resolve)
    address = alice.url.replace("127.0.0.1", "rebinding.example.org")
    client, _ = await bob.node.dialler.dial(address, community, street.opened)
    assert await client.get("/sync/v1/heads")
    assert len(answers) == 1
