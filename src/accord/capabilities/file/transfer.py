"""Blobs between nodes: `pull` by `file.read`, `push` by `file.put`, and the search for holders.

A blob is complete only when every chunk has the digest that its manifest names. Holders are known
from the log, from the lists of members, and from hints (`file.advertise`), which are kept in
memory.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, Final, cast

import structlog
from cachetools import FIFOCache

from accord.capabilities.file.blob_folder import TOGETHER
from accord.capabilities.file.blobs import Blobs, Incoming
from accord.capabilities.file.rules import Manifest, read_manifest
from accord.capabilities.file.shares import FileShare
from accord.community.bus import Frame
from accord.community.client import Client
from accord.community.communities import HostedCommunity
from accord.community.dialler import addresses_of
from accord.community.errors import Code, CommunityError, bad_request
from accord.community.messages import with_file
from accord.community.node import Node
from accord.community.rules import capabilities
from accord.community.rules.state import CommunityState
from accord.kernel import canonical

# The longest chunk in base64url; anything longer is refused before it is decoded.
_MAX_TEXT: Final = 349_526


async def pull(client: Client, blobs: Blobs, cid: str) -> AsyncGenerator[tuple[int, int], None]:
    """Get a blob from another node; yields the bytes that are here and the total.

    Raises:
        CommunityError: With the node's code; `bad_request` when it sends something else.
    """
    incoming: Incoming | None = None
    came: dict[int, bytes] = {}
    async with aclosing(_frames(client, "file.read", {"cid": cid})) as frames:
        async for frame in frames:
            if frame.event == "manifest" and incoming is None:
                manifest = read_manifest(frame.data)
                if manifest.cid != cid:
                    raise bad_request("the node gave another blob")
                incoming = await blobs.receive(manifest)
            elif frame.event == "chunk" and incoming is not None:
                i, data = read_chunk(frame.data)
                if i in incoming.missing:
                    came[i] = data
                if len(came) >= TOGETHER:
                    await incoming.take(came)
                    came = {}
                    yield _progress(incoming)
    if incoming is None:
        raise bad_request("the node gave no manifest")
    if came:
        await incoming.take(came)
    await incoming.finish()
    yield _progress(incoming)


async def push(
    client: Client,
    blobs: Blobs,
    cid: str,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Put a blob on another node, and return how many chunks had to be sent.

    Raises:
        CommunityError: With the node's code. Calling again sends only what is still needed.
    """
    manifest = await asyncio.to_thread(blobs.manifest, cid)
    offer = {"manifest": manifest.payload()}
    async with aclosing(_frames(client, "file.put", offer)) as frames:
        first = await anext(frames)
        if first.event != "ready":
            raise bad_request("the node did not say what it needs")
        needed = first.data["needed"]

        async def listen() -> int:
            async for frame in frames:
                if frame.event == "progress" and progress is not None:
                    progress(int(frame.data["current"]), int(frame.data.get("total", 0)))
                if frame.event == "done":
                    return int(frame.data["received"])
            raise CommunityError(Code.PARTITION, "the node did not say that it is done")

        sending = _send(client, blobs, manifest, needed, first.data.get("upload_id"))
        both = [asyncio.ensure_future(listen()), asyncio.ensure_future(sending)]
        try:
            received, _ = await asyncio.gather(*both)
        finally:
            for each in both:
                each.cancel()
            await asyncio.gather(*both, return_exceptions=True)
    return received


def write_chunk(i: int, cid: str, data: bytes) -> dict[str, Any]:
    """Return a chunk as on the wire."""
    return {"i": i, "cid": cid, "data_b64": canonical.encode_base64url(data)}


def read_chunk(told: Mapping[str, Any]) -> tuple[int, bytes]:
    """Read number and bytes of a chunk, not yet verified; `bad_request` if malformed."""
    i, text = told.get("i"), told.get("data_b64")
    if type(i) is not int or not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise bad_request("expected a chunk with i and data_b64")
    try:
        return i, canonical.decode_base64url(text)
    except canonical.Base64Error as error:
        raise bad_request(error.what, where=f"chunk {i}") from None


async def _send(
    client: Client, blobs: Blobs, manifest: Manifest, needed: Sequence[int], upload_id: Any
) -> int:
    for start in range(0, len(needed), TOGETHER):
        some = needed[start : start + TOGETHER]
        if not all(type(i) is int and 0 <= i < len(manifest.chunks) for i in some):
            raise bad_request("the node asks for chunks that do not exist")

        def chunks(some: Sequence[int] = some) -> list[dict[str, Any]]:
            return [
                write_chunk(i, manifest.chunks[i], blobs.folder.read(manifest, i, 1)[0])
                for i in some
            ]

        sent = {"upload_id": upload_id, "chunks": await asyncio.to_thread(chunks)}
        await client.call("file.put", {}, sent)
    return len(needed)


def _frames(
    client: Client, capability: str, given: Mapping[str, Any]
) -> AsyncGenerator[Frame, None]:
    frames: AsyncIterator[Frame] = client.stream(capability, {}, given)
    return cast("AsyncGenerator[Frame, None]", frames)


def _progress(incoming: Incoming) -> tuple[int, int]:
    size = incoming.manifest.size_bytes
    return size - incoming.missing_bytes, size


_log = structlog.stdlib.get_logger(__name__)

_HOLDERS: Final = 16
# Time limits for dialling a node, for its list of files, and for the lists of all members.
_DIAL_SECONDS: Final = 4.0
_ANSWER_SECONDS: Final = 10.0
_ROUND_SECONDS: Final = 20.0
_ASKED_AT_ONCE: Final = 32
_DESCRIPTORS: Final = capabilities.load_descriptors("accord.capabilities.file")

LIST_CAPABILITY: Final = "experimental.file.shared"
"""The capability by which a node lists what it shares with its caller."""

MAX_LISTED: Final = 2000
"""The most files of one member that are stored."""


class HolderHints:
    """Which nodes have said that they hold a blob; the oldest hints are dropped first."""

    def __init__(self, most: int) -> None:
        self._holders: FIFOCache[tuple[str, str], dict[str, None]] = FIFOCache(most)

    def add(self, community: str, cid: str, holder: str) -> None:
        """Add a hint."""
        holders = self._holders.get((community, cid), {})
        holders.pop(holder, None)
        holders[holder] = None
        if len(holders) > _HOLDERS:
            del holders[next(iter(holders))]
        self._holders[community, cid] = holders

    def holders(self, community: str, cid: str) -> list[str]:
        """Return the holders, most recent first."""
        return list(self._holders.get((community, cid), ()))[::-1]


@dataclass(frozen=True, slots=True)
class BlobFetcher:
    """Fetches blobs, and lists of shared files, from other nodes."""

    node: Node
    blobs: Blobs
    hints: HolderHints

    async def fetch(
        self, hosted: HostedCommunity, cid: str
    ) -> AsyncGenerator[tuple[int, int], None]:
        """Get a blob from the first holder that sends it; yields bytes here and total.

        Raises:
            CommunityError: No reachable member has it (`not_found`), or the own disk is full.
        """
        for holder in await self._holders(hosted, cid):
            for address in node_addresses(self.node, hosted, holder):
                try:
                    async with AsyncExitStack() as opened:
                        client, _ = await self.node.dialler.dial(
                            address, hosted.community_id, opened, node_id=holder
                        )
                        pulling = aclosing(pull(client, self.blobs, cid))
                        async for progress in await opened.enter_async_context(pulling):
                            yield progress
                except CommunityError as error:
                    if _is_own_disk(error):
                        raise
                    # Try the next holder.
                    _log.info("holder did not send the blob", holder=holder, why=error.what)
                    continue
                return
        raise CommunityError(
            Code.NOT_FOUND, "it is not here, and nobody who can be reached has it", where=cid
        )

    async def refresh(self, hosted: HostedCommunity) -> list[str]:
        """Ask all other members for the files they share with this node, and store the answers.

        Returns:
            The members that did not answer in time.
        """
        members = await hosted.log.view(lambda state: sorted(state.roster.members))
        await asyncio.to_thread(self.blobs.catalogue.forget, hosted.community_id, members)
        others = [each for each in members if each != hosted.own_id]
        turns = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def ask(holder: str) -> bool:
            async with turns:
                return await self.ask(hosted, holder)

        asked = {asyncio.create_task(ask(holder), name="shared files"): holder for holder in others}
        if not asked:
            return []
        try:
            answered, _ = await asyncio.wait(asked, timeout=_ROUND_SECONDS)
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        return [
            holder for task, holder in asked.items() if not (task in answered and task.result())
        ]

    async def ask(self, hosted: HostedCommunity, holder: str) -> bool:
        """Ask a member for the files it shares with this node; False if it does not answer."""
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._ask(hosted, holder)
        except (CommunityError, TimeoutError) as error:
            _log.info("member did not list its files", holder=holder, why=str(error))
            return False

    async def _ask(self, hosted: HostedCommunity, holder: str) -> bool:
        for address in node_addresses(self.node, hosted, holder):
            try:
                async with AsyncExitStack() as opened:
                    async with asyncio.timeout(_DIAL_SECONDS):
                        client, _ = await self.node.dialler.dial(
                            address, hosted.community_id, opened, node_id=holder
                        )
                    shares = await _list_all(client)
            except (CommunityError, TimeoutError) as error:
                _log.info(
                    "member not reachable for its list of files", holder=holder, why=str(error)
                )
                continue
            await asyncio.to_thread(self.blobs.catalogue.put, hosted.community_id, holder, shares)
            return True
        return False

    async def _holders(self, hosted: HostedCommunity, cid: str) -> list[str]:
        def look(state: CommunityState) -> set[str]:
            content = state.content
            shared = {by for known, by in content.files if known == cid}
            ingested = {
                document.ingester
                for (_, known), document in content.documents.items()
                if known == cid
            }
            return shared | ingested

        found = await hosted.log.store.read(lambda c: with_file(c, hosted.log.number, cid))
        sent = {each.author for each in found if each.recipient == hosted.own_id}
        told = sorted(await hosted.log.view(look) | sent)
        community = hosted.community_id
        listed = await asyncio.to_thread(self.blobs.catalogue.holders, community, cid)
        everybody = dict.fromkeys([*self.hints.holders(community, cid), *listed, *told])
        return [each for each in everybody if each != hosted.own_id]


def node_addresses(node: Node, hosted: HostedCommunity, node_id: str) -> list[str]:
    """Return the addresses of a node, best first."""
    now = hosted.log.clock.now()
    return addresses_of(node.dialler, node.book, hosted, node_id, now=now)


async def _list_all(client: Client) -> list[FileShare]:
    """List everything, page by page; `bad_request` if the answer is malformed."""
    found: dict[str, FileShare] = {}
    given: dict[str, Any] = {}
    while len(found) < MAX_LISTED:
        try:
            answer = await client.call(LIST_CAPABILITY, {}, given)
        except CommunityError as error:
            if error.code is Code.NOT_FOUND:
                break  # a node of a version that does not know the question
            raise
        listed = list(read_listed(answer))
        found |= {share.cid: share for share in listed}
        last = max((share.cid for share in listed), default="")
        if not answer.get("meta", {}).get("more") or last <= given.get("after", ""):
            break
        given = {"after": last}
    return list(found.values())


def read_listed(answer: Any) -> Iterable[FileShare]:
    """Yield the shares in an answer of `LIST_CAPABILITY`; `bad_request` if it is malformed."""
    response = _DESCRIPTORS[f"{LIST_CAPABILITY}@1.0"].response
    assert response is not None
    if response.findings(answer):
        raise bad_request("the node did not list files")
    for each in answer["output"]["files"]:
        readers = None if each["scope"] == "community" else ()
        yield FileShare(
            each["cid"],
            each["size_bytes"],
            each["name"],
            each["title"],
            each["shared_at"],
            readers,
        )


def _is_own_disk(error: CommunityError) -> bool:
    """Whether this node's disk is at fault, so that other holders do not help."""
    local = error.code in (Code.CAPACITY_EXCEEDED, Code.INTERNAL_ERROR)
    return local and isinstance(error.__cause__, OSError)
