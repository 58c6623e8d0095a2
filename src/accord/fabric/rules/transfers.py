"""Files: descriptions of stored objects, and grants to send or fetch one file. Pure.

Descriptions have the format of NATS object stores. A grant has its own subject and expires. Whoever
may subscribe to downloads can hear those of others, so frames of a download are encrypted with a
key from the grant.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from accord.fabric.rules.errors import FabricError, UnauthorizedError, ValidationError
from accord.kernel import canonical
from accord.kernel.clock import TimestampError, format_time, parse_time


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The description of an object."""

    key: str
    size: int
    digest: bytes  # SHA-256
    updated_at: str  # RFC 3339
    chunks: int  # number of messages
    place: str  # the name under which the chunks are stored
    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def wire(self) -> dict[str, Any]:
        """The description in transfer grants."""
        described: dict[str, Any] = {
            "key": self.key,
            "size": self.size,
            "updatedAt": self.updated_at,
            "digest": _digest(self.digest),
            "metadata": dict(self.metadata),
        }
        return described | ({"contentType": self.content_type} if self.content_type else {})


def write_info(info: ObjectInfo, store: str, chunk_bytes: int) -> bytes:
    """A description as stored beside the chunks."""
    kept: dict[str, Any] = {
        "name": info.key,
        "bucket": store,
        "nuid": info.place,
        "size": info.size,
        "chunks": info.chunks,
        "mtime": info.updated_at,
        "digest": _digest(info.digest),
        "metadata": dict(info.metadata),
        "options": {"max_chunk_size": chunk_bytes},
    }
    if info.content_type is not None:
        kept["headers"] = {"Content-Type": [info.content_type]}
    return orjson.dumps(kept)


def write_deleted_info(info: ObjectInfo, store: str) -> bytes:
    """The description of a deleted object."""
    kept = {"name": info.key, "bucket": store, "nuid": info.place, "deleted": True}
    return orjson.dumps(kept | {"size": 0, "chunks": 0, "mtime": info.updated_at})


def read_info(data: bytes) -> ObjectInfo | None:
    """A stored description; None for a deleted object. Raises FabricError."""
    try:
        kept = orjson.loads(data)
        if kept.get("deleted"):
            return None
        types = (kept.get("headers") or {}).get("Content-Type") or [None]
        return ObjectInfo(
            str(kept["name"]),
            int(kept["size"]),
            base64.urlsafe_b64decode(kept["digest"].partition("=")[2]),
            str(kept["mtime"]),
            int(kept["chunks"]),
            str(kept["nuid"]),
            types[0],
            kept.get("metadata") or {},
        )
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error):
        raise FabricError("the stored object description is malformed") from None


def _digest(digest: bytes) -> str:
    return f"SHA-256={base64.urlsafe_b64encode(digest).decode()}"


SEQUENCE: Final = "trellis-transfer-seq"
EOF: Final = "trellis-transfer-eof"

WINDOW: Final = 32
"""Download frames that are sent before the caller must subscribe to the next window."""

_LARGEST_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class TransferGrant:
    """The right of one session to one transfer."""

    direction: Literal["send", "receive"]  # `send` is an upload by the caller, `receive` a download
    service: str
    session: str  # the caller's session key
    id: str
    subject: str
    expires_at: float  # seconds since the epoch
    chunk_bytes: int  # largest frame
    max_bytes: int | None = None  # largest file
    content_type: str | None = None
    metadata: Mapping[str, str] | None = None
    info: Mapping[str, Any] | None = None  # describes the file to be downloaded
    seal: bytes | None = field(default=None, repr=False)  # the key for the frames of a download

    def wire(self) -> dict[str, Any]:
        """The grant as JSON."""
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
            "seal": None if self.seal is None else canonical.encode_base64url(self.seal),
        }
        return written | {name: value for name, value in optional.items() if value is not None}


def read_grant(given: Any) -> TransferGrant:
    """A received grant; raises ValidationError."""
    try:
        if given["type"] != "TransferGrant" or given["direction"] not in ("send", "receive"):
            raise ValidationError("not a transfer grant")
        chunk, seal, most = given["chunkBytes"], given.get("seal"), given.get("maxBytes")
        if not 0 < chunk <= _LARGEST_CHUNK or not (most is None or most >= 0):
            raise ValidationError("the grant's sizes are invalid")
        return TransferGrant(
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
            None if seal is None else canonical.decode_base64url(seal),
        )
    except (AttributeError, KeyError, TypeError, TimestampError, canonical.Base64Error):
        raise ValidationError("not a transfer grant") from None


def frame_id(grant_id: str, sequence: int, *, eof: bool) -> str:
    """The request id by which an upload frame is signed, different for every frame."""
    return f"{grant_id}.{sequence}{'.eof' if eof else ''}"


def window_subject(grant: TransferGrant, sequence: int) -> str:
    """The subject of a download frame; every window has its own."""
    return f"{grant.subject}-{sequence // WINDOW}"


def seal(grant: TransferGrant, data: bytes, sequence: int, *, eof: bool) -> bytes:
    """Encrypt a download frame."""
    return bytes(_box(grant).encrypt(data, _nonce(sequence, eof=eof)).ciphertext)


def unseal(grant: TransferGrant, data: bytes, sequence: int, *, eof: bool) -> bytes:
    """Decrypt a download frame; raises UnauthorizedError if key or frame do not fit."""
    try:
        return _box(grant).decrypt(data, _nonce(sequence, eof=eof))
    except CryptoError:
        raise UnauthorizedError("a frame of the download is not what was sent") from None


def _box(grant: TransferGrant) -> SecretBox:
    if grant.seal is None or len(grant.seal) != SecretBox.KEY_SIZE:
        raise ValidationError("the grant holds no key")
    return SecretBox(grant.seal)


def _nonce(sequence: int, *, eof: bool) -> bytes:
    # Each key is used for one download, and each number in it once.
    return bytes([eof]) + sequence.to_bytes(SecretBox.NONCE_SIZE - 1, "big")
