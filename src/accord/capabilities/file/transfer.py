"""Blobs from node to node, as the caller sees it: pulling by `file.read`, pushing by `file.put`.

Nothing that comes is believed: a blob is whole here only when every chunk has the digest that its
manifest names, and the manifest the one that was asked for. Both ways go on where they stopped.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, cast

from accord.capabilities.file.blobs import Blobs
from accord.capabilities.file.incoming import Incoming
from accord.capabilities.file.manifests import Manifest, read_manifest
from accord.capabilities.file.shelf import TOGETHER
from accord.community.bus import Frame
from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.kernel import base64url

# The longest chunk in base64url; what is longer need not even be decoded.
_MAX_TEXT: Final = 349_526


async def pull(client: Client, blobs: Blobs, cid: str) -> AsyncGenerator[tuple[int, int], None]:
    """Get a blob from another node; yields how many bytes of how many are here.

    Raises:
        CommunityError: With the node's code; `bad_request` when what it gives is something else.
    """
    incoming: Incoming | None = None
    came: dict[int, bytes] = {}
    async with aclosing(_frames(client, "file.read", {"cid": cid})) as frames:
        async for frame in frames:
            if frame.event == "manifest" and incoming is None:
                manifest = read_manifest(frame.data)
                if manifest.cid != cid:
                    raise CommunityError(Code.BAD_REQUEST, "the node gave another blob")
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
        raise CommunityError(Code.BAD_REQUEST, "the node gave no manifest")
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
    """Put a blob on another node, and return how many chunks it had to be sent.

    Raises:
        CommunityError: With the node's code. Asking again sends only what is still needed.
    """
    manifest = await asyncio.to_thread(blobs.manifest, cid)
    offer = {"manifest": manifest.payload()}
    async with aclosing(_frames(client, "file.put", offer)) as frames:
        first = await anext(frames)
        if first.event != "ready":
            raise CommunityError(Code.BAD_REQUEST, "the node did not say what it needs")
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
    """A chunk as it goes over the wire."""
    return {"i": i, "cid": cid, "data_b64": base64url.encode(data)}


def read_chunk(told: Mapping[str, Any]) -> tuple[int, bytes]:
    """A chunk that came over the wire: its place and its bytes, not yet verified.

    Raises:
        CommunityError: It is none: `bad_request`.
    """
    i, text = told.get("i"), told.get("data_b64")
    if type(i) is not int or not isinstance(text, str) or len(text) > _MAX_TEXT:
        raise CommunityError(Code.BAD_REQUEST, "expected a chunk with i and data_b64")
    try:
        return i, base64url.decode(text)
    except base64url.Base64Error as error:
        raise CommunityError(Code.BAD_REQUEST, error.what, where=f"chunk {i}") from None


async def _send(
    client: Client, blobs: Blobs, manifest: Manifest, needed: Sequence[int], upload_id: Any
) -> int:
    for start in range(0, len(needed), TOGETHER):
        some = needed[start : start + TOGETHER]
        if not all(type(i) is int and 0 <= i < len(manifest.chunks) for i in some):
            raise CommunityError(Code.BAD_REQUEST, "the node needs chunks that there are not")

        def chunks(some: Sequence[int] = some) -> list[dict[str, Any]]:
            return [
                write_chunk(i, manifest.chunks[i], blobs.shelf.read(manifest, i, 1)[0])
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
