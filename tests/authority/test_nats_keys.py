"""Keys and JWTs as NATS writes them."""

import nkeys  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.authority.rules import (
    AuthorityError,
    Code,
    KeyType,
    NKey,
    XKey,
    jwt,
    read_public,
    verify_signature,
    write_public,
)

SIGNING = [kind for kind in KeyType if kind is not KeyType.CURVE]
LETTERS = {
    KeyType.OPERATOR: "O",
    KeyType.ACCOUNT: "A",
    KeyType.USER: "U",
    KeyType.SERVER: "N",
    KeyType.CURVE: "X",
}


@pytest.mark.parametrize("kind", SIGNING)
def test_a_key_is_the_one_that_the_nats_library_reads(kind: KeyType) -> None:
    key = NKey.generate(kind)
    theirs = nkeys.from_seed(bytearray(key.seed.encode()))
    assert theirs.public_key.decode() == key.public
    assert theirs.verify(b"message", key.sign(b"message"))
    assert key.public[0] == LETTERS[kind]


@pytest.mark.parametrize("kind", SIGNING)
def test_a_seed_is_read_back_and_only_as_its_kind(kind: KeyType) -> None:
    key = NKey.generate(kind)
    assert NKey.from_seed(key.seed, kind).public == key.public
    for other in set(SIGNING) - {kind}:
        with pytest.raises(AuthorityError):
            NKey.from_seed(key.seed, other)


@given(st.text(max_size=80) | st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567=", max_size=70))
def test_no_other_text_is_a_key(text: str) -> None:
    for kind in KeyType:
        with pytest.raises(AuthorityError):
            read_public(text, kind)
    with pytest.raises(AuthorityError):
        XKey.from_seed(text)
    assert not verify_signature(text, KeyType.ACCOUNT, b"", b"")


@given(st.integers(0, 55), st.sampled_from("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"))
def test_a_letter_that_changed_is_noticed(place: int, letter: str) -> None:
    public = NKey.generate(KeyType.ACCOUNT).public
    changed = public[:place] + letter + public[place + 1 :]
    if changed != public:
        with pytest.raises(AuthorityError):
            read_public(changed, KeyType.ACCOUNT)


def test_a_key_does_not_show_its_seed() -> None:
    key, box = NKey.generate(KeyType.ACCOUNT), XKey.generate()
    assert key.seed not in repr(key)
    assert box.seed not in repr(box)


@given(st.binary(max_size=200))
def test_a_box_opens_for_whom_it_is_sealed_to_and_nobody_else(message: bytes) -> None:
    ours, theirs, another = XKey.generate(), XKey.generate(), XKey.generate()
    sealed = ours.seal(message, theirs.public)
    assert theirs.open(sealed, ours.public) == message
    for opener, sender in ((another, ours), (theirs, another)):
        with pytest.raises(AuthorityError):
            opener.open(sealed, sender.public)


@given(st.binary(max_size=100))
def test_what_is_no_box_does_not_open(garbage: bytes) -> None:
    ours, theirs = XKey.generate(), XKey.generate()
    for data in (garbage, b"xkv1" + garbage):
        with pytest.raises(AuthorityError):
            ours.open(data, theirs.public)


def test_nothing_is_sealed_to_a_key_that_everybody_can_open() -> None:
    ours, weak = XKey.generate(), write_public(KeyType.CURVE, bytes(32))
    with pytest.raises(AuthorityError):
        ours.seal(b"secret", weak)
    with pytest.raises(AuthorityError):
        ours.open(b"xkv1" + bytes(64), weak)


def test_a_key_has_many_others_to_talk_to() -> None:
    ours, others = XKey.generate(), [XKey.generate() for _ in range(200)]
    for other in others:
        assert other.open(ours.seal(b"hello", other.public), ours.public) == b"hello"


def test_a_jwt_says_what_its_issuer_signed() -> None:
    key = NKey.generate(KeyType.ACCOUNT)
    token = jwt.encode({"sub": "U", "nats": {"type": "user"}}, key)
    assert jwt.decode(token, KeyType.ACCOUNT)["iss"] == key.public
    with pytest.raises(AuthorityError):
        jwt.decode(token, KeyType.OPERATOR)


def test_a_jwt_that_somebody_changed_is_refused() -> None:
    key, other = NKey.generate(KeyType.ACCOUNT), NKey.generate(KeyType.ACCOUNT)
    head, body, _ = jwt.encode({"sub": "U"}, key).split(".")
    _, _, signature = jwt.encode({"sub": "U"}, other).split(".")
    with pytest.raises(AuthorityError) as refused:
        jwt.decode(f"{head}.{body}.{signature}", KeyType.ACCOUNT)
    assert refused.value.code is Code.INVALID_PROOF


@given(
    st.text(max_size=60) | st.from_regex(r"[A-Za-z0-9_-]{0,20}\.[A-Za-z0-9_-]{0,40}\.[A-Z]{0,9}")
)
def test_no_other_text_is_a_jwt(text: str) -> None:
    with pytest.raises(AuthorityError):
        jwt.decode(text, KeyType.SERVER)


def test_a_user_who_may_do_nothing_is_told_so() -> None:
    key = NKey.generate(KeyType.ACCOUNT)
    token = jwt.user("nobody", "U", key, now=1.0, publish=(), subscribe=("a", "b"))
    claims = jwt.decode(token, KeyType.ACCOUNT)["nats"]
    assert claims["pub"] == {"deny": [">"]}
    assert claims["sub"] == {"allow": ["a", "b"]}


def test_a_key_that_signs_for_an_account_names_the_account() -> None:
    account, signer = NKey.generate(KeyType.ACCOUNT), NKey.generate(KeyType.ACCOUNT)
    token = jwt.user("somebody", "U", signer, now=1.0, account_id=account.public)
    assert jwt.decode(token, KeyType.ACCOUNT)["nats"]["issuer_account"] == account.public
    own = jwt.user("somebody", "U", account, now=1.0, account_id=account.public)
    assert "issuer_account" not in jwt.decode(own, KeyType.ACCOUNT)["nats"]
