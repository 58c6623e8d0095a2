"""The communities of a node: which is current, leaving one, being called something, coming back."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from accord.community.communities import CommunityFolders
from accord.community.errors import Code, CommunityError
from accord.community.join import name_in_community
from accord.community.node import open_node
from accord.community.rules import display_id
from accord.community.settings import NodeSettings
from accord.kernel.signing import SigningKey

SOMEBODY = SigningKey.from_seed(b"s" * 32)


async def two(street: Any) -> tuple[Any, Any, str]:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    return alice, bob, community


async def current(house: Any) -> tuple[str | None, list[str]]:
    status = await house.node.status()
    return status["current"], [each["community_id"] for each in status["communities"]]


async def test_what_is_joined_last_is_the_current_community_until_another_is_chosen(
    street: Any,
) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    own = await street.found(bob)
    assert await current(bob) == (own, [own])
    community = await street.found(alice)
    await street.admit(alice, bob, community)
    assert await current(bob) == (community, [community, own])
    await bob.node.use(own)
    assert await current(bob) == (own, [own, community])
    assert bob.node.current.community_id == own
    with pytest.raises(CommunityError) as refused:
        await bob.node.use(SOMEBODY.id)
    assert refused.value.code is Code.NOT_FOUND


async def test_a_home_that_never_chose_has_its_largest_community_as_the_current_one(
    street: Any,
) -> None:
    alice, bob, community = await two(street)
    small = await street.found(alice)
    (street.path / "alice" / "communities" / ".current").unlink()
    async with open_node(
        alice.key,
        home=street.path / "alice",
        stores=street.path / "alice" / "stores",
        clock=street.clock,
    ) as again:
        status = await again.status()
    assert [each["community_id"] for each in status["communities"]] == [community, small]
    assert bob.id != alice.id


async def test_who_leaves_is_no_member_for_anybody_and_serves_nobody(street: Any) -> None:
    alice, bob, community = await two(street)
    told = await bob.node.leave(community)
    assert told == {"community_id": community, "told": 1}
    assert not alice.in_(community).level_of(bob.id)
    assert (await bob.node.status())["communities"] == []
    with pytest.raises(CommunityError) as refused:
        await bob.post(community)
    assert refused.value.code is Code.NOT_FOUND
    async with alice.client(community, bob) as client:
        with pytest.raises(CommunityError):
            await client.call("experimental.echo", {}, {"text": "hello"})
    # Neither is it there again after the next start, nor counted as lost.
    async with open_node(
        bob.key, home=street.path / "bob", stores=street.path / "bob" / "stores", clock=street.clock
    ) as again:
        status = await again.status()
    assert (status["communities"], status["lost"]) == ([], [])


async def test_who_left_comes_back_by_a_new_invite_and_goes_on_with_its_chain(street: Any) -> None:
    alice, bob, community = await two(street)
    await bob.post(community, 1)
    await bob.node.leave(community)
    await street.admit(alice, bob, community)
    assert bob.in_(community).is_member
    await bob.post(community, 2)
    await bob.node.sync(community)
    assert await alice.state(community) == await bob.state(community)
    assert alice.in_(community).state.chains[bob.id].is_whole


async def test_nobody_leaves_unnoticed_unless_that_is_meant(street: Any) -> None:
    _alice, bob, community = await two(street)
    bob.node.dialler.connect = _away
    with pytest.raises(CommunityError) as refused:
        await bob.node.leave(community)
    assert refused.value.code is Code.PARTITION
    assert bob.in_(community).is_member
    assert (await bob.node.leave(community, untold=True))["told"] == 0
    assert (await bob.node.status())["communities"] == []


async def _away(*_words: Any, **_more: Any) -> Any:
    raise CommunityError(Code.PARTITION, "nobody is there")


def test_a_community_folder_that_is_being_made_is_not_looked_into(tmp_path: Path) -> None:
    """It is renamed at any moment: a look into it once ended a station's start."""
    folders = CommunityFolders(tmp_path)
    assert (folders.joined(), folders.are_new) == (frozenset(), True)
    for name in (".77ec7964655aca9f", "ed25519_AbCd"):
        (tmp_path / "communities" / name).mkdir(parents=True)
        (tmp_path / "communities" / name / "signed.x").touch()
    assert (folders.joined(), folders.are_new) == (frozenset({"ed25519_AbCd"}), False)


def named(**facts: Any) -> str:
    known = {"wanted": None, "own": "station", "is_named": False, "proposed": None, "others": ()}
    return name_in_community(SOMEBODY.id, **{**known, **facts})


def test_the_inviters_name_is_proposed_and_the_joiner_has_the_last_word() -> None:
    assert named() == "station"
    assert named(proposed="kitchen") == "kitchen"
    assert named(proposed="kitchen", own="attic", is_named=True) == "attic"
    assert named(proposed="kitchen", own="attic", is_named=True, wanted="roof") == "roof"


def test_a_name_that_nobody_chose_is_not_anothers() -> None:
    group = display_id(SOMEBODY.id).partition("-")[0]
    assert named(others=["Station"]) == f"station {group}"
    assert named(proposed="kitchen", others=["kitchen"]) == f"kitchen {group}"
    # The first letter of the other one is Cyrillic.
    assert named(proposed="ann", others=["\N{CYRILLIC SMALL LETTER A}nn"]) == f"ann {group}"
    assert named(wanted="kitchen", others=["kitchen"]) == "kitchen"


async def invited(street: Any, host: Any, guest: str, community: str, name: str) -> str:
    from accord.community.client import Client, LocalTransport
    from accord.community.rules import Invite

    transport = LocalTransport(host.node.application())
    async with Client(
        "http://node", host.key, community, host.id, transport=transport, clock=street.clock
    ) as client:
        answer = await client.call(
            "community.invite", {}, {"invitee_node_id": guest, "display_name": name}
        )
    return Invite.parse(answer["output"]["invite_blob"]).link


async def test_a_joiner_is_called_what_the_inviter_proposed_and_may_change_it(
    street: Any,
) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    link = await invited(street, alice, bob.id, community, "kitchen")
    assert (await bob.node.join(link))["own_name"] == "kitchen"
    manifests = alice.in_(community).state.content.manifests
    assert manifests[bob.id].display_name == "kitchen"
    await bob.node.rename(community, "Küche von Bob")
    await bob.node.sync(community)
    assert alice.in_(community).state.content.manifests[bob.id].display_name == "Küche von Bob"
    async with open_node(
        bob.key, home=street.path / "bob", stores=street.path / "bob" / "stores", clock=street.clock
    ) as again:
        assert (await again.status())["communities"][0]["own_name"] == "Küche von Bob"
    for bad in ("", " kitchen", "x" * 121, "kit\nchen", "kit\u202echen"):
        with pytest.raises(CommunityError) as refused:
            await bob.node.rename(community, bad)
        assert refused.value.code is Code.BAD_REQUEST


async def test_a_joiner_that_names_itself_is_called_so(street: Any) -> None:
    alice, bob = await street.house("alice"), await street.house("bob")
    community = await street.found(alice)
    link = await invited(street, alice, bob.id, community, "kitchen")
    assert (await bob.node.join(link, "attic"))["own_name"] == "attic"
    assert alice.in_(community).state.content.manifests[bob.id].display_name == "attic"


def lose(home: Path) -> None:
    shutil.rmtree(home / "stores")


async def test_a_log_that_was_lost_is_fetched_from_a_member_and_nothing_is_signed_twice(
    street: Any,
) -> None:
    alice, bob, community = await two(street)
    for number in range(5):
        await bob.post(community, number)
    await bob.node.sync(community)
    home = street.path / "copy"
    shutil.copytree(street.path / "bob", home)
    lose(home)
    settings = NodeSettings(display_name="bob")
    async with open_node(
        bob.key, home=home, stores=home / "stores", clock=street.clock, settings=settings
    ) as again:
        status = await again.status()
        assert status["communities"] == []
        assert status["lost"] == [{"display_id": display_id(community), "community_id": community}]
        with pytest.raises(CommunityError) as refused:
            await again.recover(display_id(community), [], alone=True)
        assert refused.value.code is Code.BAD_REQUEST
        with pytest.raises(CommunityError):
            await again.recover(display_id(community), ["http://127.0.0.1:9"])
        with pytest.raises(CommunityError) as silent:
            await again.act(community, "market.post.created", {})
        assert silent.value.code in (Code.PARTITION, Code.BAD_REQUEST)
        told = await again.recover(display_id(community), [alice.url])
        assert (told["community_id"], told["recovering"]) == (community, False)
        assert len(again.community(community).state.content.posts) == 5
        await again.act(community, "market.post.created", _post(9))
        await again.sync(community)
        assert (await again.status())["lost"] == []
    chain = alice.in_(community).state.chains[bob.id]
    assert chain.is_whole
    assert chain.fork is None


async def test_a_restored_log_is_settled_alone_by_one_call(street: Any) -> None:
    from accord.community.identity import community_folder
    from accord.community.log import RestoreNote

    alice = await street.house("alice")
    community = await street.found(alice)
    home = street.path / "copy"
    shutil.copytree(street.path / "alice", home)
    RestoreNote(community_folder(home, community)).create()
    async with open_node(alice.key, home=home, stores=home / "stores", clock=street.clock) as again:
        assert (await again.status())["communities"][0]["recovering"]
        with pytest.raises(CommunityError, match="recover --alone"):
            await again.act(community, "market.post.created", _post(1))
        assert not (await again.recover(community, [], alone=True))["recovering"]
        await again.act(community, "market.post.created", _post(1))


def _post(number: int) -> dict[str, Any]:
    from tests.community.node.conftest import post

    return post(number)
