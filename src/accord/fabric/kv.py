"""Key-value buckets: raw buckets with compare-and-set, leases, and a contract's typed buckets.

`Bucket` and `Lease` serve operations and jobs; `KeyValue` serves the user (`resources.kv`). Reads
go to the stream's leader, so instances see each other's writes. A lease expires when its key was
not written for `ttl` seconds of server time; taking it over is a compare-and-set, so a renewal
wins.
"""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic

from typing_extensions import TypeVar

from accord.fabric import streams
from accord.fabric.link import Inbox, Link
from accord.fabric.rules.errors import (
    ConflictError,
    DeadlineError,
    FabricError,
    NotFoundError,
    UnavailableError,
    ValidationError,
)
from accord.fabric.rules.models import RAW, Model
from accord.fabric.rules.terms import Terms, read_payload, write_payload
from accord.kernel.schema import Schema

_OPERATION: Final = "KV-Operation"
_MARKER: Final = "Nats-Marker-Reason"
_GONE: Final = {_OPERATION: "DEL"}
_TRIES: Final = 40
_LONGEST_PAUSE: Final = 0.2
_WATCH_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class BucketEntry:
    """The value of a key, with its revision and the server's time of writing."""

    key: str
    value: bytes
    revision: int
    at: float


Decide = Callable[[BucketEntry | None], bytes | None]
"""Maps the current entry to the new value; None leaves it unchanged."""


class Bucket:
    """One bucket, by its physical name."""

    def __init__(self, inbox: Inbox, name: str) -> None:
        self.name = name
        self._inbox = inbox
        self._stream = f"KV_{name}"
        self._stem = f"$KV.{name}."
        self._chance = random.Random()  # noqa: S311 - it only spreads retries

    async def get(self, key: str) -> BucketEntry | None:
        """The entry of a key; None if there is none or it was deleted."""
        found = await streams.last_on(self._inbox, self._stream, self._stem + key)
        return None if found is None or _is_marker(found) else self._entry(found)

    async def put(self, key: str, value: bytes) -> int:
        """Write a value unconditionally and return its revision."""
        return await streams.append(self._inbox, self._stem + key, value)

    async def create(self, key: str, value: bytes) -> int:
        """Write a value; raises ConflictError if the key has one."""
        try:
            return await self.update(key, value, 0)
        except ConflictError:
            found = await streams.last_on(self._inbox, self._stream, self._stem + key)
            if found is not None and not _is_marker(found):
                raise
            return await self.update(key, value, 0 if found is None else found.sequence)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Replace one revision; raises ConflictError if there is another."""
        return await streams.append(self._inbox, self._stem + key, value, last=revision)

    async def change(self, key: str, decide: Decide, *, is_new: bool = False) -> int:
        """Read, decide and write until there is no conflict; return the resulting revision.

        `decide` may be called several times, and once more with its own write if the server's
        answer was lost: it must be idempotent. `is_new` skips the first read where the key is
        likely unused. Raises ConflictError after too many concurrent changes.
        """
        for attempt in range(_TRIES):
            found = None if is_new and not attempt else await self.get(key)
            value = decide(found)
            if value is None:
                return 0 if found is None else found.revision
            try:
                if found is not None:
                    return await self.update(key, value, found.revision)
                return await self.create(key, value)
            except ConflictError:
                longest = min(_LONGEST_PAUSE, 0.002 * 2**attempt)
                await asyncio.sleep(self._chance.uniform(0, longest))
        raise ConflictError("too many concurrent changes", where=key)

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Mark a key as deleted, keeping its history; ConflictError if `revision` is outdated."""
        await streams.append(self._inbox, self._stem + key, b"", headers=_GONE, last=revision)

    async def remove(self, key: str, revision: int | None = None) -> None:
        """Delete a key with its history; raises like `delete`."""
        subject = self._stem + key
        marker = await streams.append(self._inbox, subject, b"", headers=_GONE, last=revision)
        # Only up to the marker, so that a key created again in between stays.
        await streams.purge(self._inbox, self._stream, subject, below=marker + 1)

    async def discard(self, key: str, revision: int) -> None:
        """Delete a key's entries up to a revision; newer ones stay."""
        subject = self._stem + key
        await streams.purge(self._inbox, self._stream, subject, below=revision + 1)

    async def keys(self, matching: str = ">") -> AsyncIterator[str]:
        """The keys that were ever written and not purged; some may be deleted."""
        async for subject in streams.subjects(self._inbox, self._stream, self._stem + matching):
            yield subject.removeprefix(self._stem)

    async def history(self, key: str) -> AsyncIterator[BucketEntry | None]:
        """The stored entries of a key, oldest first; None stands for a deletion."""
        sequence = 1
        while True:
            found = await streams.next_on(self._inbox, self._stream, self._stem + key, sequence)
            if found is None:
                return
            sequence = found.sequence + 1
            yield None if _is_marker(found) else self._entry(found)

    async def changes(self, matching: str = ">") -> AsyncIterator[tuple[str, BucketEntry | None]]:
        """What is stored of the keys, oldest first, and every later change; None is a deletion.

        Survives lost connections. New changes are looked for every half second.
        """
        sequence = 1
        while True:
            try:
                found = await streams.next_on(
                    self._inbox, self._stream, self._stem + matching, sequence
                )
            except (DeadlineError, UnavailableError):
                found = None
            if found is None:
                await asyncio.sleep(_WATCH_SECONDS)
                continue
            sequence = found.sequence + 1
            entry = None if _is_marker(found) else self._entry(found)
            yield found.subject.removeprefix(self._stem), entry

    async def server_time(self) -> float:
        """The time of the clock that stamps entries."""
        return await streams.server_time(self._inbox, self._stream)

    def _entry(self, found: streams.StoredMessage) -> BucketEntry:
        return BucketEntry(
            found.subject.removeprefix(self._stem), found.data, found.sequence, found.at
        )


def _is_marker(found: streams.StoredMessage) -> bool:
    return _OPERATION in found.headers or _MARKER in found.headers


_KEY: Final = re.compile(r"[-/_=a-zA-Z0-9]+(?:\.[-/_=a-zA-Z0-9]+)*", re.ASCII)
_LONGEST_KEY: Final = 512
_AT_ONCE: Final = 64


T = TypeVar("T", default=Any)


@dataclass(frozen=True, slots=True)
class KvValue(Generic[T]):
    """The value of a key, with its revision and the server's time of writing."""

    key: str
    value: T
    revision: int
    at: float


@dataclass(frozen=True, slots=True)
class KeyValue(Generic[T]):
    """The values of a bucket that a contract declares, as JSON or as a model.

    Keys are words of letters, digits and `-_/=`, separated by dots. Values are validated when
    written (ValidationError) and when read.
    """

    bucket: Bucket
    schema: Schema
    model: Model[T] = RAW
    max_value_bytes: int | None = field(default=None, kw_only=True)

    async def get(self, key: str) -> KvValue[T] | None:
        """The value of a key or None; raises ValidationError if it breaks the contract's schema."""
        found = await self.bucket.get(_checked(key))
        return None if found is None else self._read(found)

    async def put(self, key: str, value: T) -> int:
        """Write a value unconditionally and return its revision."""
        return await self.bucket.put(_checked(key), self._written(key, value))

    async def create(self, key: str, value: T) -> int:
        """Write a value; raises ConflictError if the key has one."""
        return await self.bucket.create(_checked(key), self._written(key, value))

    async def update(self, key: str, value: T, revision: int) -> int:
        """Replace one revision; raises ConflictError if there is another."""
        return await self.bucket.update(_checked(key), self._written(key, value), revision)

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Delete a key; raises ConflictError if `revision` is given and not the current one."""
        await self.bucket.delete(_checked(key), revision)

    async def watch(self, within: str = "") -> AsyncIterator[tuple[str, KvValue[T] | None]]:
        """The keys with their values, and every later change; None stands for a deletion.

        With `within`, only keys that begin with it and a dot. Values that a key had before come
        first where the bucket keeps a history. Survives lost connections; a change is seen within
        half a second. Raises ValidationError for a value that breaks the contract.
        """
        matching = f"{_checked(within)}.>" if within else ">"
        async for key, found in self.bucket.changes(matching):
            yield key, None if found is None else self._read(found)

    async def entries(self, within: str = "") -> AsyncIterator[KvValue[T]]:
        """All values, or those whose keys begin with `within` and a dot."""
        matching = f"{_checked(within)}.>" if within else ">"
        keys = sorted([key async for key in self.bucket.keys(matching)])
        for first in range(0, len(keys), _AT_ONCE):
            some = keys[first : first + _AT_ONCE]
            for found in await asyncio.gather(*map(self.bucket.get, some)):
                if found is not None:
                    yield self._read(found)

    async def keys(self, within: str = "") -> list[str]:
        """The sorted keys of `entries`."""
        return [entry.key async for entry in self.entries(within)]

    async def history(self, key: str) -> AsyncIterator[KvValue[T] | None]:
        """The stored values of a key, oldest first; None stands for a deletion."""
        async for found in self.bucket.history(_checked(key)):
            yield None if found is None else self._read(found)

    def _read(self, found: BucketEntry) -> KvValue[T]:
        what = f"the value of {found.key}"
        value = self.model.read(read_payload(self.schema, found.value, what), what)
        return KvValue(found.key, value, found.revision, found.at)

    def _written(self, key: str, value: T) -> bytes:
        what = f"the value for {key}"
        data = write_payload(self.schema, self.model.write(value, what), what)
        most = self.max_value_bytes
        if most is not None and len(data) > most:
            raise ValidationError(
                f"the value for {key} has {len(data)} bytes, more than the {most} accepted"
            )
        return data


def open_kv(link: Link, terms: Terms, alias: str, model: Model[T] = RAW) -> KeyValue[T]:
    """Open a bucket; raises NotFoundError if it is not declared or not bound."""
    declared = terms.manifest.get("resources", {}).get("kv", {}).get(alias)
    bound: Mapping[str, Any] | None = link.bound.resources.get("kv", {}).get(alias)
    if declared is None or bound is None:
        raise NotFoundError(f"no bucket {alias!r} is declared and bound", where=terms.id)
    return KeyValue(
        Bucket(link.inbox, bound["bucket"]),
        terms.schema(declared["schema"]),
        model,
        max_value_bytes=bound.get("maxValueBytes"),
    )


def _checked(key: str) -> str:
    if len(key) > _LONGEST_KEY or _KEY.fullmatch(key) is None:
        raise ValidationError(
            f"{key[:80]!r} cannot be a key",
            mend="use letters, digits and -_/= with single dots between",
        )
    return key


_RENEWALS: Final = 4
_GIVE_UP: Final = 0.75
_FREE: Final = b""


@dataclass(slots=True, eq=False)
class Lease:
    """A lease that is held; `lost` is set once somebody else has it or may have it."""

    _bucket: Bucket
    key: str
    _value: bytes
    _revision: int
    _ttl: float
    _every: float | None = None
    lost: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def renewed(self) -> AsyncIterator["Lease"]:
        """Renew the lease while the block runs; it is not released at the end."""
        keeping = asyncio.create_task(self._keep())
        try:
            yield self
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping

    async def renew(self) -> None:
        """Write the lease again; ConflictError if another holds it, FabricError if unknown."""
        try:
            self._revision = await self._bucket.update(self.key, self._value, self._revision)
        except ConflictError:
            # An earlier renewal may have been stored although its answer was lost.
            found = await self._bucket.get(self.key)
            if found is None or found.value != self._value:
                self.lost.set()
                raise
            self._revision = found.revision

    async def release(self) -> None:
        """Give the lease back and remove its key."""
        if not self.lost.is_set():
            await self._bucket.discard(self.key, self._revision)
            self.lost.set()

    async def hand_over(self) -> None:
        """Give the lease back but leave its key, so that another instance takes it at once."""
        if not self.lost.is_set():
            with suppress(ConflictError):
                await self._bucket.update(self.key, _FREE, self._revision)
            self.lost.set()

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        every = min(self._every or self._ttl / _RENEWALS, self._ttl / 2)
        while True:
            await asyncio.sleep(every)
            began = loop.time()
            left = renewed + self._ttl * _GIVE_UP - began
            try:
                async with asyncio.timeout(max(0.0, left)):
                    await self.renew()
                renewed = began
            except ConflictError:
                return
            except TimeoutError:
                self.lost.set()
                return
            except FabricError:
                continue


async def take_lease(
    bucket: Bucket,
    key: str,
    token: str,
    ttl: float,
    now: float | None = None,
    *,
    every: float | None = None,
) -> Lease | None:
    """Take a lease that is free or has expired; None if somebody holds it.

    `token` identifies this holder and is used only once. `now` is a recent server time, to save
    asking for it. It is renewed `every` so many seconds, by default a fraction of `ttl`.
    """
    value = token.encode()
    try:
        revision = await _take_lease(bucket, key, value, ttl, now)
    except ConflictError:
        revision = None
    if revision is None:
        return None
    return Lease(bucket, key, value, revision, ttl, every)


async def take_over_lease(bucket: Bucket, key: str, token: str, ttl: float) -> Lease | None:
    """Take an existing lease that has expired; None if there is none."""
    value = token.encode()
    found = await bucket.get(key)
    if found is None or await _is_lease_held(bucket, found, ttl, None):
        return None
    try:
        return Lease(bucket, key, value, await bucket.update(key, value, found.revision), ttl)
    except ConflictError:
        return None


async def _take_lease(
    bucket: Bucket, key: str, value: bytes, ttl: float, now: float | None
) -> int | None:
    try:
        return await bucket.update(key, value, 0)  # usually it is free
    except ConflictError:
        found = await bucket.get(key)
    if found is None:
        return await bucket.create(key, value)
    if await _is_lease_held(bucket, found, ttl, now):
        return None
    return await bucket.update(key, value, found.revision)


async def is_lease_held(bucket: Bucket, key: str, ttl: float, now: float | None = None) -> bool:
    """Whether somebody holds a lease."""
    found = await bucket.get(key)
    return found is not None and await _is_lease_held(bucket, found, ttl, now)


async def _is_lease_held(bucket: Bucket, found: BucketEntry, ttl: float, now: float | None) -> bool:
    if found.value == _FREE:
        return False
    now = await bucket.server_time() if now is None else now
    return now - found.at < ttl
