"""A seal opens for its two ends and nobody else, and belongs to one message alone."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nacl.bindings import crypto_box_seal, sodium_pad

from accord.capabilities.chat import (
    COVERED,
    MAX_BYTES,
    MessageContent,
    MessageEnvelope,
    encryption,
    open_sealed,
    seal,
)
from accord.community.errors import Code, CommunityError
from accord.community.rules import MAX_EVENT_BYTES as LARGEST_EVENT
from accord.community.rules import Event, compose_event, formats, parse_event, verify_event
from accord.kernel import canonical
from accord.kernel.signing import SigningKey

ALICE, BOB, EVE, TOWN, VILLAGE = (
    SigningKey.from_seed(bytes([number]) * 32) for number in range(1, 6)
)
ENVELOPE = MessageEnvelope(TOWN.id, ALICE.id, BOB.id, "first")
NONCE = bytes(range(32))
CID = "blake3:" + "a" * 64

texts = st.text(max_size=300)
attachments = st.lists(
    st.fixed_dictionaries(
        {"cid": st.just(CID), "name": st.text(min_size=1, max_size=20)},
    ),
    max_size=3,
)
letters = st.builds(MessageContent, texts, attachments, st.binary(min_size=32, max_size=32))


def opened(
    key: SigningKey, data: Any, community: str = TOWN.id, sender: str = ALICE.id
) -> MessageContent:
    return open_sealed(key, community, sender, data)


def refused(key: SigningKey, data: Any, **changed: str) -> CommunityError:
    with pytest.raises(CommunityError) as caught:
        opened(key, data, **changed)
    return caught.value


def said(data: Any) -> Event:
    """The event in which alice says it."""
    return compose_event(
        ALICE,
        "chat.message.sent",
        data,
        event_id="01HXR000000000000000000000",
        lamport=5,
        wall_clock="2026-05-26T08:14:22Z",
        community_id=TOWN.id,
        author_seq=1,
        prev=None,
    )


@given(letters)
def test_sender_and_recipient_open_what_was_sealed(letter: MessageContent) -> None:
    data = seal(ENVELOPE, letter)
    assert opened(ALICE, data) == letter
    assert opened(BOB, data) == letter


@given(letters)
def test_nobody_else_opens_it(letter: MessageContent) -> None:
    data = seal(ENVELOPE, letter)
    assert refused(EVE, data).code is Code.UNAUTHORIZED
    # Nor by saying that it is hers.
    assert refused(EVE, {**data, "recipient": EVE.id}).code is Code.BAD_REQUEST
    assert refused(EVE, data, sender=EVE.id).code is Code.BAD_REQUEST


@given(letters)
def test_a_sealed_message_is_a_valid_event_and_shows_nothing(letter: MessageContent) -> None:
    data = seal(ENVELOPE, letter)
    formats.check_event_data("chat.message.sent", 1, data)
    assert set(data) <= {"client_id", "recipient", "sealed", "attachments"}
    assert all(each["name"] == COVERED for each in data.get("attachments", ()))


@given(letters)
def test_two_seals_of_one_letter_have_nothing_in_common(letter: MessageContent) -> None:
    one, other = seal(ENVELOPE, letter)["sealed"], seal(ENVELOPE, letter)["sealed"]
    assert one["to_recipient"] != other["to_recipient"]
    assert one["to_recipient"] != one["to_sender"]


@given(st.text(max_size=20), st.text(max_size=20))
def test_short_messages_look_alike(one: str, other: str) -> None:
    seals = [seal(ENVELOPE, MessageContent(text, (), NONCE))["sealed"] for text in (one, other)]
    assert len({len(each["to_recipient"]) for each in seals}) == 1


CLEAR = {
    "recipient": lambda data: data.update(recipient=ALICE.id),
    "client_id": lambda data: data.update(client_id="second"),
    "commit": lambda data: data["sealed"].update(commit="blake3:" + "0" * 64),
    "cid": lambda data: data["attachments"][0].update(cid="blake3:" + "b" * 64),
    "name": lambda data: data["attachments"][0].update(name="other"),
    "fewer": lambda data: data["attachments"].pop(),
    "none": lambda data: data.pop("attachments"),
    "more": lambda data: data["attachments"].append({"cid": CID, "name": COVERED}),
}


@pytest.mark.parametrize("member", CLEAR)
def test_a_changed_clear_member_is_noticed(member: str) -> None:
    data = seal(ENVELOPE, MessageContent("hello", [{"cid": CID, "name": "plan.pdf"}] * 2, NONCE))
    for key in (ALICE, BOB):
        changed = copy.deepcopy(data)
        CLEAR[member](changed)
        with pytest.raises(CommunityError):
            opened(key, changed)


@given(letters, st.data())
def test_a_changed_seal_is_noticed(letter: MessageContent, data: st.DataObject) -> None:
    sealed = seal(ENVELOPE, letter)
    for key, member in ((BOB, "to_recipient"), (ALICE, "to_sender")):
        raw = bytearray(canonical.decode_base64url(sealed["sealed"][member]))
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] ^= data.draw(st.integers(1, 255))
        changed = {
            **sealed,
            "sealed": {**sealed["sealed"], member: canonical.encode_base64url(bytes(raw))},
        }
        assert refused(key, changed).code is Code.BAD_REQUEST


@given(letters, letters)
def test_seals_cannot_be_exchanged(one: MessageContent, other: MessageContent) -> None:
    data = seal(ENVELOPE, one)
    later = MessageEnvelope(TOWN.id, ALICE.id, BOB.id, "second")
    elsewhere = seal(later, other)
    # Another message's seal under this one's envelope, also under its own commitment.
    moved = {**data, "sealed": elsewhere["sealed"]}
    assert refused(BOB, moved).what == "the seal was made for another message"
    assert refused(ALICE, moved).code is Code.BAD_REQUEST


@given(letters)
def test_a_seal_counts_in_its_community_and_from_its_sender_only(letter: MessageContent) -> None:
    data = seal(ENVELOPE, letter)
    assert refused(BOB, data, community=VILLAGE.id).code is Code.BAD_REQUEST
    # Eve signs an event of her own around a seal that alice made for bob.
    assert refused(BOB, data, sender=EVE.id).code is Code.BAD_REQUEST


@given(letters)
def test_a_signed_event_notices_every_change_of_a_seal(letter: MessageContent) -> None:
    event = said(seal(ENVELOPE, letter))
    verify_event(parse_event(event.encode()))
    other = seal(ENVELOPE, letter)["sealed"]
    for member in ("to_recipient", "to_sender"):
        payload = event.payload()
        sealed = {**payload["data"]["sealed"], member: other[member]}
        payload["data"] = {**payload["data"], "sealed": sealed}
        with pytest.raises(CommunityError):
            verify_event(parse_event(canonical.encode(payload)))


@given(letters, texts)
def test_the_commitment_proves_what_was_said_and_nothing_else(
    letter: MessageContent, claim: str
) -> None:
    data = seal(ENVELOPE, letter)
    assert encryption.proves(data, letter.nonce, letter.body)
    assert encryption.proves(data, letter.nonce, claim) == (claim == letter.body)
    assert not encryption.proves(data, bytes(32), letter.body) or letter.nonce == bytes(32)
    # Moving the border between nonce and text proves nothing.
    assert not encryption.proves(data, letter.nonce + b"x", letter.body)
    assert not encryption.proves(data, letter.nonce[:-1], letter.body)


def test_a_sender_who_commits_to_another_text_is_not_heard() -> None:
    data = seal(ENVELOPE, MessageContent("an insult", (), NONCE))
    data["sealed"]["commit"] = encryption.commit(NONCE, "a compliment")
    assert "nobody could prove" in refused(BOB, data).what


@pytest.mark.parametrize(
    "held",
    [
        [],
        "text",
        {"body": "x"},
        {"body": 1, "nonce": canonical.encode_base64url(NONCE), "attachments": []},
        {"body": "x", "nonce": 5, "attachments": []},
        {"body": "x", "nonce": "=", "attachments": []},
        {"body": "x", "nonce": canonical.encode_base64url(b"short"), "attachments": []},
        {"body": "x", "nonce": canonical.encode_base64url(NONCE), "attachments": {}},
        {"body": "x", "nonce": canonical.encode_base64url(NONCE), "attachments": [1]},
        {
            "body": "x",
            "nonce": canonical.encode_base64url(NONCE),
            "attachments": [{"cid": 1, "name": 2}],
        },
        {"body": "x", "nonce": canonical.encode_base64url(NONCE), "attachments": [], "more": 1},
    ],
)
def test_whatever_somebody_seals_is_read_or_refused(held: Any) -> None:
    data = seal(ENVELOPE, MessageContent("x", (), NONCE))
    if isinstance(held, dict) and len(held) > 1:
        bound = {"client_id": "first", "community": TOWN.id, "from": ALICE.id, "to": BOB.id}
        held = {**held, **bound}
    for raw in (canonical.encode(held), b"", b"{", b"[" * 3000):
        padded = sodium_pad(raw, 256)
        sealed = canonical.encode_base64url(crypto_box_seal(padded, encryption._public(BOB.id)))
        forged = {**data, "sealed": {**data["sealed"], "to_recipient": sealed}}
        assert refused(BOB, forged).code is Code.BAD_REQUEST


@given(st.text(max_size=400))
def test_a_seal_that_is_no_seal_is_refused(text: str) -> None:
    data = seal(ENVELOPE, MessageContent("x", (), NONCE))
    forged = {**data, "sealed": {**data["sealed"], "to_recipient": text}}
    assert refused(BOB, forged).code is Code.BAD_REQUEST


def test_the_longest_message_fits_into_an_event_and_a_longer_one_is_refused() -> None:
    names = [{"cid": CID, "name": "n" * 255}] * 32
    spare = len(canonical.encode({"attachments": names})) + 400
    longest = MessageContent("x" * (MAX_BYTES - spare), names, NONCE)
    data = seal(ENVELOPE, longest)
    formats.check_event_data("chat.message.sent", 1, data)
    assert len(canonical.encode(data)) + 1000 < LARGEST_EVENT
    with pytest.raises(CommunityError) as caught:
        seal(ENVELOPE, MessageContent("x" * MAX_BYTES, (), NONCE))
    assert caught.value.code is Code.BAD_REQUEST


@pytest.mark.parametrize("recipient", ["ed25519:" + "A" * 43, "nobody", "ed25519:" + "_" * 43])
def test_nothing_is_sealed_to_what_is_no_key(recipient: str) -> None:
    envelope = MessageEnvelope(TOWN.id, ALICE.id, recipient, "first")
    with pytest.raises(CommunityError) as caught:
        seal(envelope, MessageContent("x", (), NONCE))
    assert caught.value.code is Code.BAD_REQUEST


def test_a_note_to_oneself_opens() -> None:
    data = seal(
        MessageEnvelope(TOWN.id, BOB.id, BOB.id, "first"), MessageContent("note", (), NONCE)
    )
    assert opened(BOB, data, sender=BOB.id).body == "note"


def test_parsing_a_sealed_event_keeps_its_data() -> None:
    data = seal(ENVELOPE, MessageContent("x", (), NONCE))
    assert opened(BOB, parse_event(said(data).encode()).data).body == "x"
