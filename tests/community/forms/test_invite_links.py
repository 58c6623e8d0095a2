"""An invite is one short signed line, read strictly."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.community.errors import Code, CommunityError
from accord.community.rules import INVITE_BLOB, INVITE_LINK, MAX_INVITE_BYTES, Invite
from accord.kernel import canonical, signing
from accord.kernel.clock import parse_time
from accord.kernel.signing import SigningKey

INVITER = SigningKey.from_seed(b"1" * 32)
INVITEE = SigningKey.from_seed(b"2" * 32)
COMMUNITY = SigningKey.from_seed(b"c" * 32)
EXPIRES = "2026-05-27T00:00:00Z"


def made(**changes: Any) -> Invite:
    members: dict[str, Any] = {
        "community_id": COMMUNITY.id,
        "community_name": "Niederrhein Demo",
        "invitee_node_id": INVITEE.id,
        "initial_level": "member",
        "bootstrap_endpoints": ("https://192.168.188.25:7080",),
        "expires_at": EXPIRES,
    }
    return Invite.make(INVITER, **members | changes)


def packed(payload: Any) -> str:
    return INVITE_LINK + canonical.encode_base64url(canonical.encode(payload))


def code_of(function: Any, *args: Any, **named: Any) -> Code:
    with pytest.raises(CommunityError) as caught:
        function(*args, **named)
    return caught.value.code


def test_link_and_blob_are_two_spellings_of_one_invite() -> None:
    invite = made()
    assert invite.link.startswith("hearthnet://v1/")
    assert invite.blob.startswith("ed25519:")
    assert Invite.parse(invite.link) == Invite.parse(invite.blob) == invite
    assert len(canonical.encode(invite.payload())) < MAX_INVITE_BYTES
    invite.check(now=parse_time(EXPIRES), invitee=INVITEE.id)


def test_an_invite_ends() -> None:
    assert code_of(made().check, now=parse_time(EXPIRES) + 1) is Code.EXPIRED


def test_an_invite_is_for_one_node() -> None:
    assert code_of(made().check, now=0, invitee=INVITER.id) is Code.UNAUTHORIZED


def test_an_invite_is_its_inviters() -> None:
    for change in ({"initial_level": "anchor"}, {"inviter_node_id": COMMUNITY.id}):
        forged = Invite.parse(packed({**made().payload(), **change}))
        assert code_of(forged.check, now=0) is Code.INVALID_SIGNATURE


def test_one_that_is_too_long_is_not_made_and_says_how_to_mend_it() -> None:
    with pytest.raises(CommunityError) as caught:
        made(community_name="N" * 100)
    assert caught.value.mend is not None
    assert "shorter" in caught.value.mend
    whole = {**made().payload(), "community_name": "N" * 100}
    assert code_of(Invite.parse, packed(signing.sign(whole, INVITER))) is Code.BAD_REQUEST


@pytest.mark.parametrize(
    "change",
    [
        {"schema_version": 2},
        {"community_id": "x"},
        {"community_name": ""},
        {"initial_level": "root"},
        {"bootstrap_endpoints": ["javascript:alert(1)"]},
        {"bootstrap_endpoints": ["https://user@host:1"]},
        {"bootstrap_endpoints": ["https://host:1/path"]},
        {"bootstrap_endpoints": "https://host:1"},
        {"expires_at": "2026-02-30T00:00:00Z"},
        {"expires_at": None},
        {"signature": "ed25519:x"},
        {"surprise": 1},
    ],
)
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    assert code_of(Invite.parse, packed({**made().payload(), **change})) is Code.BAD_REQUEST


def test_a_spelling_that_is_not_canonical_is_refused() -> None:
    raw = canonical.encode(made().payload())
    for spelled in (raw + b" ", b" " + raw):
        assert (
            code_of(Invite.parse, INVITE_LINK + canonical.encode_base64url(spelled))
            is Code.BAD_REQUEST
        )
    assert code_of(Invite.parse, made().link + "=") is Code.BAD_REQUEST


@given(
    st.sampled_from([INVITE_LINK, INVITE_BLOB, ""]),
    st.text(max_size=50) | st.binary(max_size=200).map(canonical.encode_base64url),
)
def test_no_text_is_more_than_refused(prefix: str, text: str) -> None:
    assert code_of(Invite.parse, prefix + text) is Code.BAD_REQUEST


def test_a_text_beyond_any_invite_is_refused() -> None:
    assert code_of(Invite.parse, INVITE_LINK + "A" * 10_000_000) is Code.BAD_REQUEST
