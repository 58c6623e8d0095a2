"""A bucket that a contract declares (`resources.kv`): JSON values that keep its schema."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.fabric import payloads
from accord.fabric.errors import NotFoundError, ValidationError
from accord.fabric.kv.bucket import Bucket, Entry
from accord.fabric.link import Link
from accord.fabric.terms import Terms
from accord.kernel.schema import Schema

_KEY: Final = re.compile(r"[-/_=a-zA-Z0-9]+(?:\.[-/_=a-zA-Z0-9]+)*", re.ASCII)
_LONGEST_KEY: Final = 512
_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Value:
    """What a key holds.

    Attributes:
        revision: For `update`, which takes only what was not changed meanwhile.
        at: When it was written, by the server's clock.
    """

    key: str
    value: Any
    revision: int
    at: float


class KeyValue:
    """The values of one declared bucket.

    Keys are words of letters, digits and `-_/=` with dots between them.

    Args:
        bucket: Where they are.
        schema: What every value keeps, written or read.
        max_value_bytes: How large a value may be.
    """

    def __init__(
        self, bucket: Bucket, schema: Schema, *, max_value_bytes: int | None = None
    ) -> None:
        self._bucket = bucket
        self._schema = schema
        self._most = max_value_bytes

    async def get(self, key: str) -> Value | None:
        """What a key holds, or None.

        Raises:
            ValidationError: It does not keep the contract's schema.
        """
        found = await self._bucket.get(_checked(key))
        return None if found is None else self._read(found)

    async def put(self, key: str, value: Any) -> int:
        """Write a value, whatever is there, and return its revision."""
        return await self._bucket.put(_checked(key), self._written(key, value))

    async def create(self, key: str, value: Any) -> int:
        """Write a value where there is none.

        Raises:
            ConflictError: There is one.
        """
        return await self._bucket.create(_checked(key), self._written(key, value))

    async def update(self, key: str, value: Any, revision: int) -> int:
        """Write a value in the place of a revision.

        Raises:
            ConflictError: It was changed meanwhile.
        """
        return await self._bucket.update(_checked(key), self._written(key, value), revision)

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Delete what a key holds, where wanted only at one revision.

        Raises:
            ConflictError: It was changed meanwhile.
        """
        await self._bucket.delete(_checked(key), revision)

    async def entries(self, within: str = "") -> AsyncIterator[Value]:
        """Everything there is, or what lies under a key and a dot."""
        matching = f"{_checked(within)}.>" if within else ">"
        keys = sorted([key async for key in self._bucket.keys(matching)])
        for first in range(0, len(keys), _AT_ONCE):
            some = keys[first : first + _AT_ONCE]
            for found in await asyncio.gather(*map(self._bucket.get, some)):
                if found is not None:
                    yield self._read(found)

    async def keys(self, within: str = "") -> list[str]:
        """The keys of everything there is, in order."""
        return [entry.key async for entry in self.entries(within)]

    async def history(self, key: str) -> AsyncIterator[Value | None]:
        """What a key held, as far back as the bucket keeps it; None where it was deleted."""
        async for found in self._bucket.history(_checked(key)):
            yield None if found is None else self._read(found)

    def _read(self, found: Entry) -> Value:
        value = payloads.read(self._schema, found.value, f"the value of {found.key}")
        return Value(found.key, value, found.revision, found.at)

    def _written(self, key: str, value: Any) -> bytes:
        data = payloads.write(self._schema, value, f"the value for {key}")
        if self._most is not None and len(data) > self._most:
            raise ValidationError(
                f"the value for {key} has {len(data)} bytes, more than the {self._most} accepted"
            )
        return data


def open_kv(link: Link, terms: Terms, alias: str) -> KeyValue:
    """The bucket that a contract calls by an alias.

    Raises:
        NotFoundError: The contract declares none, or nothing is bound to it.
    """
    declared = terms.manifest.get("resources", {}).get("kv", {}).get(alias)
    bound: Mapping[str, Any] | None = link.bound.resources.get("kv", {}).get(alias)
    if declared is None or bound is None:
        raise NotFoundError(f"no bucket {alias!r} is declared and bound", where=terms.id)
    return KeyValue(
        Bucket(link.inbox, bound["bucket"]),
        terms.schema(declared["schema"]),
        max_value_bytes=bound.get("maxValueBytes"),
    )


def _checked(key: str) -> str:
    if len(key) > _LONGEST_KEY or _KEY.fullmatch(key) is None:
        raise ValidationError(
            f"{key[:80]!r} cannot be a key",
            mend="use letters, digits and -_/= with single dots between",
        )
    return key
