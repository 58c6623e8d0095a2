"""Files and corpora: what this station holds, adding a document, and looking into one."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from pathlib import PurePath
from typing import Any, Final

from starlette.datastructures import UploadFile
from starlette.responses import Response, StreamingResponse

from accord.capabilities.rag.names import is_name
from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.console.errors import ConsoleError
from accord.console.naming import Names, names
from accord.console.page import Page, Visit
from accord.console.provenance import Origin, origins
from accord.kernel.errors import AccordError

LICENCES: Final = (
    "CC0-1.0",
    "CC-BY-4.0",
    "CC-BY-SA-4.0",
    "public domain",
    "own work",
    "all rights reserved, with permission",
)
_CID: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)
_INGESTED: Final = "rag.document.ingested"
_SHOWN: Final = 100
_DOCUMENTS: Final = 50
_MESSAGES: Final = 200
_PART: Final = 256 * 1024
_TEXT_BYTES: Final = 256 * 1024
_TITLE: Final = 200


async def show(visit: Visit) -> Response:
    """The corpora, their latest documents, and the files of this station."""
    corpora: list[dict[str, Any]] = []
    documents: list[dict[str, Any]] = []
    missing: AccordError | None = None
    cids, files = await asyncio.to_thread(_files, visit)
    async with visit.community() as client:
        called = names(await client.get("/node/v1/members"))
        try:
            answer = await client.call("rag.list_corpora", {}, {}, idempotent=True)
            corpora = answer["output"]["corpora"]
        except CommunityError as error:
            missing = error
        documents = await _documents(client, called)
        known = await _origins(client, called, [each["cid"] for each in files])
    return visit.show(
        "files.html",
        corpora=corpora,
        documents=documents,
        missing=missing,
        files=files,
        known=known,
        more=len(cids) - len(files),
        licences=LICENCES,
    )


async def add(visit: Visit) -> Response:
    """Keep a file that was sent, put it into a corpus, and tell the community, as was asked."""
    form = visit.form
    sent = form.file("file", "The file")
    corpus = form.text("corpus")
    if corpus and not is_name(corpus):
        raise ConsoleError(
            "a corpus is named by at most 64 of a-z, 0-9 and -", where=corpus[:80], mend="rename it"
        )
    cid = await visit.parts.blobs.put(_parts(sent))
    if not corpus:
        await asyncio.to_thread(visit.parts.blobs.pin, cid)
    async with visit.community() as client:
        if corpus:
            return visit.done(await _ingested(visit, client, cid, sent))
        if form.text("share"):
            size = visit.parts.blobs.manifest(cid).size_bytes
            held = {"cid": cid, "sizes_bytes": size}
            await client.post("/node/v1/act", {"event_type": "file.cid.advertised", "data": held})
    return visit.done(f"It is kept as {cid}.")


async def unpin(visit: Visit) -> Response:
    """Keep a file no longer."""
    cid = _cid(visit.form.text("cid"))
    was = await asyncio.to_thread(visit.parts.blobs.unpin, cid)
    return visit.done("It is kept no longer than others need it." if was else "It was not kept.")


async def document(visit: Visit) -> Response:
    """What a document says, where it is text."""
    cid = _cid(visit.request.path_params["cid"])
    text, size = None, None
    is_here = await asyncio.to_thread(visit.parts.blobs.has, cid)
    if is_here:
        size = visit.parts.blobs.manifest(cid).size_bytes
        text = await _text(visit, cid)
    known = Origin()
    with suppress(CommunityError):  # it can be read in no community, too
        async with visit.community() as client:
            called = names(await client.get("/node/v1/members"))
            known = (await _origins(client, called, [cid]))[cid]
    return visit.show("document.html", cid=cid, is_here=is_here, size=size, text=text, known=known)


async def fetch(visit: Visit) -> Response:
    """Fetch a file from a member who holds it."""
    cid = _cid(visit.form.text("cid"))
    async with (
        visit.community() as client,
        aclosing(client.stream("file.read", {}, {"cid": cid})) as frames,  # type: ignore[type-var]
    ):
        async for frame in frames:
            if frame.event == "manifest":
                break  # it is here now
    return visit.done("It is here now.", path=f"{visit.page.path}/document/{cid}")


async def blob(visit: Visit) -> Response:
    """A file as it is, for the disk and never for the page."""
    cid = _cid(visit.request.path_params["cid"])
    size = visit.parts.blobs.manifest(cid).size_bytes
    headers = {
        "content-disposition": f'attachment; filename="{cid.removeprefix("blake3:")[:16]}"',
        "content-length": str(size),
    }
    content = visit.parts.blobs.read(cid)
    return StreamingResponse(content, headers=headers, media_type="application/octet-stream")


async def _ingested(visit: Visit, client: Client, cid: str, sent: UploadFile) -> str:
    form = visit.form
    title = form.text("title") or PurePath(sent.filename or "").stem or "untitled"
    given: dict[str, Any] = {
        "doc_cid": cid,
        "title": title[:_TITLE],
        "metadata": {"licence": licence} if (licence := form.text("licence")) else {},
    }
    if form.text("language"):
        given["language"] = form.text("language")
    params = {"corpus": form.text("corpus")}
    answer = await client.call("rag.ingest", params, given, idempotent=True)
    count = answer["output"]["chunks_indexed"]
    parts = "1 part" if count == 1 else f"{count} parts"
    return f"{title[:_TITLE]} is in {form.text('corpus')}, in {parts}."


async def _documents(client: Client, called: Names) -> list[dict[str, Any]]:
    wanted = {"event_type": _INGESTED, "limit": _DOCUMENTS}
    entries = (await client.post("/node/v1/log", wanted))["entries"]
    found = []
    for each in reversed(entries):
        [told, *_] = (await client.post("/node/v1/event", {"name": each["hash"]}))["events"]
        if each["status"] == "accepted" and told["event"] is not None:
            data = told["event"]["data"]
            found.append(
                {
                    "title": data.get("title") or data["doc_cid"],
                    "cid": data["doc_cid"],
                    "corpus": data["corpus"],
                    "chunks": data["chunks"],
                    "by": called(each["author"]),
                    "at": each["wall_clock"],
                }
            )
    return found


async def _origins(client: Client, called: Names, cids: list[str]) -> dict[str, Origin]:
    told = (await client.post("/node/v1/files", {"cids": cids}))["files"]
    messages: list[dict[str, Any]] = []
    with suppress(CommunityError):  # names of attachments are a comfort
        answer = await client.call("chat.history", {}, {"limit": _MESSAGES})
        messages = answer["output"]["messages"]
    return origins(told, messages, called)


def _files(visit: Visit) -> tuple[list[str], list[dict[str, Any]]]:
    blobs = visit.parts.blobs
    pinned = blobs.pinned()
    cids = blobs.cids()
    # What somebody keeps on purpose comes first.
    chosen = sorted(cids, key=lambda cid: cid not in pinned)[:_SHOWN]
    return cids, [
        {"cid": cid, "size": _size(visit, cid), "is_pinned": cid in pinned} for cid in chosen
    ]


def _size(visit: Visit, cid: str) -> int | None:
    try:
        return visit.parts.blobs.manifest(cid).size_bytes
    except CommunityError:
        return None  # damaged, or just removed


async def _text(visit: Visit, cid: str) -> str | None:
    """The beginning of a file, where it is text."""
    begun = b""
    async with aclosing(visit.parts.blobs.read(cid)) as parts:  # type: ignore[type-var]
        async for part in parts:
            begun += part
            if len(begun) >= _TEXT_BYTES:
                break
    if b"\0" in begun:
        return None
    try:
        return begun[:_TEXT_BYTES].decode("utf-8")
    except UnicodeDecodeError as error:
        is_cut = len(begun) >= _TEXT_BYTES and error.start >= _TEXT_BYTES - 4
        return begun[: error.start].decode("utf-8") if is_cut else None


async def _parts(sent: UploadFile) -> AsyncIterator[bytes]:
    while part := await sent.read(_PART):
        yield part


def _cid(given: str) -> str:
    if not _CID.fullmatch(given):
        raise CommunityError(Code.BAD_REQUEST, "this names no file", where=given[:80])
    return given


PAGE: Final = Page(
    "files",
    "Files",
    show,
    reads={"document/{cid}": document, "blob/{cid}": blob},
    acts={"add": add, "unpin": unpin, "fetch": fetch},
)
