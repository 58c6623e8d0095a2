import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.kernel.signing import (
    SigningError,
    SigningKey,
    parse_id,
    public_id,
    sign,
    verify,
    verify_bytes,
)

KEY = SigningKey.from_seed(bytes(range(32)))
OTHER = SigningKey.from_seed(b"\x07" * 32)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


# The eight points of small order, and spellings of some of them that are not canonical.
SMALL_ORDER = [
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0000000000000000000000000000000000000000000000000000000000000080",
    "0000000000000000000000000000000000000000000000000000000000000000",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "0100000000000000000000000000000000000000000000000000000000000080",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
]
ORDER = 2**252 + 27742317777372353535851937790883648493


@pytest.mark.parametrize("public", SMALL_ORDER)
def test_a_key_of_small_order_or_without_canonical_spelling_signs_nothing(public: str) -> None:
    # With such a key the equation holds for R = identity and S = 0, whatever the message is.
    for point in SMALL_ORDER:
        forged = bytes.fromhex(point) + bytes(32)
        assert not any(
            verify_bytes(bytes.fromhex(public), bytes([message]), forged) for message in range(16)
        )


def test_a_point_of_small_order_is_refused_in_a_signature() -> None:
    signature = KEY.sign_bytes(b"m")
    for point in SMALL_ORDER:
        assert not verify_bytes(KEY.public, b"m", bytes.fromhex(point) + signature[32:])


def test_a_scalar_beyond_the_group_order_is_refused() -> None:
    signature = KEY.sign_bytes(b"m")
    scalar = int.from_bytes(signature[32:], "little") + ORDER
    assert verify_bytes(KEY.public, b"m", signature)
    assert not verify_bytes(KEY.public, b"m", signature[:32] + scalar.to_bytes(32, "little"))


@given(st.binary(max_size=200), st.integers(0, 63), st.integers(1, 255))
def test_a_signature_covers_every_byte(message: bytes, index: int, flip: int) -> None:
    signature = KEY.sign_bytes(message)
    assert verify_bytes(KEY.public, message, signature)
    assert not verify_bytes(KEY.public, message + b"x", signature)
    assert not verify_bytes(OTHER.public, message, signature)
    changed = bytearray(signature)
    changed[index] ^= flip
    assert not verify_bytes(KEY.public, message, bytes(changed))


@pytest.mark.parametrize(
    ("public", "signature"), [(b"", b""), (KEY.public, b"x" * 63), (b"x", b"y" * 64)]
)
def test_keys_and_signatures_of_wrong_length_verify_nothing(
    public: bytes, signature: bytes
) -> None:
    assert not verify_bytes(public, b"m", signature)


def test_a_signed_payload_verifies_and_a_changed_one_does_not() -> None:
    signed = sign({"b": [1.0, "ü"], "a": None}, KEY)
    assert verify(signed, KEY.id)
    assert verify(signed, KEY.public)
    assert verify({**signed, "b": [1, "ü"]}, KEY.id), "1.0 and 1 are the same canonical number"
    assert not verify({**signed, "a": 0}, KEY.id)
    assert not verify({**signed, "c": 0}, KEY.id)
    assert not verify(signed, OTHER.id)


def test_signing_again_replaces_the_signature_and_leaves_the_payload_alone() -> None:
    payload = sign({"a": 1}, KEY)
    again = sign(payload, OTHER)
    assert verify(payload, KEY.id)
    assert verify(again, OTHER.id)


@pytest.mark.parametrize(
    "signature",
    [None, 7, "", "ed25519:", "ed25519:AA", "x" * 94, {"a": 1}],
)
def test_a_malformed_signature_is_no_signature(signature: object) -> None:
    assert not verify({"a": 1, "signature": signature}, KEY.id)
    assert not verify({"a": 1}, KEY.id)


def test_a_padded_or_sloppy_signature_is_refused() -> None:
    signed = sign({"a": 1}, KEY)
    text = str(signed["signature"])
    assert not verify({**signed, "signature": text + "=="}, KEY.id)
    # 64 bytes leave four bits over in the last character: any but zeros would be a second spelling.
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_".index(text[-1])
    sloppy = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[last + 1]
    assert not verify({**signed, "signature": text[:-1] + sloppy}, KEY.id)


@pytest.mark.parametrize("public", ["", "ed25519:", "ed25519:" + "A" * 42, "A" * 43, KEY.id + "="])
def test_a_malformed_id_is_refused(public: str) -> None:
    with pytest.raises(SigningError, match="is not an id"):
        parse_id(public)
    assert not verify(sign({}, KEY), public)


def test_ids_read_back() -> None:
    assert parse_id(KEY.id) == KEY.public
    assert public_id(KEY.public) == KEY.id


def test_a_payload_without_canonical_form_is_not_signed() -> None:
    assert not verify({"a": float("nan"), "signature": sign({}, KEY)["signature"]}, KEY.id)


def test_a_key_shows_its_id_and_not_its_seed() -> None:
    assert KEY.id in repr(KEY)
    assert KEY.seed.hex() not in repr(KEY)


def test_a_new_key_file_is_private_and_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "device.ed25519"
    key = SigningKey.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert SigningKey.load(path).id == key.id
    assert names(tmp_path) == ["device.ed25519"]


def test_an_existing_key_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = SigningKey.create(path)
    with pytest.raises(SigningError, match=r"there is a key file already; choose another path"):
        SigningKey.create(path)
    assert SigningKey.load(path).id == key.id
    assert names(tmp_path) == ["key"]


def test_a_key_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SigningError, match=r"cannot be written .*; choose a folder"):
        SigningKey.create(tmp_path / "missing" / "key")
    assert names(tmp_path) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    SigningKey.create(path)
    path.chmod(mode)
    with pytest.raises(SigningError, match="chmod 600"):
        SigningKey.load(path)


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_key_file_of_wrong_length_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "key"
    path.touch(0o600)
    path.write_bytes(b"x" * size)
    with pytest.raises(SigningError, match="exactly 32 bytes"):
        SigningKey.load(path)


def test_a_missing_key_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SigningError, match="accord keys new"):
        SigningKey.load(tmp_path / "none")
    with pytest.raises(SigningError):
        SigningKey.load(tmp_path)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_seed_of_wrong_length_is_refused(size: int) -> None:
    with pytest.raises(SigningError, match="instead of 32"):
        SigningKey.from_seed(b"x" * size)
