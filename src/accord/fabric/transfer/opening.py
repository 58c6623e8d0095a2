"""From what a contract declares to an open transfer: the store, the key and the limits."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from accord.fabric.errors import ValidationError
from accord.fabric.link import Link
from accord.fabric.objects import open_store
from accord.fabric.reception import Request
from accord.fabric.terms import Terms
from accord.fabric.transfer.uploads import EXPIRES_SECONDS, Completed, Uploads

Open = Callable[[Request, Any], Awaitable[tuple[dict[str, Any], Completed]]]
"""Opens the upload that an operation's input asks for: the grant, and how to wait for the file."""


def opening(uploads: Uploads, link: Link, terms: Terms, declared: Mapping[str, Any]) -> Open:
    """What opens the uploads of an operation that declares a transfer.

    Raises:
        NotFoundError: The store is not bound.
    """
    store = open_store(link, terms, declared["store"])
    expires = declared.get("expiresInMs")

    async def open_upload(request: Request, payload: Any) -> tuple[dict[str, Any], Completed]:
        key = _at(payload, declared["key"])
        kind = _at(payload, declared["contentType"]) if "contentType" in declared else None
        metadata = _at(payload, declared["metadata"]) if "metadata" in declared else None
        if not isinstance(key, str) or not key:
            raise ValidationError(f"the request has no key at {declared['key']}")
        if not (kind is None or isinstance(kind, str)):
            raise ValidationError(f"what is at {declared['contentType']} is no content type")
        if not (metadata is None or _is_metadata(metadata)):
            raise ValidationError(f"what is at {declared['metadata']} are not texts by name")
        grant, completed = uploads.open(
            request.caller,
            store,
            key,
            expires=EXPIRES_SECONDS if expires is None else expires / 1000,
            max_bytes=declared.get("maxBytes"),
            content_type=kind,
            metadata=metadata,
        )
        return grant.wire(), completed

    return open_upload


def _is_metadata(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _at(payload: Any, pointer: str) -> Any:
    """What a JSON Pointer leads to; None where it leads to nothing."""
    found = payload
    for step in pointer.split("/")[1:]:
        if not isinstance(found, dict):
            return None
        found = found.get(step.replace("~1", "/").replace("~0", "~"))
    return found
