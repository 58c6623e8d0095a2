"""Serving `file.read`, `file.list`, `file.advertise` and `file.put`: sections 4.7 to 4.10.

A caller sees the blobs that its community names here (`naming`), the node's owner all of them. What
the owner asks for and is not here is fetched first.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import structlog

from accord.capabilities.file.blobs import Blobs
from accord.capabilities.file.fetching import Fetching, Hints
from accord.capabilities.file.manifests import PREFIX, Manifest, read_manifest
from accord.capabilities.file.naming import Naming, named
from accord.capabilities.file.settings import FileSettings
from accord.capabilities.file.transfer import read_chunk, write_chunk
from accord.capabilities.file.uploads import Upload, Uploads
from accord.community.bus import Call, Frame
from accord.community.envelope import schemas
from accord.community.errors import Code, CommunityError
from accord.community.fold import State
from accord.community.node import Hosted, Node
from accord.kernel import base64url
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)

MAX_LISTED: Final = 10_000
"""How many CIDs one answer lists; whoever wants more gives a longer prefix."""

# However many ask for room, garbage is looked for once a minute.
_COLLECT_EVERY: Final = 60.0
# Finding out what is missing may mean to hash 16 GiB.
_SECONDS: Final = 120.0


def register(node: Node, clock: Clock, blobs: Blobs, settings: FileSettings | None = None) -> None:
    """Offer the files of a node on its bus."""
    descriptors = schemas.load("accord.capabilities.file")
    serving = _Serving(node, clock, blobs, settings or FileSettings())
    offer = node.bus.registry.register
    offer(descriptors["file.read@1.0"], serving.read, max_concurrent=64, seconds=_SECONDS)
    offer(descriptors["file.list@1.0"], serving.list_blobs)
    offer(descriptors["file.advertise@1.0"], serving.advertise)
    offer(descriptors["file.put@1.0"], serving.put, max_concurrent=64, seconds=_SECONDS)
    offer(descriptors["experimental.file.gc@1.0"], serving.gc, max_concurrent=1, seconds=3600.0)


class _Serving:
    def __init__(self, node: Node, clock: Clock, blobs: Blobs, settings: FileSettings) -> None:
        self._node = node
        self._clock = clock
        self._blobs = blobs
        self._settings = settings
        self._hints = Hints(settings.max_hints)
        self._fetching = Fetching(node, blobs, self._hints)
        self._uploads = Uploads(blobs, clock, settings)
        self._naming: dict[str, Naming] = {}
        self._collected_at = -math.inf

    async def read(self, call: Call) -> Mapping[str, Any] | AsyncIterator[Frame]:
        began = self._clock.monotonic()
        cid = call.body["input"]["cid"]
        if await self._may_read(call, cid) and await asyncio.to_thread(self._blobs.has, cid):
            return self._blob(cid, began)
        for blob in await asyncio.to_thread(self._blobs.with_chunk, cid):
            if await self._may_read(call, blob):
                data = await asyncio.to_thread(self._blobs.chunk, cid)
                output = {
                    "cid": cid,
                    "size_bytes": len(data),
                    "data_b64": base64url.encode(data),
                }
                return {"output": output, "meta": {"ms": self._ms(began)}}
        if call.own:
            return self._fetched(self._node.community(call.community), cid, began)
        raise CommunityError(Code.NOT_FOUND, "this node has no such blob or chunk", where=cid)

    async def list_blobs(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        prefix = call.body["input"].get("prefix", PREFIX)
        if call.own:
            found = await asyncio.to_thread(self._blobs.cids, prefix)
        else:
            readable = await self._names(call.community).readable(call.caller)
            wanted = sorted(cid for cid in readable if cid.startswith(prefix))
            found = await asyncio.to_thread(lambda: [*filter(self._blobs.has, wanted)])
        meta: dict[str, Any] = {"ms": self._ms(began)}
        if len(found) > MAX_LISTED:
            meta["more"] = True
        return {"output": {"cids": found[:MAX_LISTED]}, "meta": meta}

    async def advertise(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        cids = dict.fromkeys(call.body["input"]["cids"])
        for cid in cids:
            self._hints.add(call.community, cid, call.caller)
        return {"output": {"recorded": len(cids)}, "meta": {"ms": self._ms(began)}}

    async def put(self, call: Call) -> Mapping[str, Any] | AsyncIterator[Frame]:
        began = self._clock.monotonic()
        given = call.body["input"]
        if "manifest" in given:
            manifest = await asyncio.to_thread(read_manifest, given["manifest"])
            await self._make_room(manifest.size_bytes)
            upload = await self._uploads.begin(call.caller, call.community, manifest)
            return self._receive(upload, began)
        upload = self._uploads.find(given["upload_id"], call.caller, call.community)
        await self._uploads.take(upload, await asyncio.to_thread(_chunks, upload, given["chunks"]))
        await self._complete(upload)
        output = {"received": upload.received, "missing": len(upload.incoming.missing)}
        return {"output": output, "meta": {"ms": self._ms(began)}}

    async def gc(self, call: Call) -> Mapping[str, Any]:
        began = self._clock.monotonic()
        if not call.own:
            raise CommunityError(
                Code.UNAUTHORIZED, "only the node's owner, on its own machine, collects garbage"
            )
        grace = call.body["input"].get("grace_seconds", self._settings.grace_seconds)
        collected = await self._collect(grace)
        output = {"blobs": collected[0], "size_bytes": collected[1]}
        return {"output": output, "meta": {"ms": self._ms(began)}}

    async def _blob(self, cid: str, began: float) -> AsyncIterator[Frame]:
        manifest = await asyncio.to_thread(self._blobs.manifest, cid)
        yield Frame("manifest", manifest.payload())
        i = 0
        async for data in self._blobs.chunks(manifest):
            told = write_chunk(i, manifest.chunks[i], data)
            yield Frame("chunk", {**told, "size_bytes": len(data)})
            i += 1
        yield Frame("done", {"chunks": i, "ms": self._ms(began)})

    async def _fetched(self, hosted: Hosted, cid: str, began: float) -> AsyncIterator[Frame]:
        async for done, total in self._fetching.fetch(hosted, cid):
            yield Frame("progress", {"current": done, "total": total, "stage": "fetching"})
        async for frame in self._blob(cid, began):
            yield frame

    async def _receive(self, upload: Upload, began: float) -> AsyncIterator[Frame]:
        needed = sorted(upload.incoming.missing)
        yield Frame("ready", {"needed": needed, "upload_id": upload.upload_id})
        await self._complete(upload)
        total = len(upload.manifest.chunks)
        while not upload.is_done:
            upload.changed.clear()
            try:
                async with asyncio.timeout(self._settings.idle_seconds):
                    await upload.changed.wait()
            except TimeoutError:
                raise CommunityError(
                    Code.TIMEOUT,
                    f"no chunk came for {self._settings.idle_seconds:g} seconds",
                    mend="ask again with the manifest; what has come is kept",
                ) from None
            here = total - len(upload.incoming.missing)
            yield Frame("progress", {"current": here, "total": total, "stage": "receiving"})
        yield Frame("done", {"received": upload.received, "ms": self._ms(began)})

    async def _complete(self, upload: Upload) -> None:
        """Make the blob whole once nothing is missing, and say in the log that it is held here."""
        if not await self._uploads.finish(upload):
            return
        hosted = self._node.community(upload.community)
        cid = upload.manifest.cid
        if (cid, hosted.own_id) in hosted.state.content.files:
            return
        held = {"cid": cid, "sizes_bytes": upload.manifest.size_bytes}
        try:
            await hosted.log.append("file.cid.advertised", held)
        except CommunityError as error:
            # It is here all the same, and stays until garbage is collected.
            _log.warning("a blob is held and not advertised", cid=cid, why=str(error))

    async def _may_read(self, call: Call, cid: str) -> bool:
        return call.own or await self._names(call.community).may_read(cid, call.caller)

    def _names(self, community: str) -> Naming:
        known = self._naming.get(community)
        if known is None:
            known = self._naming[community] = Naming(self._node.community(community))
        return known

    async def _make_room(self, wanted: int) -> None:
        """Collect garbage where there is no room; whoever needs it sees whether that helped."""
        try:
            self._blobs.shelf.check_room(wanted)
        except CommunityError:
            now = self._clock.monotonic()
            if now - self._collected_at >= _COLLECT_EVERY:
                self._collected_at = now
                await self._collect(self._settings.grace_seconds)

    async def _collect(self, grace: float) -> tuple[int, int]:
        now = self._clock.now()
        kept: set[str] = set()
        for hosted in tuple(self._node.communities.values()):

            def look(state: State, holder: str = hosted.own_id) -> set[str]:
                return named(state, holder, now)

            kept |= await hosted.log.view(look)
        collected = await asyncio.to_thread(
            self._blobs.collect, kept, incoming=self._uploads.cids, before=now - grace
        )
        return collected.blobs, collected.size_bytes

    def _ms(self, began: float) -> int:
        return int((self._clock.monotonic() - began) * 1000)


def _chunks(upload: Upload, told: list[Mapping[str, Any]]) -> dict[int, bytes]:
    """The chunks of a call, each at the place that the manifest gives it."""
    manifest: Manifest = upload.manifest
    for each in told:
        if each["i"] >= len(manifest.chunks) or manifest.chunks[each["i"]] != each["cid"]:
            raise CommunityError(
                Code.BAD_REQUEST, "the manifest has another chunk there", where=f"chunk {each['i']}"
            )
    return dict(map(read_chunk, told))
