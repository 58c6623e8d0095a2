"""What is known of a stored object, in the form in which every client of NATS keeps it. Pure."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from accord.fabric.errors import FabricError


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """An object.

    Attributes:
        key: Its name in the store.
        size: How many bytes it has.
        digest: The SHA-256 of its bytes.
        updated_at: When it was stored, as RFC 3339 has it.
        chunks: In how many messages it lies.
        place: Under which name they lie.
    """

    key: str
    size: int
    digest: bytes
    updated_at: str
    chunks: int
    place: str
    content_type: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def wire(self) -> dict[str, Any]:
        """As transfers describe it."""
        described: dict[str, Any] = {
            "key": self.key,
            "size": self.size,
            "updatedAt": self.updated_at,
            "digest": _digest(self.digest),
            "metadata": dict(self.metadata),
        }
        return described | ({"contentType": self.content_type} if self.content_type else {})


def write(info: ObjectInfo, store: str, chunk_bytes: int) -> bytes:
    """What is kept beside the object's bytes."""
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


def write_deleted(info: ObjectInfo, store: str) -> bytes:
    """What is kept of an object that was deleted."""
    kept = {"name": info.key, "bucket": store, "nuid": info.place, "deleted": True}
    return orjson.dumps(kept | {"size": 0, "chunks": 0, "mtime": info.updated_at})


def read(data: bytes) -> ObjectInfo | None:
    """What was kept; None of an object that was deleted.

    Raises:
        FabricError: It is no description of an object.
    """
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
        raise FabricError("what is kept here describes no object") from None


def _digest(digest: bytes) -> str:
    return f"SHA-256={base64.urlsafe_b64encode(digest).decode()}"
