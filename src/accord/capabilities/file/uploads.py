"""The blobs that others are putting here: what has come, what is missing, who may send it.

Owns how many there are and how much room they will need. An upload that nobody goes on with is
forgotten after a while; what has come of it stays in the store, so asking again loses nothing.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from accord.capabilities.file.blobs import Blobs
from accord.capabilities.file.incoming import Incoming
from accord.capabilities.file.manifests import Manifest
from accord.capabilities.file.settings import FileSettings
from accord.community.errors import Code, CommunityError
from accord.kernel.clock import Clock
from accord.kernel.ulid import UlidSource


@dataclass(slots=True, eq=False)
class Upload:
    """A blob that somebody is putting here.

    Attributes:
        upload_id: What calls with its chunks name.
        received: How many chunks have come, not counting what was here.
        is_done: Whether the blob is whole and durable.
        touched: When something last came, by the monotonic clock.
        changed: Set whenever something came.
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
        """The blob."""
        return self.incoming.manifest


class Uploads:
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
        """The blobs that are being received."""
        return [upload.manifest.cid for upload in self._uploads.values()]

    async def begin(self, caller: str, community: str, manifest: Manifest) -> Upload:
        """Begin an upload, or take it up where it was.

        Raises:
            CommunityError: There is no room, or too many are under way: `capacity_exceeded`.
        """
        async with self._beginning:
            self._forget()
            whose = (caller, community, manifest.cid)
            for known in self._uploads.values():
                if (known.caller, known.community, known.manifest.cid) == whose:
                    known.touched = self._clock.monotonic()
                    return known
            self._check_count(caller)
            incoming = await self._blobs.receive(manifest)
            expected = sum(each.incoming.missing_bytes for each in self._uploads.values())
            self._blobs.shelf.check_room(expected + incoming.missing_bytes)
            upload = Upload(self._ids.new(), caller, community, incoming, self._clock.monotonic())
            self._uploads[upload.upload_id] = upload
            return upload

    def find(self, upload_id: str, caller: str, community: str) -> Upload:
        """An upload that a caller goes on with.

        Raises:
            CommunityError: There is none: `not_found`.
        """
        upload = self._uploads.get(upload_id)
        if upload is None or (upload.caller, upload.community) != (caller, community):
            raise CommunityError(
                Code.NOT_FOUND,
                "no such upload is under way",
                mend="ask again with the manifest; what has come is kept",
            )
        return upload

    async def take(self, upload: Upload, chunks: Mapping[int, bytes]) -> None:
        """Take some chunks; after the last one the blob is whole and durable.

        Raises:
            CommunityError: As `Incoming.take` and `Incoming.finish`.
        """
        async with upload.turn:
            fresh = len(upload.incoming.missing & chunks.keys())
            if not upload.is_done:
                await upload.incoming.take(chunks)
                upload.received += fresh
            upload.touched = self._clock.monotonic()
            upload.changed.set()

    async def finish(self, upload: Upload) -> bool:
        """Make it a blob, if nothing is missing; whether it became one just now.

        Raises:
            CommunityError: There is no room: `capacity_exceeded`.
        """
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
