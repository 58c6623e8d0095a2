"""`file.read`, `file.list`, `file.advertise` and `file.put` on the bus: sections 4.7 to 4.10.

Beside them `experimental.file.share`, `unshare`, `shared`, `offered` and `gc`, by which a node's
owner lets others read a file, revokes that, and sees what others share.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

import structlog

from accord.capabilities.file.blobs import Blobs, FileSettings, FileUploads, Upload
from accord.capabilities.file.rules import PREFIX, Manifest, read_manifest
from accord.capabilities.file.shares import (
    FileShare,
    ReadRights,
    ShareMark,
    attached_to_messages,
    blobs_to_keep,
    file_name,
    file_title,
    foreign_documents,
    sent_files,
)
from accord.capabilities.file.transfer import BlobFetcher, HolderHints, read_chunk, write_chunk
from accord.community.bus import Call, Frame
from accord.community.communities import HostedCommunity
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.log import LogUpdate
from accord.community.node import Node
from accord.community.rules import capabilities
from accord.community.rules.formats import Level
from accord.community.rules.state import CommunityState
from accord.kernel import canonical
from accord.kernel.clock import Clock, format_time

_log = structlog.stdlib.get_logger(__name__)

MAX_LISTED: Final = 10_000
"""The most CIDs in one answer; callers give a longer prefix to see more."""

_ADVERTISED: Final = "file.cid.advertised"
_UNPINNED: Final = "file.cid.unpinned"
_PAGE: Final = 1000
# How often to look for communities that were joined.
_LOOK_SECONDS: Final = 5.0
_ASKED_AT_ONCE: Final = 32
# Owners of the pins of fetched chat attachments and of documents of a home of version 0.1.
_CHAT: Final = "chat"
_RAG: Final = "rag"
# At most one garbage collection a minute for uploads that need room.
_COLLECT_EVERY: Final = 60.0
# Finding out what is missing may require hashing 16 GiB.
_SECONDS: Final = 120.0


def register(
    node: Node, clock: Clock, blobs: Blobs, settings: FileSettings | None = None
) -> "Files":
    """Offer the files of a node on its bus; the caller runs the returned `Files`."""
    descriptors = capabilities.load_descriptors("accord.capabilities.file")
    serving = _FileService(node, clock, blobs, settings or FileSettings())
    offer = node.bus.registry.register
    offer(descriptors["file.read@1.0"], serving.read, max_concurrent=64, seconds=_SECONDS)
    offer(descriptors["file.list@1.0"], serving.list_blobs)
    offer(descriptors["file.advertise@1.0"], serving.advertise)
    offer(descriptors["file.put@1.0"], serving.put, max_concurrent=64, seconds=_SECONDS)
    offer(descriptors["experimental.file.gc@1.0"], serving.gc, max_concurrent=1, seconds=3600.0)
    offer(descriptors["experimental.file.share@1.0"], serving.share)
    offer(descriptors["experimental.file.unshare@1.0"], serving.unshare)
    offer(descriptors["experimental.file.shared@1.0"], serving.shared, max_concurrent=32)
    offer(descriptors["experimental.file.offered@1.0"], serving.offered, seconds=_SECONDS)
    return Files(node, serving)


class Files:
    """Asks members for the names of files when they share new ones."""

    def __init__(self, node: Node, serving: "_FileService") -> None:
        self._node = node
        self._serving = serving
        self._news = asyncio.Event()
        self._unasked: dict[tuple[str, str], HostedCommunity] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        await self._serving.adopt()
        watched: dict[str, HostedCommunity] = {}
        with ExitStack() as watching:
            while True:
                for community_id, hosted in tuple(self._node.communities.items()):
                    if watched.get(community_id) is not hosted:
                        watched[community_id] = hosted
                        watching.callback(hosted.log.subscribe(partial(self._hear, hosted)))
                        await self._look(hosted)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._news.wait()
                self._news.clear()
                asked, self._unasked = self._unasked, {}
                waiting = [(hosted, holder) for (_, holder), hosted in asked.items()]
                for start in range(0, len(waiting), _ASKED_AT_ONCE):
                    some = waiting[start : start + _ASKED_AT_ONCE]
                    await asyncio.gather(*(self._serving.fetching.ask(*each) for each in some))

    async def _look(self, hosted: HostedCommunity) -> None:
        """Find the members that shared something before the log was watched."""
        own = hosted.own_id
        holders = await hosted.log.view(
            lambda state: {holder for _, holder in state.content.files if holder != own}
        )
        if holders:
            self._unasked |= {(hosted.community_id, holder): hosted for holder in holders}
            self._news.set()

    def _hear(self, hosted: HostedCommunity, news: LogUpdate) -> None:
        for event in news.accepted:
            if event.event_type == _ADVERTISED and event.author != hosted.own_id:
                self._unasked[hosted.community_id, event.author] = hosted
                self._news.set()


class _FileService:
    def __init__(self, node: Node, clock: Clock, blobs: Blobs, settings: FileSettings) -> None:
        self._node = node
        self._clock = clock
        self._blobs = blobs
        self._settings = settings
        self._hints = HolderHints(settings.max_hints)
        self.fetching = BlobFetcher(node, blobs, self._hints)
        self._uploads = FileUploads(blobs, clock, settings)
        self._rights: dict[str, ReadRights] = {}
        self._sharing = asyncio.Lock()
        self._collected_at = -math.inf

    async def read(self, call: Call) -> Mapping[str, Any] | AsyncIterator[Frame]:
        cid = call.body["input"]["cid"]
        if await self._may_read(call, cid) and await asyncio.to_thread(self._blobs.has, cid):
            return self._blob(call, cid)
        for blob in await asyncio.to_thread(self._blobs.with_chunk, cid):
            if await self._may_read(call, blob):
                data = await asyncio.to_thread(self._blobs.chunk, cid)
                output = {
                    "cid": cid,
                    "size_bytes": len(data),
                    "data_b64": canonical.encode_base64url(data),
                }
                return call.answer(output)
        if call.own:
            return self._fetched(call, cid)
        raise CommunityError(Code.NOT_FOUND, "this node has no such blob or chunk", where=cid)

    async def list_blobs(self, call: Call) -> Mapping[str, Any]:
        prefix = call.body["input"].get("prefix", PREFIX)
        if call.own:
            found = await asyncio.to_thread(self._blobs.cids, prefix)
        else:
            readable = await self._rights_in(call.community).readable(call.caller)
            wanted = sorted(cid for cid in readable if cid.startswith(prefix))
            found = await asyncio.to_thread(lambda: [*filter(self._blobs.has, wanted)])
        return call.answer({"cids": found[:MAX_LISTED]}, more=len(found) > MAX_LISTED or None)

    async def advertise(self, call: Call) -> Mapping[str, Any]:
        cids = dict.fromkeys(call.body["input"]["cids"])
        for cid in cids:
            self._hints.add(call.community, cid, call.caller)
        return call.answer({"recorded": len(cids)})

    async def put(self, call: Call) -> Mapping[str, Any] | AsyncIterator[Frame]:
        given = call.body["input"]
        if "manifest" in given:
            manifest = await asyncio.to_thread(read_manifest, given["manifest"])
            await self._make_room(manifest.size_bytes)
            readable = (
                None if call.own else await self._rights_in(call.community).readable(call.caller)
            )
            upload = await self._uploads.begin(call.caller, call.community, manifest, readable)
            return self._receive(call, upload)
        upload = self._uploads.find(given["upload_id"], call.caller, call.community)
        await self._uploads.take(upload, await asyncio.to_thread(_chunks, upload, given["chunks"]))
        await self._complete(upload)
        output = {"received": upload.received, "missing": len(upload.incoming.missing)}
        return call.answer(output)

    async def gc(self, call: Call) -> Mapping[str, Any]:
        call.check_own("collect its garbage")
        grace = call.body["input"].get("grace_seconds", self._settings.grace_seconds)
        collected = await self._collect(grace)
        output = {"blobs": collected[0], "size_bytes": collected[1]}
        return call.answer(output)

    async def share(self, call: Call) -> Mapping[str, Any]:
        call.check_own("share its files")
        hosted = self._node.community(call.community)
        given = call.body["input"]
        readers = given.get("with")
        for node_id in readers or ():
            if hosted.level_of(node_id) < Level.MEMBER:
                raise CommunityError(
                    Code.NOT_FOUND, "this is no member of the community", where=node_id
                )
        manifest = await asyncio.to_thread(self._blobs.manifest, given["cid"])
        share = FileShare(
            manifest.cid,
            manifest.size_bytes,
            file_name(given.get("name", "")),
            file_title(given.get("title", "")),
            format_time(self._clock.now()),
            None if readers is None else tuple(sorted(set(readers))),
        )
        async with self._sharing:
            await self._share(hosted, share)
        output = {
            "cid": share.cid,
            "size_bytes": share.size_bytes,
            "with": None if share.readers is None else list(share.readers),
        }
        return call.answer(output)

    async def unshare(self, call: Call) -> Mapping[str, Any]:
        call.check_own("share its files")
        hosted = self._node.community(call.community)
        cid = call.body["input"]["cid"]
        async with self._sharing:
            # First pin what version 0.1 kept, so that this file is not pinned again later.
            await self.adopt()
            was_shared = await self._unshare(hosted, cid)
        output = {"cid": cid, "was_shared": was_shared}
        return call.answer(output)

    async def shared(self, call: Call) -> Mapping[str, Any]:
        hosted = self._node.community(call.community)
        given = call.body["input"]
        after, prefix = given.get("after", ""), given.get("prefix", PREFIX)
        own = hosted.own_id
        advertised = await hosted.log.view(
            lambda state: {
                cid: size for (cid, by), size in state.content.files.items() if by == own
            }
        )

        def look() -> list[FileShare]:
            shares = {cid: FileShare(cid, size) for cid, size in advertised.items()}
            shares |= self._blobs.shares.all(hosted.community_id)
            return [
                share
                for cid, share in sorted(shares.items())
                if cid > after
                and cid.startswith(prefix)
                and (call.own or share.is_for(call.caller))
                and self._blobs.has(cid)
            ]

        found = await asyncio.to_thread(look)
        limit = given.get("limit", _PAGE)
        files = [_listed_share(share, shows_readers=call.own) for share in found[:limit]]
        return call.answer({"files": files}, more=len(found) > limit or None)

    async def offered(self, call: Call) -> Mapping[str, Any]:
        call.check_own("ask what is shared with it")
        hosted = self._node.community(call.community)
        away: list[str] = []
        if call.body["input"].get("refresh", True):
            away = await self.fetching.refresh(hosted)
        own = hosted.own_id

        def look(state: CommunityState) -> tuple[dict[tuple[str, str], int], set[str]]:
            held = {key: size for key, size in state.content.files.items() if key[1] != own}
            return held, set(state.roster.members)

        held, members = await hosted.log.view(look)

        def merge() -> list[dict[str, Any]]:
            found = {
                (cid, holder): FileShare(cid, size)
                for (cid, holder), size in held.items()
                if holder in members
            }
            for holder, shares in self._blobs.catalogue.all(hosted.community_id).items():
                for share in shares:
                    key = share.cid, holder
                    # A file shared with everybody is listed only while the log says so.
                    if holder in members and (share.readers is not None or key in found):
                        found[key] = share
            return [
                {
                    **_listed_share(share, shows_readers=False),
                    "holder": holder,
                    "is_here": self._blobs.has(cid),
                }
                for (cid, holder), share in sorted(found.items())
            ]

        files = await asyncio.to_thread(merge)
        output = {"files": files[:MAX_LISTED], "unreachable": away}
        return call.answer(output, more=len(files) > MAX_LISTED or None)

    async def _share(self, hosted: HostedCommunity, share: FileShare) -> None:
        """Store the share, and advertise it in the log if everybody may read it."""
        shares, community = self._blobs.shares, hosted.community_id
        is_advertised = (share.cid, hosted.own_id) in hosted.state.content.files
        before = await asyncio.to_thread(shares.get, community, share.cid)
        await asyncio.to_thread(shares.put, community, share)
        try:
            if share.readers is None and not is_advertised:
                held = {"cid": share.cid, "sizes_bytes": share.size_bytes}
                await hosted.log.append(_ADVERTISED, held)
            elif share.readers is not None and is_advertised:
                await hosted.log.append(_UNPINNED, {"cid": share.cid})
        except BaseException:
            if before is None:
                await asyncio.to_thread(shares.remove, community, share.cid)
            else:
                await asyncio.to_thread(shares.put, community, before)
            raise

    async def _unshare(self, hosted: HostedCommunity, cid: str) -> bool:
        """Revoke every right to read a blob that this node gave; False if there was none."""
        shares, community = self._blobs.shares, hosted.community_id
        was_shared = False
        if (cid, hosted.own_id) in hosted.state.content.files:
            # First, so that nothing has changed if the log refuses the event.
            await hosted.log.append(_UNPINNED, {"cid": cid})
            was_shared = True
        if await self._rights_in(community).names(cid):
            was_shared |= not await asyncio.to_thread(
                shares.is_marked, community, ShareMark.WITHDRAWN, cid
            )
            await asyncio.to_thread(shares.mark, community, ShareMark.WITHDRAWN, cid)
        was_shared |= await asyncio.to_thread(shares.unmark, community, ShareMark.DOCUMENT, cid)
        was_shared |= await asyncio.to_thread(shares.remove, community, cid)
        return was_shared

    async def _blob(self, call: Call, cid: str) -> AsyncIterator[Frame]:
        manifest = await asyncio.to_thread(self._blobs.manifest, cid)
        yield Frame("manifest", manifest.payload())
        i = 0
        async for data in self._blobs.chunks(manifest):
            told = write_chunk(i, manifest.chunks[i], data)
            yield Frame("chunk", {**told, "size_bytes": len(data)})
            i += 1
        yield Frame("done", {"chunks": i, "ms": call.elapsed_ms})

    async def _fetched(self, call: Call, cid: str) -> AsyncIterator[Frame]:
        hosted = self._node.community(call.community)
        async for done, total in self.fetching.fetch(hosted, cid):
            yield Frame("progress", {"current": done, "total": total, "stage": "fetching"})
        sent = sent_files(await attached_to_messages(hosted), hosted.own_id)
        if cid in sent:
            # Pin what was sent to this node and fetched, so that it is not collected.
            await asyncio.to_thread(self._blobs.pin, cid, _CHAT)
        async for frame in self._blob(call, cid):
            yield frame

    async def _receive(self, call: Call, upload: Upload) -> AsyncIterator[Frame]:
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
        yield Frame("done", {"received": upload.received, "ms": call.elapsed_ms})

    async def _complete(self, upload: Upload) -> None:
        """Publish the blob once nothing is missing, and advertise it in the log."""
        if not await self._uploads.finish(upload):
            return
        hosted = self._node.community(upload.community)
        cid = upload.manifest.cid
        if (cid, hosted.own_id) in hosted.state.content.files:
            return
        held = {"cid": cid, "sizes_bytes": upload.manifest.size_bytes}
        try:
            await hosted.log.append(_ADVERTISED, held)
        except CommunityError as error:
            # The blob is here all the same, until garbage is collected.
            _log.warning("blob stored but not advertised", cid=cid, why=str(error))

    async def _may_read(self, call: Call, cid: str) -> bool:
        return call.own or await self._rights_in(call.community).may_read(cid, call.caller)

    def _rights_in(self, community: str) -> ReadRights:
        hosted = self._node.community(community)
        known = self._rights.get(community)
        # A community that was left and joined again has another log.
        if known is None or known.hosted is not hosted:
            known = self._rights[community] = ReadRights(hosted, self._blobs.shares)
        return known

    async def _make_room(self, wanted: int) -> None:
        """Collect garbage if there is no room; the caller checks for room again."""
        try:
            self._blobs.folder.check_room(wanted)
        except CommunityError:
            now = self._clock.monotonic()
            if now - self._collected_at >= _COLLECT_EVERY:
                self._collected_at = now
                await self._collect(self._settings.grace_seconds)

    async def _collect(self, grace: float) -> tuple[int, int]:
        now = self._clock.now()
        await self.adopt()
        wanted: set[str] = set()
        for hosted in tuple(self._node.communities.values()):
            withdrawn = await asyncio.to_thread(
                self._blobs.shares.marked, hosted.community_id, ShareMark.WITHDRAWN
            )
            look = partial(
                blobs_to_keep,
                attached=await attached_to_messages(hosted),
                holder=hosted.own_id,
                as_of=now,
                withdrawn=withdrawn,
            )
            wanted |= await hosted.log.view(look)
        collected = await asyncio.to_thread(
            self._blobs.collect, wanted, incoming=self._uploads.cids, before=now - grace
        )
        return collected.blobs, collected.size_bytes

    async def adopt(self) -> None:
        """Pin, once per home, what version 0.1 kept because events named it.

        Version 0.1 kept whatever a message or a corpus named. Attachments sent to this node and
        documents it may have ingested must not disappear with an upgrade.
        """
        if await asyncio.to_thread(lambda: self._blobs.shares.is_adopted):
            return
        for hosted in tuple(self._node.communities.values()):
            sent = sent_files(await attached_to_messages(hosted), hosted.own_id)
            documents = await hosted.log.view(partial(foreign_documents, own=hosted.own_id))

            def pin(sent: set[str] = sent, documents: set[str] = documents) -> None:
                for owner, cids in ((_CHAT, sent), (_RAG, documents)):
                    for cid in filter(self._blobs.has, cids):
                        self._blobs.pin(cid, owner)

            await asyncio.to_thread(pin)
        await asyncio.to_thread(self._blobs.shares.adopt)


def _listed_share(share: FileShare, *, shows_readers: bool) -> dict[str, Any]:
    listed: dict[str, Any] = {
        "cid": share.cid,
        "size_bytes": share.size_bytes,
        "name": share.name,
        "title": share.title,
        "shared_at": share.shared_at,
        "scope": "community" if share.readers is None else "members",
    }
    if shows_readers and share.readers is not None:
        listed["with"] = list(share.readers)
    return listed


def _chunks(upload: Upload, told: list[Mapping[str, Any]]) -> dict[int, bytes]:
    """Return the chunks of a call by number, checked against the manifest."""
    manifest: Manifest = upload.manifest
    for each in told:
        if each["i"] >= len(manifest.chunks) or manifest.chunks[each["i"]] != each["cid"]:
            raise bad_request("the manifest has another chunk there", where=f"chunk {each['i']}")
    return dict(map(read_chunk, told))
