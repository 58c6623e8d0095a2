"""The book of peers takes verified manifests only, and stays small."""

from typing import Any

import pytest

from accord.community import peers
from accord.community.errors import Code, CommunityError
from accord.community.peers import Endpoint, Hint, PeerBook
from accord.community.rules import manifests
from accord.kernel.signing import SigningKey

NOW = 1_780_000_000.0
COMMUNITY = SigningKey.from_seed(b"c" * 32).id
OWN = SigningKey.from_seed(b"o" * 32)
KEY = SigningKey.from_seed(b"1" * 32)


def signed(key: SigningKey = KEY, *, now: float = NOW, port: int = 7080) -> dict[str, Any]:
    about = {
        "display_name": "garage-pc",
        "community_id": COMMUNITY,
        "profile": "anchor",
        "endpoints": [{"transport": "http", "host": "127.0.0.1", "port": port}],
        "capabilities": [],
    }
    return manifests.sign_node(key, about, now=now)


def numbered(number: int) -> SigningKey:
    return SigningKey.from_seed(number.to_bytes(32, "big"))


def code_of(book: PeerBook, manifest: Any, *, now: float = NOW, is_member: bool = True) -> Code:
    with pytest.raises(CommunityError) as caught:
        book.admit(manifest, COMMUNITY, is_member=is_member, now=now)
    return caught.value.code


def test_a_verified_manifest_makes_a_peer() -> None:
    book = PeerBook(OWN.id)
    peer = book.admit(signed(), COMMUNITY, is_member=True, now=NOW)
    assert book.peer(COMMUNITY, KEY.id) is peer
    assert [each.url for each in peer.endpoints] == ["http://127.0.0.1:7080"]


def test_nothing_else_does() -> None:
    book = PeerBook(OWN.id)
    assert code_of(book, signed(), now=NOW + 31) is Code.EXPIRED
    assert code_of(book, {**signed(), "profile": "other"}) is Code.INVALID_SIGNATURE
    assert code_of(book, signed(OWN)) is Code.BAD_REQUEST
    assert code_of(book, None) is Code.BAD_REQUEST
    assert book.peers(COMMUNITY) == []


def test_an_older_manifest_does_not_undo_a_newer_one() -> None:
    book = PeerBook(OWN.id)
    book.admit(signed(now=NOW + 5, port=2), COMMUNITY, is_member=True, now=NOW + 5)
    assert code_of(book, signed(), now=NOW + 5) is Code.BAD_REQUEST
    assert book.peers(COMMUNITY)[0].endpoints[0].port == 2


def test_failures_push_a_peer_back_until_it_is_met_again() -> None:
    book = PeerBook(OWN.id)
    for key in (KEY, numbered(7)):
        book.admit(signed(key), COMMUNITY, is_member=True, now=NOW)
    book.failed(COMMUNITY, KEY.id)
    assert [peer.node_id for peer in book.peers(COMMUNITY)] == [numbered(7).id, KEY.id]
    book.met(COMMUNITY, KEY.id, now=NOW + 5)
    book.heard(COMMUNITY, KEY.id, now=NOW + 6)
    # A newer manifest does not make the book forget when the peer was met.
    met = book.admit(signed(now=NOW + 7), COMMUNITY, is_member=True, now=NOW + 7)
    assert (met.failures, met.met, met.heard) == (0, NOW + 5, NOW + 6)
    book.failed(COMMUNITY, OWN.id)
    assert book.peer(COMMUNITY, OWN.id) is None


def test_strangers_make_room_for_members_and_not_the_other_way_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peers, "MAX_PEERS", 3)
    book = PeerBook(OWN.id)
    for number in range(3):
        book.admit(signed(numbered(number)), COMMUNITY, is_member=False, now=NOW + number)
    for number in range(3, 6):
        book.admit(signed(numbered(number)), COMMUNITY, is_member=True, now=NOW + number)
    members = {numbered(number).id for number in range(3, 6)}
    assert {peer.node_id for peer in book.peers(COMMUNITY)} == members
    assert code_of(book, signed(KEY), is_member=False) is Code.CAPACITY_EXCEEDED
    book.admit(signed(KEY, now=NOW + 9), COMMUNITY, is_member=True, now=NOW + 9)
    assert book.peer(COMMUNITY, numbered(3).id) is None
    assert len(book.peers(COMMUNITY)) == 3


def test_members_keys_are_pinned_and_strangers_are_not() -> None:
    book = PeerBook(OWN.id)
    book.admit(signed(KEY), COMMUNITY, is_member=True, now=NOW)
    book.admit(signed(numbered(1)), COMMUNITY, is_member=False, now=NOW)
    assert list(book.pins.keys.values()) == [KEY.id]
    book.forget(KEY.id)
    assert book.peer(COMMUNITY, KEY.id) is None
    assert list(book.pins.keys.values()) == [KEY.id]


def test_hints_are_few_and_fade() -> None:
    book = PeerBook(OWN.id)
    for number in range(peers.MAX_HINTS + 10):
        book.hint(Hint(KEY.id, Endpoint("http", "127.0.0.1", number + 1)), now=NOW)
    book.hint(Hint(OWN.id, Endpoint("http", "127.0.0.1", 1)), now=NOW)
    found = book.hints(now=NOW)
    assert len(found) == peers.MAX_HINTS
    assert found[0].endpoint.port == peers.MAX_HINTS + 10
    assert book.hints(now=NOW + peers.HINT_SECONDS + 1) == []
    assert book.peers(COMMUNITY) == []


def test_an_address_where_nobody_answers_is_tried_more_and_more_seldom() -> None:
    book, now, address = PeerBook(OWN.id), NOW, "https://192.0.2.7:7080"
    pauses = []
    for _ in range(10):
        assert book.address(COMMUNITY, address).is_due(now)
        book.unreached(COMMUNITY, address, now=now)
        record = book.address(COMMUNITY, address)
        # A clock that was far ahead at the failure does not keep the address away later.
        assert record.is_due(now - 3600)
        pause = next(each for each in range(1, 400) if record.is_due(now + each))
        pauses.append(pause)
        now += pause
    assert pauses == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300]
    assert book.address(COMMUNITY, "https://192.0.2.8:7080").is_due(now)
    book.unreached(COMMUNITY, address, now=now)
    assert not book.address(COMMUNITY, address).is_due(now)
    book.end_pauses("another community")
    assert not book.address(COMMUNITY, address).is_due(now)
    book.end_pauses(COMMUNITY)
    assert book.address(COMMUNITY, address).is_due(now)
    assert book.address(COMMUNITY, address).failures == 11
    book.reached(COMMUNITY, address, now=now)
    assert book.address(COMMUNITY, address).failures == 0


def test_addresses_are_forgotten_when_there_are_too_many() -> None:
    book = PeerBook(OWN.id)
    for number in range(peers.MAX_ADDRESSES + 1):
        book.unreached(COMMUNITY, f"https://192.0.2.1:{number}", now=NOW)
    assert book.address(COMMUNITY, "https://192.0.2.1:0").failures == 0
    assert book.address(COMMUNITY, "https://192.0.2.1:1").failures == 1
