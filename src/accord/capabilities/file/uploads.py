"""Blobs that other nodes are uploading: progress, ownership and limits.

An upload without activity is dropped after a while; its chunks stay in the store, so that the
caller can resume.
"""

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from accord.capabilities.file.blobs import Blobs, Incoming
from accord.capabilities.file.rules import Manifest
from accord.community.errors import Code, CommunityError
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource


@dataclass(frozen=True, slots=True)
class FileSettings:
    """How a node stores files for others.

    Attributes:
        grace_seconds: How long an unreferenced blob stays before it may be collected.
        idle_seconds: How long a `file.put` waits for the next chunks.
        resume_seconds: How long an interrupted `file.put` may be resumed by its id.
        max_uploads: How many blobs are received at once.
        max_uploads_each: How many of them from one caller.
        max_hints: How many holder hints are kept.
    """

    grace_seconds: float = 86_400.0
    idle_seconds: float = 50.0
    resume_seconds: float = 600.0
    max_uploads: int = 16
    max_uploads_each: int = 4
    max_hints: int = 100_000


@dataclass(slots=True, eq=False)
class Upload:
    """A blob that somebody is uploading.

    Attributes:
        received: How many chunks were sent, not counting those that were here.
        is_done: Whether the blob is complete and durable.
        touched: The time of the last activity, by the monotonic clock.
        changed: Set on every activity.
    """

    upload_id: str
    caller: str
    community: str
    incoming: Incoming
    touched: float
    received: int = 0
    is_done: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def manifest(self) -> Manifest:
        """The blob's manifest."""
        return self.incoming.manifest


class FileUploads:
    """The uploads of a node."""

    def __init__(self, blobs: Blobs, clock: Clock, settings: FileSettings) -> None:
        self._blobs = blobs
        self._clock = clock
        self._settings = settings
        self._ids = UlidSource(clock)
        self._uploads: dict[str, Upload] = {}
        self._beginning = asyncio.Lock()

    @property
    def cids(self) -> list[str]:
        """The CIDs of the blobs that are being received."""
        return [upload.manifest.cid for upload in self._uploads.values()]

    async def begin(
        self, caller: str, community: str, manifest: Manifest, readable: AbstractSet[str] | None
    ) -> Upload:
        """Start or resume an upload.

        Args:
            readable: Blobs that the caller may read here, whose chunks need not be sent; None for
                all.

        Raises:
            CommunityError: There is no room, or there are too many uploads: `capacity_exceeded`.
        """
        async with self._beginning:
            self._forget()
            whose = (caller, community, manifest.cid)
            for known in self._uploads.values():
                if (known.caller, known.community, known.manifest.cid) == whose:
                    known.touched = self._clock.monotonic()
                    return known
            self._check_count(caller)
            incoming = await self._blobs.receive(
                manifest,
                usable=None if readable is None else readable.__contains__,
                sender=caller,
            )
            expected = sum(each.incoming.missing_bytes for each in self._uploads.values())
            self._blobs.folder.check_room(expected + incoming.missing_bytes)
            upload = Upload(self._ids.new(), caller, community, incoming, self._clock.monotonic())
            self._uploads[upload.upload_id] = upload
            return upload

    def find(self, upload_id: str, caller: str, community: str) -> Upload:
        """Return an upload of a caller, or raise `not_found`."""
        upload = self._uploads.get(upload_id)
        if upload is None or (upload.caller, upload.community) != (caller, community):
            raise CommunityError(
                Code.NOT_FOUND,
                "no such upload is under way",
                mend="ask again with the manifest; what has come is kept",
            )
        return upload

    async def take(self, upload: Upload, chunks: Mapping[int, bytes]) -> None:
        """Store some chunks; raises as `Incoming.take` does."""
        async with upload.turn:
            fresh = len(upload.incoming.missing & chunks.keys())
            if not upload.is_done:
                await upload.incoming.take(chunks)
                upload.received += fresh
            upload.touched = self._clock.monotonic()
            upload.changed.set()

    async def finish(self, upload: Upload) -> bool:
        """Publish the blob if nothing is missing, and return whether this call did."""
        async with upload.turn:
            if upload.is_done or upload.incoming.missing:
                return False
            await upload.incoming.finish()
            upload.is_done = True
            self._uploads.pop(upload.upload_id, None)
            upload.changed.set()
            return True

    def _check_count(self, caller: str) -> None:
        mine = sum(upload.caller == caller for upload in self._uploads.values())
        settings = self._settings
        if mine >= settings.max_uploads_each or len(self._uploads) >= settings.max_uploads:
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                "too many blobs are being received",
                details={"retry_after_ms": 5000},
            )

    def _forget(self) -> None:
        oldest = self._clock.monotonic() - self._settings.resume_seconds
        for upload in [each for each in self._uploads.values() if each.touched < oldest]:
            del self._uploads[upload.upload_id]
