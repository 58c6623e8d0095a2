"""What this node shares and with whom, and so who may read a blob here.

Shares are small records on disk beside the blobs. Only the node's owner writes them; files that
everybody may read are also advertised in the log. `ShareCatalogue` holds what other members share
with this node. Blocking: callers use threads.
"""

import asyncio
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import orjson
from blake3 import blake3

from accord.capabilities.file.blob_folder import disk_errors
from accord.capabilities.file.rules import PREFIX, check_cid
from accord.community.communities import HostedCommunity
from accord.community.errors import CommunityError, bad_request
from accord.community.log import LogUpdate
from accord.community.messages import attached_files
from accord.community.rules.event import Event
from accord.community.rules.state import CommunityState
from accord.kernel.files import sync_folder, write_private

MAX_NAME: Final = 255
MAX_TITLE: Final = 200
_DIGITS: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_UNSEEN: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_RECORDS: Final = "files"
_ADOPTED: Final = "adopted"


class ShareMark(StrEnum):
    """What is stored about a blob in a community beside its share.

    `DOCUMENT`: it was ingested here, so every member may read it. `WITHDRAWN`: the rights from this
    node's messages and ingestions are revoked.
    """

    DOCUMENT = "documents"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class FileShare:
    """A file that a node shares; `readers` is None for every member of the community."""

    cid: str
    size_bytes: int
    name: str = ""
    title: str = ""
    shared_at: str | None = None
    readers: tuple[str, ...] | None = None

    def is_for(self, node_id: str) -> bool:
        """Whether a member may read it."""
        return self.readers is None or node_id in self.readers


def file_name(name: str) -> str:
    """Return a file's name without folders; `bad_request` if it is no valid name."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    return _line(last, "name", MAX_NAME)


def file_title(title: str) -> str:
    """Return a title for others to see; `bad_request` if it is not one line."""
    return _line(title.strip(), "title", MAX_TITLE)


class Shares:
    """The shares of a node in all its communities. Several processes may use one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, community: str, share: FileShare) -> None:
        """Share a file, replacing an earlier share of it."""
        path = self._place(community, _RECORDS, share.cid)
        _write(path, orjson.dumps(asdict(share)))

    def get(self, community: str, cid: str) -> FileShare | None:
        """Return the share of a file."""
        return _read_share(self._place(community, _RECORDS, cid))

    def remove(self, community: str, cid: str) -> bool:
        """Remove a share; False if there was none."""
        return _remove(self._place(community, _RECORDS, cid))

    def all(self, community: str) -> dict[str, FileShare]:
        """Return every share in a community, by CID."""
        found = map(_read_share, self._files(self._of(community) / _RECORDS))
        return {share.cid: share for share in found if share is not None}

    def mark(self, community: str, mark: ShareMark, cid: str) -> None:
        """Set a mark of a blob."""
        path = self._place(community, mark, cid)
        if not path.exists():
            _write(path, b"")

    def unmark(self, community: str, mark: ShareMark, cid: str) -> bool:
        """Remove a mark; False if it was not set."""
        return _remove(self._place(community, mark, cid))

    def is_marked(self, community: str, mark: ShareMark, cid: str) -> bool:
        """Whether a mark is set."""
        return self._place(community, mark, cid).exists()

    def marked(self, community: str, mark: ShareMark) -> set[str]:
        """Return the blobs with a mark."""
        return {PREFIX + path.name for path in self._files(self._of(community) / mark)}

    def referenced(self) -> set[str]:
        """Return every blob that a share or an ingestion in any community keeps here."""
        with disk_errors():
            return {
                PREFIX + path.name
                for kind in (_RECORDS, ShareMark.DOCUMENT)
                for path in self._folder.glob(f"*/{kind}/*")
                if _DIGITS.fullmatch(path.name)
            }

    def drop(self, cid: str) -> bool:
        """Remove a file's shares everywhere, including communities that the node has left."""
        name = check_cid(cid).removeprefix(PREFIX)
        with disk_errors():
            found = [
                path
                for kind in (_RECORDS, ShareMark.DOCUMENT)
                for path in self._folder.glob(f"*/{kind}/{name}")
            ]
        return any([_remove(path) for path in found])  # noqa: C419 - all of them are removed

    @property
    def is_adopted(self) -> bool:
        """Whether the blobs of a home of version 0.1 were pinned; see `_FileService.adopt`."""
        return (self._folder / _ADOPTED).exists()

    def adopt(self) -> None:
        """Record that they were."""
        if not self.is_adopted:
            _write(self._folder / _ADOPTED, b"")

    def _of(self, community: str) -> Path:
        return self._folder / _short(community)

    def _place(self, community: str, kind: str, cid: str) -> Path:
        return self._of(community) / kind / check_cid(cid).removeprefix(PREFIX)

    def _files(self, folder: Path) -> Iterator[Path]:
        with disk_errors(), suppress(FileNotFoundError):
            yield from (path for path in sorted(folder.iterdir()) if _DIGITS.fullmatch(path.name))


class ShareCatalogue:
    """What other members share with this node, as each of them last listed it.

    It is shown while they are offline, and says whom to ask for a file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, community: str, holder: str, shares: list[FileShare]) -> None:
        """Store what a member listed."""
        content = {"holder": holder, "files": [asdict(each) for each in shares]}
        _write(self._folder / _short(community) / _short(holder), orjson.dumps(content))

    def all(self, community: str) -> dict[str, list[FileShare]]:
        """Return the stored lists by member."""
        found: dict[str, list[FileShare]] = {}
        with disk_errors():
            for path in (self._folder / _short(community)).glob("*"):
                with suppress(KeyError, TypeError, ValueError, FileNotFoundError):
                    told_by = orjson.loads(path.read_bytes())
                    found[told_by["holder"]] = [_share(each) for each in told_by["files"]]
        return found

    def forget(self, community: str, members: Iterable[str]) -> None:
        """Remove the lists of everybody but these members."""
        known = set(map(_short, members))
        with disk_errors():
            for path in (self._folder / _short(community)).glob("[0-9a-f]*"):
                if path.name not in known:
                    path.unlink(missing_ok=True)

    def holders(self, community: str, cid: str) -> list[str]:
        """Return the members that listed a file."""
        return [
            holder
            for holder, shares in self.all(community).items()
            if any(share.cid == cid for share in shares)
        ]


def _share(value: Mapping[str, Any]) -> FileShare:
    share = FileShare(**value)
    return share if share.readers is None else replace(share, readers=tuple(share.readers))


def _read_share(path: Path) -> FileShare | None:
    """Read a share; None if it is missing or unreadable."""
    try:
        with disk_errors():
            return _share(orjson.loads(path.read_bytes()))
    except (TypeError, ValueError):
        return None
    except CommunityError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically and durably."""
    draft = path.with_name(f".{secrets.token_hex(16)}")
    with disk_errors():
        _make(path.parent)
        try:
            write_private(draft, content)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
        sync_folder(path.parent)


def _make(folder: Path) -> None:
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync_folder(folder.parent)


def _remove(path: Path) -> bool:
    with disk_errors():
        if not path.exists():
            return False
        path.unlink(missing_ok=True)
        sync_folder(path.parent)
    return True


def _short(name: str) -> str:
    """A folder name; ids differ by letter case, which some file systems ignore."""
    return blake3(name.encode()).hexdigest()[:32]


def _line(text: str, what: str, most: int) -> str:
    if _UNSEEN.search(text):
        raise bad_request(
            f"a {what} must be one line of visible characters", where=f"/input/{what}"
        )
    if len(text) > most:
        raise bad_request(f"a {what} has at most {most} characters", where=f"/input/{what}")
    return text


_CIDS: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)
_EVERYBODY: Final = ""


# Sender, recipient and CID of each file that is attached to a message from or to this node.
AttachedFiles: TypeAlias = Sequence[tuple[str, str, str]]


async def attached_to_messages(hosted: HostedCommunity) -> AttachedFiles:
    """Return the files that are attached to messages from or to a node."""
    return await hosted.log.store.read(lambda c: attached_files(c, hosted.log.number))


def blobs_to_keep(
    state: CommunityState,
    attached: AttachedFiles,
    holder: str,
    as_of: float,
    withdrawn: AbstractSet[str] = frozenset(),
) -> set[str]:
    """Return the blobs that a node's own events in a community require it to keep.

    These are the ones it advertised, those it ingested or attached and has not withdrawn, and those
    that its current posts mention.
    """
    advertised = {cid for cid, by in state.content.files if by == holder}
    mentioned = {
        cid
        for post in state.market(as_of)
        if post["author"] == holder
        for text in (post["title"], post["body"])
        for cid in _CIDS.findall(text)
    }
    opened = {cid for cid, _ in _opened_blobs(state, attached, holder)}
    return advertised | mentioned | (opened - withdrawn)


def sent_files(attached: AttachedFiles, own: str) -> set[str]:
    """Return the files that others have sent to a node."""
    return {cid for _, recipient, cid in attached if recipient == own}


def foreign_documents(state: CommunityState, own: str) -> set[str]:
    """Return the documents that others have ingested."""
    documents = state.content.documents.items()
    return {cid for (_, cid), document in documents if document.ingester != own}


class ReadRights:
    """Who may read which blobs of this node in one community, kept up to date with its log.

    Rights follow from acts of this node alone: a file it shared, a document it ingested, a message
    it sent with an attachment. Events of others grant nothing: CIDs in the log are public, so
    naming one must not give the right to read it.
    """

    def __init__(self, hosted: HostedCommunity, shares: Shares) -> None:
        self.hosted = hosted
        self._shares = shares
        # Rights by own messages and ingestions; shares and advertised files are looked up each
        # time.
        self._readers: dict[str, set[str]] = {}
        self._is_loaded = False
        self._loading = asyncio.Lock()

    async def may_read(self, cid: str, caller: str) -> bool:
        """Whether a member may read a blob here."""
        readers = (await self._known()).get(cid, set())
        if (cid, self.hosted.own_id) in self.hosted.state.content.files:
            return True
        return await asyncio.to_thread(self._may_read, cid, caller, frozenset(readers))

    async def may_everybody_read(self, cid: str) -> bool:
        """Whether every member may read a blob here."""
        return await self.may_read(cid, _EVERYBODY)

    async def readable(self, caller: str) -> set[str]:
        """Return every CID that a member may read, whether or not the blob is here."""
        own, community = self.hosted.own_id, self.hosted.community_id
        named = {
            cid
            for cid, readers in (await self._known()).items()
            if not readers.isdisjoint((_EVERYBODY, caller))
        }
        advertised = await self.hosted.log.view(
            lambda state: {cid for cid, by in state.content.files if by == own}
        )

        def shared() -> set[str]:
            return (
                {cid for cid, share in self._shares.all(community).items() if share.is_for(caller)}
                | self._shares.marked(community, ShareMark.DOCUMENT)
                | (named - self._shares.marked(community, ShareMark.WITHDRAWN))
            )

        return advertised | await asyncio.to_thread(shared)

    async def names(self, cid: str) -> bool:
        """Whether own messages or ingestions in the log name a blob."""
        return cid in await self._known()

    def _may_read(self, cid: str, caller: str, readers: frozenset[str]) -> bool:
        community = self.hosted.community_id
        share = self._shares.get(community, cid)
        if share is not None and share.is_for(caller):
            return True
        if self._shares.is_marked(community, ShareMark.DOCUMENT, cid):
            return True
        if readers.isdisjoint((_EVERYBODY, caller)):
            return False
        return not self._shares.is_marked(community, ShareMark.WITHDRAWN, cid)

    async def _known(self) -> dict[str, set[str]]:
        async with self._loading:
            if not self._is_loaded:
                self.hosted.log.subscribe(self._hear)
                attached = await attached_to_messages(self.hosted)
                await self.hosted.log.view(partial(self._load, attached))
                self._is_loaded = True
        return self._readers

    def _load(self, attached: AttachedFiles, state: CommunityState) -> None:
        for cid, reader in _opened_blobs(state, attached, self.hosted.own_id):
            self._readers.setdefault(cid, set()).add(reader)

    def _hear(self, news: LogUpdate) -> None:
        for event in news.accepted:
            if event.author == self.hosted.own_id:
                for cid, reader in _blobs_opened_by(event):
                    self._readers.setdefault(cid, set()).add(reader)


def _opened_blobs(
    state: CommunityState, attached: AttachedFiles, own: str
) -> Iterator[tuple[str, str]]:
    """Yield the blobs that a node's messages and ingestions let others read, and their readers."""
    for (_, cid), document in state.content.documents.items():
        if document.ingester == own:
            yield cid, _EVERYBODY
    yield from ((cid, recipient) for author, recipient, cid in attached if author == own)


def _blobs_opened_by(event: Event) -> Iterator[tuple[str, str]]:
    """Yield the blobs that an event of this node lets others read, and their readers."""
    if event.event_type == "rag.document.ingested":
        yield event.data["doc_cid"], _EVERYBODY
    elif event.event_type == "chat.message.sent":
        for attachment in event.data.get("attachments", ()):
            yield attachment["cid"], event.data["recipient"]
