"""Files and corpora: what this station stores and shares, what others share, new documents.

A blob has no name; documents, attachments and shares give it one.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

from starlette.datastructures import UploadFile
from starlette.responses import Response, StreamingResponse

from accord.capabilities.chat import attachments
from accord.capabilities.file import Label, ShareMark, file_name, file_title
from accord.capabilities.settings import is_corpus_name
from accord.community.client import Client
from accord.community.errors import Code, CommunityError
from accord.console.messages import mark, tr, trn
from accord.console.page import NEWS, Page, Piece, Visit, changed
from accord.console.sessions import ConsoleError
from accord.console.templates import MemberNames, member_names
from accord.kernel.errors import AccordError

_NO_LABELS: Final[Mapping[str, Label]] = {}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a file comes from.

    Attributes:
        kind: What it is to the community.
    """

    name: str = ""
    kind: str = mark("a file")
    shared_by: tuple[str, ...] = ()
    title: str = ""


def origins(
    files: Iterable[Mapping[str, Any]],
    messages: Iterable[Mapping[str, Any]],
    names: MemberNames,
    labels: Mapping[str, Label] = _NO_LABELS,
    shares: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Origin]:
    """Return what is known about each file.

    Args:
        files: The node's list: who holds each file, and which documents it is.
        messages: The chat, whose attachments have names.
        labels: This station's labels of pinned files.
        shares: What this station and others share, each with its `holder`.
    """
    attached = {
        file["cid"]: Origin(file["name"], tr("attached to a message"), (names(each["from"]),))
        for each in messages
        for file in each["attachments"]
    }
    shared: dict[str, list[Mapping[str, Any]]] = {}
    for each in shares:
        shared.setdefault(each["cid"], []).append(each)
    return {
        each["cid"]: _origin(
            each, attached, names, labels.get(each["cid"]), shared.get(each["cid"], [])
        )
        for each in files
    }


def _origin(
    told: Mapping[str, Any],
    attached: Mapping[str, Origin],
    names: MemberNames,
    label: Label | None,
    shares: list[Mapping[str, Any]],
) -> Origin:
    cid, documents = told["cid"], told["documents"]
    if documents:
        corpora = sorted({each["corpus"] for each in documents})
        return Origin(
            next((each["title"] for each in documents if each["title"]), ""),
            tr("a document in {corpora}", corpora=", ".join(corpora)),
            tuple(dict.fromkeys(names(each["by"]) for each in documents)),
        )
    if cid in attached:
        return attached[cid]
    # The owner's own label has precedence.
    called = [label, *(Label(each["name"], each["title"]) for each in shares)]
    best = next((each for each in called if each is not None and each.name), label or Label())
    by = dict.fromkeys([*told["held_by"], *(each["holder"] for each in shares)])
    kind = mark("a shared file") if by else mark("a file")
    return Origin(best.name, kind, tuple(map(names, by)), best.title)


LICENCES: Final = (
    "CC0-1.0",
    "CC-BY-4.0",
    "CC-BY-SA-4.0",
    mark("public domain"),
    mark("own work"),
    mark("all rights reserved, with permission"),
)
_CID: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)
_INGESTED: Final = "rag.document.ingested"
_SHOWN: Final = 100
_DOCUMENTS: Final = 50
_MESSAGES: Final = 200
_PART: Final = 256 * 1024
_TEXT_BYTES: Final = 256 * 1024
_TITLE: Final = 200
_PAGE: Final = 1000
# Shares with single members are in no log, so they are asked for regularly.
_ASK_SECONDS: Final = 60
_AWAY_SECONDS: Final = 1.0
_PINS: Final = ("owner", "chat", "rag")
_WITH: Final = "with-"
_EVERYBODY: Final = (mark("every member"),)


async def show(visit: Visit) -> Response:
    """Show the corpora, their latest documents, and the files of this station and of others."""
    corpora: list[dict[str, Any]] = []
    documents: list[dict[str, Any]] = []
    missing: AccordError | None = None
    async with visit.community() as client:
        number = await visit.changes(client)
        called = member_names(await client.get("/node/v1/members"))
        try:
            answer = await client.call("rag.list_corpora", {}, {}, idempotent=True)
            corpora = answer["output"]["corpora"]
        except CommunityError as error:
            missing = error
        documents = await latest_documents(client, called)
        mine, offered = await _mine(client), await _offered(client)
        here = await asyncio.to_thread(_files, visit)
        cids = [each["cid"] for each in here]
        known = await _origins(visit, client, called, cids, mine, offered)
        ingested = await _ingested_here(visit, client)
    readers = dict.fromkeys(ingested, _EVERYBODY)
    readers |= {each["cid"]: _readers(each, called) for each in mine}
    # Refused or unwanted files go with the next garbage collection.
    wanted = [
        each
        for each in here
        if each["is_pinned"] or each["cid"] in readers or _is_known(known, each)
    ]
    return visit.show(
        "files.html",
        corpora=corpora,
        documents=documents,
        missing=missing,
        files=wanted[:_SHOWN],
        known=known,
        readers=readers,
        offered=[(each, called(each["holder"])) for each in offered[:_SHOWN]],
        more=len(wanted) - _SHOWN,
        spare=len(here) - len(wanted),
        licences=LICENCES,
        number=number,
        seen=_digest(offered),
    )


async def live(visit: Visit) -> Response:
    """Stream news about files and documents."""
    after, seen = visit.number("after"), visit.query("seen")

    async def pieces() -> AsyncGenerator[Piece, None]:
        nonlocal after, seen
        while True:
            try:
                async with visit.community() as client:
                    while True:
                        told = _digest(await _offered(client, refresh=True))
                        if told != seen:
                            seen = told
                            yield NEWS
                        after, is_new = await changed(
                            client, after, ("file.", "rag."), _ASK_SECONDS
                        )
                        if is_new:
                            yield NEWS
            except CommunityError:
                await asyncio.sleep(_AWAY_SECONDS)  # the plane is going, or coming

    return visit.stream(pieces())


async def refresh(visit: Visit) -> Response:
    """Ask the members what they share."""
    async with visit.community() as client:
        answer = await client.call("experimental.file.offered", {}, {})
    away = len(answer["output"]["unreachable"])
    if not away:
        return visit.done(tr("Every member was asked."))
    return visit.done(tr("Asked; members who could not be reached: {away}.", away=away))


async def add(visit: Visit) -> Response:
    """Store a sent file, and ingest or share it as requested."""
    form = visit.form
    sent = form.file("file", tr("The file"))
    corpus = form.text("corpus")
    if corpus and not is_corpus_name(corpus):
        raise ConsoleError(
            tr("a corpus is named by at most 64 of a-z, 0-9 and -"),
            where=corpus[:80],
            mend=tr("rename it"),
        )
    if not sent.size:
        raise ConsoleError(
            tr("the file is empty, so nothing was kept"), mend=tr("choose another one")
        )
    name, title = file_name(sent.filename or ""), file_title(form.text("title"))
    blobs = visit.parts.blobs
    before = set(await asyncio.to_thread(blobs.cids))
    cid = await blobs.put(_parts(sent))
    put_at = visit.parts.clock.now()
    try:
        async with visit.community() as client:
            if corpus:
                return visit.done(await _ingested(visit, client, cid, sent))
            await asyncio.to_thread(blobs.pin, cid, label=Label(name, title))
            if form.text("share"):
                given = {"cid": cid, "name": name, "title": title}
                await client.call("experimental.file.share", {}, given, idempotent=True)
                return visit.done(tr("{name} is kept, and every member may read it.", name=name))
    except AccordError:
        if cid not in before:
            await asyncio.to_thread(_forget, visit, cid, put_at)
        raise
    return visit.done(tr("{name} is kept, for this station alone.", name=name))


async def share(visit: Visit) -> Response:
    """Share a file with every member, with some, or with nobody any more."""
    cid = _cid(visit.form.text("cid"))
    whom = visit.form.text("whom")
    path = f"{visit.page.path}/document/{cid}"
    async with visit.community() as client:
        if whom == "nobody":
            given: dict[str, Any] = {"cid": cid}
            answer = await client.call("experimental.file.unshare", {}, given, idempotent=True)
            was = answer["output"]["was_shared"]
            return visit.done(
                tr("It is no longer shared; copies that others fetched are theirs.")
                if was
                else tr("It was not shared."),
                path=path,
            )
        called = member_names(await client.get("/node/v1/members"))
        mine, offered = await _mine(client), await _offered(client)
        known = (await _origins(visit, client, called, [cid], mine, offered))[cid]
        given = {"cid": cid, "name": known.name, "title": known.title}
        if whom == "members":
            given["with"] = [
                key.removeprefix(_WITH) for key in visit.form.texts if key.startswith(_WITH)
            ]
            if not given["with"]:
                raise ConsoleError(tr("nobody was chosen"), mend=tr("tick who may read it"))
        elif whom != "everybody":
            raise ConsoleError(tr("there is no such choice"), where=whom[:40])
        await client.call("experimental.file.share", {}, given, idempotent=True)
    count = len(given.get("with", ()))
    if not count:
        return visit.done(tr("Every member may read it."), path=path)
    readers = trn(
        "{count} of the members may read it.", "{count} of the members may read it.", count
    )
    return visit.done(readers, path=path)


async def unpin(visit: Visit) -> Response:
    """Unpin a file."""
    cid = _cid(visit.form.text("cid"))
    was = False
    for owner in _PINS:
        was |= await asyncio.to_thread(visit.parts.blobs.unpin, cid, owner)
    return visit.done(
        tr("The file is no longer pinned.") if was else tr("The file was not pinned.")
    )


async def document(visit: Visit) -> Response:
    """Show the text of a document, and who may read it."""
    cid = _cid(visit.request.path_params["cid"])
    text, size = None, None
    is_here = await asyncio.to_thread(visit.parts.blobs.has, cid)
    if is_here:
        size, content = await _content(visit, cid)
        text = await _text(content)
    known = Origin()
    shared: dict[str, Any] | None = None
    others: list[str] | None = None  # until the community says who belongs
    called = MemberNames({})
    with suppress(CommunityError):  # it can be read in no community, too
        async with visit.community() as client:
            told = await client.get("/node/v1/members")
            called = member_names(told)
            own = visit.parts.node.key.id
            others = [each["node_id"] for each in told["members"] if each["node_id"] != own]
            mine, offered = await _mine(client), await _offered(client)
            known = (await _origins(visit, client, called, [cid], mine, offered))[cid]
            shared = next((each for each in mine if each["cid"] == cid), None)
            if shared is None and cid in await _ingested_here(visit, client):
                shared = {"cid": cid}
    return visit.show(
        "document.html",
        cid=cid,
        is_here=is_here,
        size=size,
        parts=None if text is None else split_passage(text, visit.query("passage")),
        known=known,
        names=called,
        others=others,
        shared=shared,
        readers=None if shared is None else _readers(shared, called),
    )


def split_passage(text: str, words: str) -> tuple[str, str, str]:
    """Split a text around the first place that has these words, whatever space is between them."""
    wanted = r"\s+".join(map(re.escape, words.split()[:40]))
    found = re.search(wanted, text) if wanted else None
    if found is None:
        return text, "", ""
    # The passage goes on to the end of its paragraph.
    end = text.find("\n\n", found.end())
    end = len(text) if end < 0 else end
    return text[: found.start()], text[found.start() : end], text[end:]


async def fetch(visit: Visit) -> Response:
    """Fetch a file from a member who holds it, and pin it by its name."""
    cid = _cid(visit.form.text("cid"))
    async with visit.community() as client:
        async with aclosing(client.stream("file.read", {}, {"cid": cid})) as frames:  # type: ignore[type-var]
            async for frame in frames:
                if frame.event == "manifest":
                    break  # it is here now
        called = member_names(await client.get("/node/v1/members"))
        mine, offered = await _mine(client), await _offered(client)
        known = (await _origins(visit, client, called, [cid], mine, offered))[cid]
    label = Label(known.name, known.title)
    await asyncio.to_thread(visit.parts.blobs.pin, cid, label=label)
    return visit.done(tr("It is here now, and kept."), path=f"{visit.page.path}/document/{cid}")


async def blob(visit: Visit) -> Response:
    """Download a file; it is never shown in the page."""
    cid = _cid(visit.request.path_params["cid"])
    size, content = await _content(visit, cid)
    known = Origin()
    with suppress(CommunityError):
        async with visit.community() as client:
            called = member_names(await client.get("/node/v1/members"))
            mine, offered = await _mine(client), await _offered(client)
            known = (await _origins(visit, client, called, [cid], mine, offered))[cid]
    headers = {
        "content-disposition": _attachment(known.name, cid),
        "content-length": str(size),
    }
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
    return trn(
        "{title} is in {corpus}, in {count} part.",
        "{title} is in {corpus}, in {count} parts.",
        count,
        title=title[:_TITLE],
        corpus=form.text("corpus"),
    )


async def latest_documents(client: Client, called: MemberNames) -> list[dict[str, Any]]:
    """The documents of the community that were ingested last, the newest first."""
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


async def _origins(
    visit: Visit,
    client: Client,
    called: MemberNames,
    cids: list[str],
    mine: list[dict[str, Any]],
    offered: list[dict[str, Any]],
) -> dict[str, Origin]:
    told = (await client.post("/node/v1/files", {"cids": cids}))["files"]
    messages: list[dict[str, Any]] = []
    with suppress(CommunityError):  # names of attachments are a comfort
        answer = await client.call("chat.history", {}, {"limit": _MESSAGES})
        messages = answer["output"]["messages"]
    labels = await asyncio.to_thread(visit.parts.blobs.labels)
    own = visit.parts.node.key.id
    shares = [*({**each, "holder": own} for each in mine), *offered]
    return origins(told, messages, called, labels, shares)


async def _mine(client: Client) -> list[dict[str, Any]]:
    """What this station shares in the community, and with whom."""
    found: list[dict[str, Any]] = []
    given: dict[str, Any] = {"limit": _PAGE}
    while True:
        answer = await client.call("experimental.file.shared", {}, given)
        found += answer["output"]["files"]
        if not answer["meta"].get("more"):
            return found
        given["after"] = found[-1]["cid"]


async def _ingested_here(visit: Visit, client: Client) -> set[str]:
    """The documents that this station ingested, which every member may read."""
    return await asyncio.to_thread(
        visit.parts.blobs.shares.marked, client.community, ShareMark.DOCUMENT
    )


async def _offered(client: Client, *, refresh: bool = False) -> list[dict[str, Any]]:
    """What others share with this station, as they last listed it."""
    answer = await client.call("experimental.file.offered", {}, {"refresh": refresh})
    return list(answer["output"]["files"])


def _readers(share: Mapping[str, Any], called: MemberNames) -> tuple[str, ...]:
    return tuple(map(called, share.get("with", ()))) or _EVERYBODY


def _is_known(known: Mapping[str, Origin], file: Mapping[str, Any]) -> bool:
    return known[file["cid"]] != Origin()


def _digest(offered: list[dict[str, Any]]) -> str:
    return hashlib.sha256(repr(offered).encode()).hexdigest()[:16]


def _attachment(name: str, cid: str) -> str:
    """The Content-Disposition header for a file."""
    plain = cid.removeprefix("blake3:")[:16]
    if not name:
        return f'attachment; filename="{plain}"'
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _forget(visit: Visit, cid: str, put_at: float) -> None:
    """Remove a refused file, unless somebody has stored or pinned it meanwhile."""
    blobs = visit.parts.blobs
    blobs.unpin(cid)
    if cid not in blobs.pinned() | blobs.shares.referenced():
        blobs.folder.sweep([cid], before=put_at)


def _files(visit: Visit) -> list[dict[str, Any]]:
    blobs = visit.parts.blobs
    pinned = blobs.pinned()
    # Pinned files come first.
    chosen = sorted(blobs.cids(), key=lambda cid: cid not in pinned)
    return [{"cid": cid, "size": _size(visit, cid), "is_pinned": cid in pinned} for cid in chosen]


def _size(visit: Visit, cid: str) -> int | None:
    try:
        return visit.parts.blobs.manifest(cid).size_bytes
    except CommunityError:
        return None  # damaged, or just removed


async def _content(visit: Visit, cid: str) -> tuple[int, AsyncIterator[bytes]]:
    """The size and the bytes of a file; attachments of sealed messages are decrypted."""
    blobs = visit.parts.blobs
    size = (await asyncio.to_thread(blobs.manifest, cid)).size_bytes
    if await attachments.is_encrypted(blobs, cid):
        with suppress(CommunityError):  # in no community there is no message that opens it
            async with visit.community() as client:
                found = await attachments.find(client, blobs, cid)
            if found is not None and found.key is not None:
                opened = attachments.decrypted(blobs, cid, found.key)
                return attachments.plain_size(size), opened
    return size, blobs.read(cid)


async def _text(content: AsyncIterator[bytes]) -> str | None:
    """The beginning of a file, if it is text."""
    begun = b""
    async with aclosing(content) as parts:  # type: ignore[type-var]
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
        raise CommunityError(Code.BAD_REQUEST, tr("this names no file"), where=given[:80])
    return given


PAGE: Final = Page(
    "files",
    mark("Files"),
    show,
    reads={"document/{cid}": document, "blob/{cid}": blob, "live": live},
    acts={"add": add, "share": share, "unpin": unpin, "fetch": fetch, "refresh": refresh},
    group=mark("Data"),
)
