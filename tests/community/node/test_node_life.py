"""How nodes found, join, find each other, and come to agree."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from accord.community.client import Client, LocalTransport
from accord.community.errors import Code, CommunityError
from accord.community.node import open_node
from accord.community.peers import Announcement, Endpoint, Hint, LocalNetwork, announced
from accord.community.settings import NodeSettings
from accord.kernel import canonical


async def two(street: Any) -> tuple[Any, Any, str]:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    return alice, bob, community


async def test_two_nodes_with_other_events_at_equal_heads_converge(street: Any) -> None:
    alice, bob, community = await two(street)
    await bob.node.sync(community)
    await alice.post(community, 1)
    await bob.post(community, 2)
    heads = []
    for house in (alice, bob):
        async with house.client(community, house) as client:
            heads.append(await client.get("/sync/v1/heads"))
    assert heads[0] == heads[1]
    assert await alice.state(community) != await bob.state(community)
    (met,) = (await alice.node.sync(community))["met"]
    assert met["received"] == 1
    assert await alice.state(community) == await bob.state(community)
    assert len(alice.in_(community).state.content.posts) == 2


async def test_a_joiner_has_the_whole_log_and_is_known_where_it_joined(street: Any) -> None:
    alice, bob, community = await two(street)
    assert await alice.state(community) == await bob.state(community)
    assert alice.in_(community).level_of(bob.id).text == "member"
    assert (await bob.node.status())["communities"][0]["members"] == 2


async def test_joining_again_changes_nothing(street: Any) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    link = await street.invite(alice, bob.id, community)
    first = await bob.node.join(link)
    before = await bob.state(community)
    assert await bob.node.join(link) == first
    assert await bob.state(community) == before


async def test_an_invite_that_the_log_does_not_know_admits_nobody(street: Any) -> None:
    alice, bob, eve = [await street.house(name) for name in ("alice", "bob", "eve")]
    community = await street.found(alice)
    elsewhere = await street.found(eve)
    link = await street.invite(eve, bob.id, elsewhere)
    payload = json.loads(canonical.encode(_read(link)))
    forged = _forge(eve.key, {**payload, "community_id": community})
    with pytest.raises(CommunityError) as refused:
        await bob.node.join(forged)
    assert refused.value.code is Code.NOT_FOUND
    assert (await bob.node.status())["communities"] == []
    await street.admit(alice, bob, community)
    assert bob.in_(community).is_member


def _read(link: str) -> dict[str, Any]:
    from accord.community.rules import Invite

    return Invite.parse(link).payload()


def _forge(key: Any, payload: dict[str, Any]) -> str:
    from accord.community.rules import Invite

    return Invite.make(
        key,
        community_id=payload["community_id"],
        community_name=payload["community_name"],
        invitee_node_id=payload["invitee_node_id"],
        initial_level="anchor",
        bootstrap_endpoints=tuple(payload["bootstrap_endpoints"]),
        expires_at=payload["expires_at"],
    ).link


async def test_a_name_or_policy_that_cannot_be_leaves_no_key_behind(
    street: Any, tmp_path: Path
) -> None:
    alice = await street.house("alice")
    for name, policy in (("", {}), ("x", {"min_signatures_to_revoke": 0}), ("x", {"wings": 2})):
        with pytest.raises(CommunityError) as refused:
            await alice.node.found(name, policy)
        assert refused.value.code is Code.BAD_REQUEST
    assert not (tmp_path / "alice" / "communities").exists()


async def test_a_node_that_moved_is_found_by_what_it_logged(street: Any) -> None:
    alice, bob, community = await two(street)
    await alice.node.sync(community)
    moved = Endpoint("http", "127.0.0.1", bob.node.presence.endpoints[0].port)
    with socket.create_server(("127.0.0.1", 0)) as gone:
        away = Endpoint("http", "127.0.0.1", gone.getsockname()[1])
    street.opened.enter_context(announced(away.port))
    # Alice met Bob at a place where nobody is now; the log has the new one.
    bob.node.presence.endpoints = (away,)
    alice.node.book.admit(
        bob.node.presence.manifest(bob.in_(community)),
        community,
        is_member=True,
        now=street.clock.now(),
    )
    bob.node.presence.endpoints = (moved,)
    await alice.node.links.close()
    await bob.post(community)
    (met,) = (await alice.node.sync(community))["met"]
    assert met["received"] == 1
    assert alice.node.book.peer(community, bob.id).failures == 0


async def test_news_travels_by_itself_while_nodes_run(street: Any) -> None:
    alice, bob, community = await two(street)
    arrived = asyncio.Event()
    bob.in_(community).log.subscribe(lambda _: arrived.set())
    running = [
        asyncio.create_task(house.node.run(house.node.presence.endpoints)) for house in (alice, bob)
    ]
    try:
        for number in range(3):
            arrived.clear()
            told = await alice.post(community, number)
            async with asyncio.timeout(30):
                while not await _knows(bob, community, told["hash"]):
                    await arrived.wait()
                    arrived.clear()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _knows(house: Any, community: str, name: str) -> bool:
    from accord.community import queries

    try:
        await queries.find_events(house.in_(community), name)
    except CommunityError:
        return False
    return True


async def test_a_node_without_multicast_runs_all_the_same(
    street: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise CommunityError(Code.PARTITION, "multicast DNS is not available")

    monkeypatch.setattr(LocalNetwork, "start", refuse)
    folder = street.path / "quiet"
    folder.mkdir()
    settings = NodeSettings(discovery=True)
    async with open_node(
        street.key("quiet"),
        home=folder,
        stores=folder / "stores",
        clock=street.clock,
        settings=settings,
    ) as node:
        running = asyncio.create_task(node.run([Endpoint("http", "a-name", 7080)]))
        transport = LocalTransport(node.application())
        async with httpx.AsyncClient(base_url="http://node", transport=transport) as http:
            async with asyncio.timeout(30):
                while (await http.get("/ready")).status_code != httpx.codes.OK:
                    assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def need_multicast() -> None:
    """Skip where the loopback interface passes no multicast on."""
    group = ("224.0.0.251", 5353)
    member = socket.inet_aton(group[0]) + socket.inet_aton("127.0.0.1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as heard:
        try:
            heard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            heard.bind(("", 0))
            heard.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
            heard.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, member[4:])
            heard.settimeout(2)
            heard.sendto(b"hello", (group[0], heard.getsockname()[1]))
            heard.recv(16)
        except OSError:
            pytest.skip("this machine has no multicast on its loopback interface")


async def test_a_hint_from_the_local_network_leads_to_a_meeting(street: Any) -> None:
    need_multicast()
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    link = await street.invite(alice, bob.id, community)
    # Bob joins without saying where he is, so that only the local network tells.
    (place,), bob.node.presence.endpoints = bob.node.presence.endpoints, ()
    await bob.node.join(link)
    assert (await alice.node.sync(community))["met"] == []
    bob.node.presence.endpoints = (place,)
    await bob.post(community)

    noticed = asyncio.Event()

    def notice(hint: Hint) -> None:
        alice.node.book.hint(hint, now=street.clock.now())
        noticed.set()

    listening = LocalNetwork(notice, interfaces=["127.0.0.1"])
    speaking = LocalNetwork(lambda _: None, interfaces=["127.0.0.1"])

    def announcement(house: Any) -> Announcement:
        port = house.node.presence.endpoints[0].port
        return Announcement(house.id, (community,), ("127.0.0.1",), port, "http")

    try:
        await listening.start(announcement(alice))
        await speaking.start(announcement(bob))
        async with asyncio.timeout(30):
            while not alice.node.book.hints(now=street.clock.now()):
                await noticed.wait()
                noticed.clear()
    finally:
        await speaking.close()
        await listening.close()
    (met,) = (await alice.node.sync(community))["met"]
    assert met["received"] == 1
    assert await alice.state(community) == await bob.state(community)


async def test_long_work_is_asked_for_until_it_is_done(street: Any, tmp_path: Path) -> None:
    alice, bob, community = await two(street)
    for number in range(20):
        await alice.post(community, number)
    file = tmp_path / "log.jsonl"

    async def worked(client: Client, **body: Any) -> Any:
        while True:
            told = await client.post("/node/v1/work", body)
            if told["result"] is not None:
                return told

    async with alice.client(community, alice) as client:
        told = await worked(client, kind="export", path=str(file))
        assert told["result"] == {"events": told["done"]}
        assert told["done"] >= 22
        assert (await worked(client, kind="verify"))["result"]["ok"]
    async with bob.client(community, bob) as client:
        told = await worked(client, kind="import", path=str(file))
        assert told["result"]["accepted"] == 20
    assert await alice.state(community) == await bob.state(community)


async def test_work_that_is_stopped_at_any_moment_leaves_no_half_a_file(
    street: Any, tmp_path: Path
) -> None:
    alice = await street.house("alice")
    community = await street.found(alice)
    for turns in range(24):
        file = tmp_path / f"{turns}.jsonl"
        asking = asyncio.create_task(alice.node.jobs.ask(community, "export", str(file)))
        for _ in range(turns):
            await asyncio.sleep(0)
        await alice.node.jobs.close()
        await asyncio.gather(asking, return_exceptions=True)
    left = await asyncio.to_thread(lambda: [path.name for path in tmp_path.iterdir()])
    assert [name for name in left if name.startswith(".")] == []


async def test_the_owner_is_told_of_changes_by_their_number(street: Any) -> None:
    anna, ben = await street.house("anna"), await street.house("ben")
    community = await street.found(anna)
    await street.admit(anna, ben, community)
    async with anna.client(community, anna) as own:
        number = (await own.post("/node/v1/changes", {}))["number"]
        now = {"after": number, "seconds": 0}
        assert await own.post("/node/v1/changes", now) == {"number": number, "event_types": []}
        waiting = asyncio.create_task(
            own.post("/node/v1/changes", {"after": number, "seconds": 30})
        )
        await anna.post(community)
        told = {"number": number + 1, "event_types": ["market.post.created"]}
        assert await waiting == told
        assert await own.post("/node/v1/changes", now) == told
        for unknown in (0, number + 9):  # of another run, or too long ago
            asked = {"after": unknown, "seconds": 0}
            assert (await own.post("/node/v1/changes", asked))["event_types"] is None
        for wrong in ({"after": -1, "seconds": 0}, {"after": 1}, {"after": 1, "seconds": 61}):
            with pytest.raises(CommunityError, match="whole number"):
                await own.post("/node/v1/changes", wrong)
    async with ben.client(community, anna) as member:
        with pytest.raises(CommunityError, match="only the node's owner"):
            await member.post("/node/v1/changes", {})
