"""Grants: what a service tells one session of a file that it may send or fetch. Pure.

A grant names its own subject and runs out. Who may subscribe to downloads may hear those of others,
so the frames of a download are sealed with a key that only its grant holds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from accord.fabric.errors import UnauthorizedError, ValidationError
from accord.kernel import base64url
from accord.kernel.clock import TimestampError, format_time, parse_time

SEQUENCE: Final = "trellis-transfer-seq"
EOF: Final = "trellis-transfer-eof"

WINDOW: Final = 32
"""How many frames of a download go out before the caller must want more."""

_LARGEST_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Grant:
    """The right of one session to one transfer.

    Attributes:
        direction: `send` for what the caller uploads, `receive` for what it downloads.
        session: The caller's session key.
        subject: Where the frames go.
        expires_at: Until when, in seconds since the epoch.
        chunk_bytes: How large a frame may be.
        max_bytes: How large the file may be.
        info: What is to be downloaded.
        seal: The key of the frames of a download.
    """

    direction: Literal["send", "receive"]
    service: str
    session: str
    id: str
    subject: str
    expires_at: float
    chunk_bytes: int
    max_bytes: int | None = None
    content_type: str | None = None
    metadata: Mapping[str, str] | None = None
    info: Mapping[str, Any] | None = None
    seal: bytes | None = field(default=None, repr=False)

    def wire(self) -> dict[str, Any]:
        """As it travels."""
        written: dict[str, Any] = {
            "type": "TransferGrant",
            "direction": self.direction,
            "service": self.service,
            "sessionKey": self.session,
            "transferId": self.id,
            "subject": self.subject,
            "expiresAt": format_time(self.expires_at, millis=True),
            "chunkBytes": self.chunk_bytes,
        }
        optional = {
            "maxBytes": self.max_bytes,
            "contentType": self.content_type,
            "metadata": self.metadata,
            "info": self.info,
            "seal": None if self.seal is None else base64url.encode(self.seal),
        }
        return written | {name: value for name, value in optional.items() if value is not None}


def read_grant(given: Any) -> Grant:
    """The grant that came.

    Raises:
        ValidationError: It is none.
    """
    try:
        if given["type"] != "TransferGrant" or given["direction"] not in ("send", "receive"):
            raise ValidationError("what came is no grant of a transfer")
        chunk, seal, most = given["chunkBytes"], given.get("seal"), given.get("maxBytes")
        if not 0 < chunk <= _LARGEST_CHUNK or not (most is None or most >= 0):
            raise ValidationError("the grant's sizes are none")
        return Grant(
            given["direction"],
            str(given["service"]),
            str(given["sessionKey"]),
            str(given["transferId"]),
            str(given["subject"]),
            parse_time(given["expiresAt"]),
            chunk,
            most,
            given.get("contentType"),
            given.get("metadata"),
            given.get("info"),
            None if seal is None else base64url.decode(seal),
        )
    except (AttributeError, KeyError, TypeError, TimestampError, base64url.Base64Error):
        raise ValidationError("what came is no grant of a transfer") from None


def frame_id(grant_id: str, sequence: int, *, eof: bool) -> str:
    """By which a frame of an upload is signed, so that none passes for another."""
    return f"{grant_id}.{sequence}{'.eof' if eof else ''}"


def window_subject(grant: Grant, sequence: int) -> str:
    """Where a frame of a download goes: its own subject for each window."""
    return f"{grant.subject}-{sequence // WINDOW}"


def seal(grant: Grant, data: bytes, sequence: int, *, eof: bool) -> bytes:
    """A frame of a download as it travels."""
    return bytes(_box(grant).encrypt(data, _nonce(sequence, eof=eof)).ciphertext)


def unseal(grant: Grant, data: bytes, sequence: int, *, eof: bool) -> bytes:
    """A frame of a download as it was.

    Raises:
        UnauthorizedError: Whoever sent it does not hold the key, or it is another frame.
    """
    try:
        return _box(grant).decrypt(data, _nonce(sequence, eof=eof))
    except CryptoError:
        raise UnauthorizedError("a frame of the download is not what was sent") from None


def _box(grant: Grant) -> SecretBox:
    if grant.seal is None or len(grant.seal) != SecretBox.KEY_SIZE:
        raise ValidationError("the grant holds no key")
    return SecretBox(grant.seal)


def _nonce(sequence: int, *, eof: bool) -> bytes:
    # Each key is used for one download, and each number in it once.
    return bytes([eof]) + sequence.to_bytes(SecretBox.NONCE_SIZE - 1, "big")
