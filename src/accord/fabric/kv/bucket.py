"""A bucket of JetStream: bytes by key, with compare-and-set.

Owns revisions, listing and removal. What the bytes mean is for others. Values are read from the
stream's leader, so that what one instance wrote another one finds.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from accord.fabric import streams
from accord.fabric.errors import ConflictError
from accord.fabric.inbox import Inbox

_OPERATION: Final = "KV-Operation"
_MARKER: Final = "Nats-Marker-Reason"
_GONE: Final = {_OPERATION: "DEL"}
_TRIES: Final = 40
_LONGEST_PAUSE: Final = 0.2


@dataclass(frozen=True, slots=True)
class Entry:
    """What a key holds.

    Attributes:
        revision: Rises with every change in the bucket.
        at: When it was written, by the server's clock.
    """

    key: str
    value: bytes
    revision: int
    at: float


Decide = Callable[[Entry | None], bytes | None]
"""From what is there to what should be there instead; None leaves it as it is."""


class Bucket:
    """One bucket.

    Args:
        inbox: How the server is asked.
        name: The bucket's physical name.
    """

    def __init__(self, inbox: Inbox, name: str) -> None:
        self.name = name
        self._inbox = inbox
        self._stream = f"KV_{name}"
        self._stem = f"$KV.{name}."
        self._chance = random.Random()  # noqa: S311 - it only spreads retries

    async def get(self, key: str) -> Entry | None:
        """What a key holds; None where nothing was put, or it was deleted."""
        found = await streams.last_on(self._inbox, self._stream, self._stem + key)
        return None if found is None or _is_marker(found) else self._entry(found)

    async def put(self, key: str, value: bytes) -> int:
        """Write a value, whatever is there, and return its revision."""
        return await streams.append(self._inbox, self._stem + key, value)

    async def create(self, key: str, value: bytes) -> int:
        """Write a value where there is none.

        Raises:
            ConflictError: There is one.
        """
        try:
            return await self.update(key, value, 0)
        except ConflictError:
            found = await streams.last_on(self._inbox, self._stream, self._stem + key)
            if found is not None and not _is_marker(found):
                raise
            return await self.update(key, value, 0 if found is None else found.sequence)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        """Write a value in the place of one revision.

        Raises:
            ConflictError: Another one is there.
        """
        return await streams.append(self._inbox, self._stem + key, value, last=revision)

    async def change(self, key: str, decide: Decide, *, is_new: bool = False) -> int:
        """Read, decide and write until nobody comes between; return the revision that is left.

        Args:
            key: The key.
            decide: What should be there instead of what is.
            is_new: Whether there is most likely nothing, so that to read first is in vain.

        The decision may be asked for more than once, and once more for what it has itself written
        where the server's answer was lost: it must know its own work again.

        Raises:
            ConflictError: Too many change it at once.
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
        raise ConflictError("too many change it at once", where=key)

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Mark a key as deleted, where wanted only at one revision; the history stays.

        Raises:
            ConflictError: Another revision is there.
        """
        await streams.append(self._inbox, self._stem + key, b"", headers=_GONE, last=revision)

    async def remove(self, key: str, revision: int | None = None) -> None:
        """Delete a key with all its history, where wanted only at one revision.

        Raises:
            ConflictError: Another revision is there.
        """
        subject = self._stem + key
        marker = await streams.append(self._inbox, subject, b"", headers=_GONE, last=revision)
        # Only up to the marker: whoever creates the key anew meanwhile keeps it.
        await streams.purge(self._inbox, self._stream, subject, below=marker + 1)

    async def discard(self, key: str, revision: int) -> None:
        """Take out what a key held up to a revision, where what is newer may stay."""
        subject = self._stem + key
        await streams.purge(self._inbox, self._stream, subject, below=revision + 1)

    async def keys(self, matching: str = ">") -> AsyncIterator[str]:
        """The keys on which something was put; some may have been deleted since."""
        async for subject in streams.subjects(self._inbox, self._stream, self._stem + matching):
            yield subject.removeprefix(self._stem)

    async def history(self, key: str) -> AsyncIterator[Entry | None]:
        """What a key held, from the oldest that is kept; None where it was deleted."""
        sequence = 1
        while True:
            found = await streams.next_on(self._inbox, self._stream, self._stem + key, sequence)
            if found is None:
                return
            sequence = found.sequence + 1
            yield None if _is_marker(found) else self._entry(found)

    async def server_time(self) -> float:
        """The clock that stamps the entries."""
        return await streams.server_time(self._inbox, self._stream)

    def _entry(self, found: streams.Stored) -> Entry:
        return Entry(found.subject.removeprefix(self._stem), found.data, found.sequence, found.at)


def _is_marker(found: streams.Stored) -> bool:
    return _OPERATION in found.headers or _MARKER in found.headers
