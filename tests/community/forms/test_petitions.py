"""A petition gathers signatures for one intent, from hand to hand."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.community.errors import Code, CommunityError
from accord.community.rules import MAX_PETITION_TEXT, Petition
from accord.community.rules import event as envelope
from accord.kernel import canonical
from accord.kernel.signing import SigningKey

COMMUNITY = SigningKey.from_seed(b"c" * 32)
DATA: dict[str, Any] = {
    "client_id": "c1",
    "target_node_id": SigningKey.from_seed(b"t" * 32).id,
    "reason": "inactive",
    "target_last_seq": 0,
    "target_last_hash": None,
}


def opened() -> Petition:
    return Petition.open(COMMUNITY.id, "community.member.revoked", DATA)


def unpacked(petition: Petition) -> dict[str, Any]:
    payload: dict[str, Any] = canonical.decode(canonical.decode_base64url(str(petition)))
    return payload


def packed(payload: Any) -> str:
    return canonical.encode_base64url(canonical.encode(payload))


def test_signatures_gathered_on_two_ways_become_one_event(
    key: SigningKey, other: SigningKey, third: SigningKey
) -> None:
    one = Petition.parse(str(opened().signed_by(key).signed_by(other)))
    two = Petition.parse(str(opened().signed_by(third).signed_by(other)))
    merged = one.merge(two)
    assert merged.signers == sorted({key.id, other.id, third.id})
    assert merged == two.merge(one)
    event = envelope.compose_event(
        key,
        merged.event_type,
        merged.event_data(),
        event_id="01HXR0000000000000000000AB",
        lamport=9,
        wall_clock="2026-05-26T08:14:22Z",
        community_id=COMMUNITY.id,
        author_seq=1,
        prev=None,
    )
    assert len(envelope.signature_claims(event)) == 4
    envelope.verify_event(event)


def test_signing_twice_changes_nothing(key: SigningKey) -> None:
    once = opened().signed_by(key)
    assert once.signed_by(key) == once


def test_petitions_that_want_different_things_do_not_merge(key: SigningKey) -> None:
    different = Petition.open(COMMUNITY.id, "community.member.revoked", {**DATA, "reason": "other"})
    with pytest.raises(CommunityError, match="different things"):
        opened().merge(different.signed_by(key))


def test_a_signature_for_something_else_is_refused(key: SigningKey) -> None:
    payload = unpacked(opened().signed_by(key))
    payload["data"]["reason"] = "compromised"
    with pytest.raises(CommunityError) as caught:
        Petition.parse(packed(payload))
    assert caught.value.code is Code.INVALID_SIGNATURE


@pytest.mark.parametrize(
    "change",
    [
        {"community_id": "ed25519:x"},
        {"community_id": 7},
        {"event_type": "market.post.created"},
        {"event_type": "garden.dug"},
        {"event_type": None},
        {"data": []},
        {"data": {**DATA, "co_signers": []}},
        {"data": {**DATA, "surprise": 1}},
        {"co_signers": {}},
        {"co_signers": [{"node_id": "x"}]},
        {"surprise": 1},
    ],
)
def test_anything_else_is_refused_with_a_code(change: dict[str, Any]) -> None:
    with pytest.raises(CommunityError) as caught:
        Petition.parse(packed({**unpacked(opened()), **change}))
    assert caught.value.code is Code.BAD_REQUEST


def test_signers_come_in_order_and_once(key: SigningKey, other: SigningKey) -> None:
    payload = unpacked(opened().signed_by(key).signed_by(other))
    backwards = {**payload, "co_signers": payload["co_signers"][::-1]}
    twice = {**payload, "co_signers": payload["co_signers"][:1] * 2}
    for bad in (backwards, twice):
        with pytest.raises(CommunityError, match="once each"):
            Petition.parse(packed(bad))


def test_only_events_that_take_co_signatures_are_petitioned_for() -> None:
    with pytest.raises(CommunityError, match="takes no co-signatures"):
        Petition.open(COMMUNITY.id, "file.cid.unpinned", {"cid": f"blake3:{'1' * 64}"})


def test_a_petition_has_room_for_no_more_signers_than_an_event() -> None:
    petition = opened()
    for number in range(64):
        petition = petition.signed_by(SigningKey.from_seed(bytes([number]) * 32))
    assert len(str(petition)) < MAX_PETITION_TEXT
    with pytest.raises(CommunityError):
        petition.signed_by(SigningKey.from_seed(b"\xff" * 32))


@given(st.text(max_size=200) | st.binary(max_size=200).map(canonical.encode_base64url))
def test_no_text_is_more_than_refused(text: str) -> None:
    with pytest.raises(CommunityError):
        Petition.parse(text)


def test_a_text_beyond_the_limit_is_not_even_decoded() -> None:
    with pytest.raises(CommunityError, match="at most"):
        Petition.parse("A" * (MAX_PETITION_TEXT + 1))
