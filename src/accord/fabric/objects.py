"""Object stores of a contract (`resources.store`): bytes by name, stored in chunks.

An object exists once its description is written; a killed writer leaves only invisible chunks.
Readers check the digest.
"""

import base64
import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final

from accord.fabric import streams
from accord.fabric.link import Link
from accord.fabric.rules.errors import ConflictError, FabricError, NotFoundError, ValidationError
from accord.fabric.rules.terms import Terms
from accord.fabric.rules.transfers import ObjectInfo, read_info, write_deleted_info, write_info
from accord.kernel.clock import format_time

CHUNK_BYTES: Final = 131_072
"""Bytes per message of an object."""

_LONGEST_KEY: Final = 512
_TRIES: Final = 10
_ROLLUP: Final = {"Nats-Rollup": "sub"}

Bytes = bytes | AsyncIterable[bytes]
"""An object's bytes, whole or in pieces."""


class ObjectStore:
    """The objects of one store, by its physical name."""

    def __init__(self, link: Link, name: str, *, max_object_bytes: int | None = None) -> None:
        self.max_object_bytes = max_object_bytes
        self._link = link
        self._name = name
        self._stream = f"OBJ_{name}"

    async def put(
        self,
        key: str,
        data: Bytes,
        *,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> ObjectInfo:
        """Store an object, replacing one of the same key.

        Raises ValidationError if it is too large or the key is invalid, and FabricError if it is
        unknown whether it was stored; the previous object stays.
        """
        meta = self._meta(key)
        place = self._link.ids.new()
        try:
            size, chunks, digest = await self._write(place, data)
            stored = ObjectInfo(
                key,
                size,
                digest,
                format_time(self._link.clock.now(), millis=True),
                chunks,
                place,
                content_type,
                dict(metadata or {}),
            )
            before = await self._describe(meta, write_info(stored, self._name, CHUNK_BYTES))
        except BaseException:
            with suppress(FabricError):
                await self._purge(place)
            raise
        if before is not None and before.place != place:
            await self._purge(before.place)
        return stored

    async def info(self, key: str) -> ObjectInfo | None:
        """The description of an object, or None."""
        found = await streams.last_on(self._link.inbox, self._stream, self._meta(key))
        return None if found is None else read_info(found.data)

    async def get(self, key: str) -> bytes:
        """The bytes of an object; raises NotFoundError."""
        for _ in range(_TRIES):
            try:
                return b"".join([chunk async for chunk in self.read(key)])
            except ConflictError:
                continue
        raise ConflictError("the object is replaced all the time", where=key)

    async def read(self, key: str) -> AsyncIterator[bytes]:
        """The bytes of an object in chunks; raises NotFoundError.

        ConflictError: it was replaced while it was read; the bytes so far are incomplete.
        """
        stored = await self.info(key)
        if stored is None:
            raise NotFoundError("there is no such object", where=key)
        subject, sequence = self._chunks(stored.place), 1
        digest = hashlib.sha256()
        for _ in range(stored.chunks):
            found = await streams.chunk_on(self._link.inbox, self._stream, subject, sequence)
            if found is None:
                raise ConflictError("the object was replaced while it was read", where=key)
            sequence = found[0] + 1
            digest.update(found[1])
            yield found[1]
        if digest.digest() != stored.digest:
            raise FabricError("the object's bytes are not those that were stored", where=key)

    async def delete(self, key: str) -> bool:
        """Delete an object; returns whether it existed."""
        stored = await self.info(key)
        if stored is None:
            return False
        before = await self._describe(self._meta(key), write_deleted_info(stored, self._name))
        if before is not None:
            await self._purge(before.place)
        return True

    async def list(self) -> AsyncIterator[ObjectInfo]:
        """All objects of the store."""
        matching = f"$O.{self._name}.M.>"
        async for subject in streams.subjects(self._link.inbox, self._stream, matching):
            found = await streams.last_on(self._link.inbox, self._stream, subject)
            stored = None if found is None else read_info(found.data)
            if stored is not None:
                yield stored

    async def _write(self, place: str, data: Bytes) -> tuple[int, int, bytes]:
        size, chunks, digest = 0, 0, hashlib.sha256()
        async for chunk in _cut(data):
            size += len(chunk)
            if self.max_object_bytes is not None and size > self.max_object_bytes:
                raise ValidationError(
                    f"the object has more than the {self.max_object_bytes} bytes accepted",
                    context={"maxObjectBytes": self.max_object_bytes},
                )
            digest.update(chunk)
            chunks += 1
            await streams.append(self._link.inbox, self._chunks(place), chunk)
        return size, chunks, digest.digest()

    async def _describe(self, meta: str, described: bytes) -> ObjectInfo | None:
        """Write a description and return the one that it replaces."""
        for _ in range(_TRIES):
            found = await streams.last_on(self._link.inbox, self._stream, meta)
            if (
                found is not None and found.data == described
            ):  # stored, although the answer was lost
                return None
            last = 0 if found is None else found.sequence
            try:
                await streams.append(self._link.inbox, meta, described, headers=_ROLLUP, last=last)
            except ConflictError:
                continue
            return None if found is None else read_info(found.data)
        raise ConflictError("too many concurrent writes of this object")

    async def _purge(self, place: str) -> None:
        await streams.purge(self._link.inbox, self._stream, self._chunks(place))

    def _chunks(self, place: str) -> str:
        return f"$O.{self._name}.C.{place}"

    def _meta(self, key: str) -> str:
        raw = key.encode("utf-8", "surrogatepass")
        if not 0 < len(raw) <= _LONGEST_KEY or "\x00" in key:
            raise ValidationError(f"a key has 1 to {_LONGEST_KEY} bytes")
        return f"$O.{self._name}.M.{base64.urlsafe_b64encode(raw).decode()}"


def open_store(link: Link, terms: Terms, alias: str) -> ObjectStore:
    """Open a store; raises NotFoundError if it is not declared or not bound."""
    declared = terms.manifest.get("resources", {}).get("store", {}).get(alias)
    bound: Mapping[str, Any] | None = link.bound.resources.get("store", {}).get(alias)
    if declared is None or bound is None:
        raise NotFoundError(f"no store {alias!r} is declared and bound", where=terms.id)
    return ObjectStore(link, bound["name"], max_object_bytes=bound.get("maxObjectBytes"))


async def _cut(data: Bytes) -> AsyncIterator[bytes]:
    if isinstance(data, bytes):
        for start in range(0, len(data), CHUNK_BYTES):
            yield data[start : start + CHUNK_BYTES]
        return
    rest = bytearray()
    async for piece in data:
        rest += piece
        while len(rest) >= CHUNK_BYTES:
            yield bytes(rest[:CHUNK_BYTES])
            del rest[:CHUNK_BYTES]
    if rest:
        yield bytes(rest)
