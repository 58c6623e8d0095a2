"""Descriptions of stored objects, in the format of NATS object stores. Pure."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from accord.fabric.rules.errors import FabricError


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
