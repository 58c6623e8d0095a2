"""Attachments of sealed messages: blobs encrypted with a key that the message holds.

A header of 48 bytes (`MAGIC` and a commitment to the key) is followed by segments of 262144 bytes,
each encrypted with ChaCha20-Poly1305 under a nonce of its number and whether it is the last (the
STREAM construction), so that none can be dropped, moved or added and a reader may seek. Because of
the commitment one blob opens with one key only.
"""

import hmac
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Self

from blake3 import blake3
from nacl.bindings import (
    crypto_aead_chacha20poly1305_ietf_decrypt,
    crypto_aead_chacha20poly1305_ietf_encrypt,
)
from nacl.exceptions import CryptoError

from accord.capabilities.file import Blobs
from accord.community.client import Client
from accord.community.errors import Code, CommunityError, bad_request
from accord.kernel import canonical

MAGIC: Final = b"accord sealed 1\n"
SEGMENT: Final = 262_144
"""Plain bytes in one segment."""

OPEN: Final = "experimental.chat.attachment"
"""The capability that returns the key of an attachment to the node's own clients."""

_TAG: Final = 16
_COMMITMENT: Final = 32
_HEADER: Final = len(MAGIC) + _COMMITMENT
_NUMBER: Final = 11
_CONTENT: Final = "accord 2026 chat attachment content"
_COMMIT: Final = "accord 2026 chat attachment commitment"


@dataclass(frozen=True, slots=True)
class ChatAttachment:
    """A file attached to a message of this node; `key` is None if it was sent in the clear."""

    cid: str
    name: str
    key: bytes | None = field(repr=False)

    @classmethod
    def from_output(cls, output: dict[str, Any]) -> Self:
        """Read the output of the capability `OPEN`."""
        key = output["key"]
        return cls(
            output["cid"], output["name"], None if key is None else canonical.decode_base64url(key)
        )


async def encrypted(parts: AsyncIterable[bytes], key: bytes) -> AsyncGenerator[bytes, None]:
    """Encrypt a file to a blob, part by part; `key` must never be used again."""
    yield MAGIC + _commitment(key)
    content = _content_key(key)
    waiting = bytearray()
    number = 0
    async for part in parts:
        waiting += part
        # The last segment is encrypted differently, so one is held back until more follows.
        while len(waiting) > SEGMENT:
            segment = bytes(waiting[:SEGMENT])
            del waiting[:SEGMENT]
            yield _encrypt(content, segment, number, is_last=False)
            number += 1
    yield _encrypt(content, bytes(waiting), number, is_last=True)


async def decrypted(
    blobs: Blobs, cid: str, key: bytes, offset: int = 0
) -> AsyncGenerator[bytes, None]:
    """Decrypt a blob from an offset of the plain file on; every part is authenticated.

    Raises:
        CommunityError: `not_found` if it is not here, `bad_request` if the key is wrong.
    """
    size = plain_size(blobs.manifest(cid).size_bytes)
    if not await opens(blobs, cid, key):
        raise _broken(cid)
    content = _content_key(key)
    last = max(-(-size // SEGMENT) - 1, 0)
    number, skip = divmod(min(max(offset, 0), size), SEGMENT)
    if number > last:
        return
    waiting = bytearray()
    start = _HEADER + number * (SEGMENT + _TAG)
    async with aclosing(blobs.read(cid, start)) as parts:  # type: ignore[type-var]
        async for part in parts:
            waiting += part
            while number < last and len(waiting) >= SEGMENT + _TAG:
                segment = bytes(waiting[: SEGMENT + _TAG])
                del waiting[: SEGMENT + _TAG]
                yield _decrypt(content, segment, number, cid, is_last=False)[skip:]
                number, skip = number + 1, 0
    yield _decrypt(content, bytes(waiting), number, cid, is_last=True)[skip:]


def plain_size(size_bytes: int) -> int:
    """Return the size of the file in an encrypted blob; `bad_request` if no blob has that size."""
    whole, rest = divmod(size_bytes - _HEADER, SEGMENT + _TAG)
    if size_bytes < _HEADER + _TAG or 0 < rest < _TAG or (rest == _TAG and whole > 0):
        raise bad_request("the blob holds no whole attachment")
    return whole * SEGMENT + max(rest - _TAG, 0)


async def is_encrypted(blobs: Blobs, cid: str) -> bool:
    """Whether a blob looks like an encrypted attachment."""
    return (await _beginning(blobs, cid)).startswith(MAGIC)


async def opens(blobs: Blobs, cid: str, key: bytes) -> bool:
    """Whether a blob was encrypted with this key."""
    return hmac.compare_digest(await _beginning(blobs, cid), MAGIC + _commitment(key))


async def find(client: Client, blobs: Blobs, cid: str) -> ChatAttachment | None:
    """Ask the own node for the key of a blob; None if it is not encrypted or its key is unknown."""
    if not await is_encrypted(blobs, cid):
        return None
    try:
        return ChatAttachment.from_output((await client.call(OPEN, {}, {"cid": cid}))["output"])
    except CommunityError as error:
        if error.code is Code.NOT_FOUND:
            return None
        raise


async def _beginning(blobs: Blobs, cid: str) -> bytes:
    async with aclosing(blobs.read(cid)) as parts:  # type: ignore[type-var]
        async for part in parts:
            return bytes(part[:_HEADER])
    return b""


def _encrypt(content: bytes, segment: bytes, number: int, *, is_last: bool) -> bytes:
    sealed: bytes = crypto_aead_chacha20poly1305_ietf_encrypt(
        segment, None, _nonce(number, is_last=is_last), content
    )
    return sealed


def _decrypt(content: bytes, segment: bytes, number: int, cid: str, *, is_last: bool) -> bytes:
    try:
        plain: bytes = crypto_aead_chacha20poly1305_ietf_decrypt(
            segment, None, _nonce(number, is_last=is_last), content
        )
    except CryptoError:
        raise _broken(cid) from None
    return plain


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(_NUMBER, "big") + bytes([is_last])


def _content_key(key: bytes) -> bytes:
    return blake3(key, derive_key_context=_CONTENT).digest()


def _commitment(key: bytes) -> bytes:
    return blake3(key, derive_key_context=_COMMIT).digest()


def _broken(cid: str) -> CommunityError:
    return bad_request(
        "the attachment does not open with the key in its message",
        where=cid,
        mend="ask its sender to send it again",
    )
