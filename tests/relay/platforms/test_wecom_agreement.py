"""An independent library of WeChat's cryptography and ours open and sign the same messages."""

import base64
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from accord.relay.errors import RelayError
from accord.relay.platforms import wecom

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from wechatpy.enterprise.crypto import WeChatCrypto  # type: ignore[import-untyped]
    from wechatpy.enterprise.exceptions import InvalidCorpIdException  # type: ignore[import-untyped]
    from wechatpy.exceptions import InvalidSignatureException  # type: ignore[import-untyped]

REQUESTS = 1000
LETTERS = "abz019<>&]\"' é你👋\n"


def pairs(seed: int) -> Iterator[tuple[random.Random, wecom.BizMsgCrypt, Any, str, str, str]]:
    """For each request: both ends, a message, a timestamp and a nonce."""
    chance = random.Random(seed)
    for _ in range(REQUESTS):
        key = base64.b64encode(chance.randbytes(32)).decode().rstrip("=")
        token, corp = f"token{chance.random()}", f"ww{chance.randrange(10**9)}"
        message = "".join(chance.choices(LETTERS, k=chance.randint(1, 200)))
        ends = wecom.read_crypt(token, key, corp), WeChatCrypto(token, key, corp)
        yield chance, *ends, message, str(chance.randrange(10**10)), str(chance.randrange(10**9))


def theirs(other: Any, sealed: str, signature: str, timestamp: str, nonce: str) -> str | None:
    """What the library opens; None where it refuses."""
    try:
        opened = other.decrypt_message({"Encrypt": sealed}, signature, timestamp, nonce)
    except (InvalidSignatureException, InvalidCorpIdException, ValueError):
        return None
    return str(opened)


def ours(
    crypt: wecom.BizMsgCrypt, sealed: str, signature: str, timestamp: str, nonce: str
) -> str | None:
    """What we open; None where we refuse."""
    if not crypt.is_signed(signature, timestamp, nonce, sealed):
        return None
    try:
        return crypt.open(sealed).decode()
    except (RelayError, UnicodeDecodeError):
        return None


def tampered(
    chance: random.Random, sealed: str, signature: str, timestamp: str, nonce: str
) -> tuple[str, str, str, str]:
    kind = chance.randrange(4)
    if kind == 0:
        place = chance.randrange(len(sealed) - 4)
        other = "A" if sealed[place] != "A" else "B"
        sealed = sealed[:place] + other + sealed[place + 1 :]
    elif kind == 1:
        signature = signature[::-1] + "0"
    elif kind == 2:
        timestamp += "0"
    else:
        nonce = "x" + nonce
    return sealed, signature, timestamp, nonce


def test_what_they_seal_we_open_and_what_was_tampered_with_both_refuse() -> None:
    opened = 0
    for chance, crypt, other, message, timestamp, nonce in pairs(1):
        written = wecom.read_xml(other.encrypt_message(message, nonce, timestamp).encode())
        assert (written["TimeStamp"], written["Nonce"]) == (timestamp, nonce)
        request = (written["Encrypt"], written["MsgSignature"], timestamp, nonce)
        if chance.random() < 0.5:
            request = tampered(chance, *request)
            assert ours(crypt, *request) is None
        else:
            assert ours(crypt, *request) == message
            opened += 1
        assert theirs(other, *request) == ours(crypt, *request)
    assert 400 < opened < 600


def test_what_we_seal_they_open() -> None:
    for chance, crypt, other, message, timestamp, nonce in pairs(2):
        sealed = crypt.seal(message.encode(), chance.randbytes(16))
        signature = crypt.sign(timestamp, nonce, sealed)
        assert theirs(other, sealed, signature, timestamp, nonce) == message
        assert other.check_signature(signature, timestamp, nonce, sealed) == message


def test_what_is_sealed_for_somebody_else_both_refuse_although_it_is_signed() -> None:
    for chance, crypt, other, message, timestamp, nonce in pairs(3):
        stranger = wecom.BizMsgCrypt(crypt.token, crypt.key, crypt.receiver + "x")
        sealed = stranger.seal(message.encode(), chance.randbytes(16))
        request = (sealed, crypt.sign(timestamp, nonce, sealed), timestamp, nonce)
        assert ours(crypt, *request) is None
        assert theirs(other, *request) is None


def test_whatever_we_open_they_open_to_the_same() -> None:
    """With a signature, but damaged: our rules of padding and length are the stricter ones."""
    refused = 0
    for chance, crypt, other, message, timestamp, nonce in pairs(4):
        data = bytearray(base64.b64decode(crypt.seal(message.encode(), chance.randbytes(16))))
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        sealed = base64.b64encode(bytes(data)).decode()
        request = (sealed, crypt.sign(timestamp, nonce, sealed), timestamp, nonce)
        opened = ours(crypt, *request)
        refused += opened is None
        if opened is not None:
            assert theirs(other, *request) == opened
    assert refused > 200


def test_padding_of_another_form_is_refused() -> None:
    crypt = wecom.read_crypt("t", "A" * 43, "ww1")
    content = b"s" * 16 + (2).to_bytes(4, "big") + b"hi" + b"ww1"
    for padding, opens in (
        (b"\x07" * 7, True),
        (b"\x27" * 39, False),
        (b"\x00" * 6 + b"\x07", False),
        (b"\x00" * 7, False),
        (b"\x08" * 7, False),
    ):
        encryptor = crypt._cipher().encryptor()
        sealed = base64.b64encode(encryptor.update(content + padding)).decode()
        if opens:
            assert crypt.open(sealed) == b"hi"
        else:
            with pytest.raises(RelayError):
                crypt.open(sealed)


@pytest.mark.parametrize("sealed", ["", "é", "====", "AAAA", "A" * 64, "A" * 63 + "\ud800"])
def test_nothing_that_is_not_sealed_is_opened(sealed: str) -> None:
    crypt = wecom.read_crypt("t", "A" * 43, "ww1")
    assert not crypt.is_signed("x", "1", "2", sealed)
    with pytest.raises(RelayError):
        crypt.open(sealed)
    assert "token" not in repr(crypt)
