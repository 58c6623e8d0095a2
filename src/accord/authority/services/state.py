"""The service of `trellis.state@v1`: the state that contracts declare, in one bucket.

The owner of the state follows from the caller's session. Every value is checked against the schema
of the contract that the session presented, and stored with its version; an older version is
returned as it is, for its contract to migrate.
"""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.authority.contracts import (
    MAX_STATE_KEY,
    StateDelete,
    StateDeleteReply,
    StateEntry,
    StateGetReply,
    StateList,
    StateListReply,
    StatePut,
    StatePutReply,
    StateRef,
)
from accord.authority.manifests import Manifests
from accord.authority.rules.records import SessionHolder
from accord.authority.services.core import bind_handlers
from accord.fabric.kv import Bucket, BucketEntry
from accord.fabric.requests import Caller, Request
from accord.fabric.rules.errors import ConflictError, NotFoundError, ValidationError
from accord.fabric.server import Server
from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.schema import Schema, compile_schema

_SCOPE: Final = 26  # 130 bits in base32
_VALUE: Final = "v"
_KEY: Final = "k"
_AT_ONCE: Final = 32


@dataclass(frozen=True, slots=True)
class _StateStore:
    """A store of one contract for one holder; `scope` begins its keys in the bucket."""

    scope: str
    is_map: bool
    version: str
    known: frozenset[str]
    schema: Schema

    def place(self, key: str | None) -> str:
        """The key of an entry in the bucket."""
        if (key is not None) is not self.is_map:
            needs = "needs a key" if self.is_map else "is one value, without keys"
            raise ValidationError(f"the store {needs}", issues=[{"path": "/key", "message": needs}])
        if key is None:
            return f"{self.scope}.{_VALUE}"
        if len(raw := key.encode()) > MAX_STATE_KEY:
            message = f"a key has at most {MAX_STATE_KEY} bytes"
            raise ValidationError(message, issues=[{"path": "/key", "message": message}])
        return f"{self.scope}.{_KEY}{canonical.encode_base64url(raw)}"


@dataclass(frozen=True, slots=True)
class StateService:
    """The handlers."""

    _manifests: Manifests
    _bucket: Bucket
    _clock: Clock

    def serve(self, server: Server) -> None:
        """Answer on a server of the contract."""
        bind_handlers(
            server,
            {
                "State.Get": self.get,
                "State.Put": self.put,
                "State.Delete": self.delete,
                "State.List": self.list,
            },
        )

    async def get(self, request: Request, payload: Any) -> dict[str, Any]:
        """The entry of a key, or the single value."""
        asked = StateRef.read(payload)
        store = await self._store(request.who, asked.store)
        found = await self._bucket.get(store.place(asked.key))
        return StateGetReply(entry=_read(found)).wire()

    async def put(self, request: Request, payload: Any) -> dict[str, Any]:
        """Store a value, optionally only if the revision is as expected."""
        asked = StatePut.read(payload)
        store = await self._store(request.who, asked.store)
        place = store.place(asked.key)
        if findings := store.schema.findings(asked.value):
            raise ValidationError.of(
                f"the value does not match the schema of the state {asked.store!r}", findings
            )
        written = canonical.encode(
            {"value": asked.value, "version": store.version, "at": self._clock.now()}
        )
        if asked.expected_revision is None:
            revision = await self._bucket.change(
                place, lambda found: _replaced(store, found, written)
            )
            return StatePutReply(applied=True, revision=revision).wire()
        try:
            if asked.expected_revision == 0:
                revision = await self._bucket.create(place, written)
            else:
                revision = await self._bucket.update(place, written, asked.expected_revision)
        except ConflictError:
            entry = _read(await self._bucket.get(place))
            revision = 0 if entry is None else entry.revision
            return StatePutReply(applied=False, revision=revision, found=entry).wire()
        return StatePutReply(applied=True, revision=revision).wire()

    async def delete(self, request: Request, payload: Any) -> dict[str, Any]:
        """Delete an entry, optionally only if the revision is as expected."""
        asked = StateDelete.read(payload)
        store = await self._store(request.who, asked.store)
        place = store.place(asked.key)
        found = await self._bucket.get(place)
        if found is None:
            return StateDeleteReply(applied=False).wire()
        try:
            await self._bucket.remove(place, asked.expected_revision)
        except ConflictError:
            entry = _read(await self._bucket.get(place))
            return StateDeleteReply(applied=False, found=entry).wire()
        return StateDeleteReply(applied=True).wire()

    async def list(self, request: Request, payload: Any) -> dict[str, Any]:
        """The entries of a map, in the order of their keys."""
        asked = StateList.read(payload)
        store = await self._store(request.who, asked.store)
        store.place("")  # refuses a store that is no map
        prefix, after = asked.prefix or "", asked.after
        keys = [
            key
            async for key in self._keys(store)
            if key.startswith(prefix) and (after is None or key > after)
        ]
        keys.sort()
        page = keys[: asked.limit]
        turns = asyncio.Semaphore(_AT_ONCE)

        async def read(key: str) -> StateEntry | None:
            async with turns:
                return _read(await self._bucket.get(store.place(key)))

        found = await asyncio.gather(*map(read, page))
        return StateListReply(
            entries=[entry for entry in found if entry is not None],
            next=page[-1] if len(keys) > len(page) else None,
        ).wire()

    async def _keys(self, store: _StateStore) -> AsyncIterator[str]:
        async for place in self._bucket.keys(f"{store.scope}.>"):
            yield canonical.decode_base64url(place.rpartition(".")[2].removeprefix(_KEY)).decode()

    async def _store(self, who: Caller, name: str) -> _StateStore:
        manifest = None if who.digest is None else await self._manifests.get(who.digest)
        declared = None if manifest is None else manifest.get("state", {}).get(name)
        if manifest is None or declared is None:
            raise NotFoundError(f"the session's contract declares no state {name!r}")
        version = declared.get("stateVersion", "v1")
        schema: Mapping[str, Any] = manifest["schemas"][declared["schema"]["schema"]]
        return _StateStore(
            _scope(who, manifest["id"], name),
            declared["kind"] == "map",
            version,
            frozenset({version, *declared.get("acceptedVersions", {})}),
            compile_schema(schema),
        )


def _scope(who: Caller, contract: str, store: str) -> str:
    """State belongs to one device, to all instances of a service, or to a person."""
    holder = who.session if who.holder == SessionHolder.DEVICE else who.subject
    identity = canonical.encode([contract, who.holder, holder, store])
    hashed = base64.b32encode(hashlib.sha256(identity).digest()).decode("ascii").lower()
    return hashed[:_SCOPE]


def _replaced(store: _StateStore, found: BucketEntry | None, written: bytes) -> bytes | None:
    """What to write; an unknown version is never overwritten without an expected revision."""
    entry = _read(found)
    if entry is not None and entry.state_version not in store.known:
        raise ConflictError(
            f"it was written under the version {entry.state_version!r}, which this contract "
            "does not know",
            mend="read it first and give the expected revision to replace it",
        )
    return None if found is not None and found.value == written else written


def _read(found: BucketEntry | None) -> StateEntry | None:
    if found is None:
        return None
    kept = canonical.decode(found.value)
    token = found.key.rpartition(".")[2]
    key = canonical.decode_base64url(token.removeprefix(_KEY)).decode() if token != _VALUE else None
    return StateEntry(
        key=key,
        value=kept["value"],
        state_version=kept["version"],
        revision=found.revision,
        updated_at=kept["at"],
    )
