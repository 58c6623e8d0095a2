"""Content events, each judged against the membership just before it (stages c and d of the fold).

Every rule touches one key: a post, a message, a file, a document, a node's manifest. Values are
immutable, so a copy of the content is a copy of its dictionaries.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from accord.community.rules.event import Event, Position
from accord.community.rules.formats import Level
from accord.community.rules.verdicts import ACCEPTED, VERDICTS, Status, Verdict

Key = TypeVar("Key")
Value = TypeVar("Value")

_NOTHING: Final[Any] = object()

RESERVED_TYPES: Final = ("federation.", "chat.group.")
"""Types that the specification keeps for later."""

DEFAULT_POST_TTL_SECONDS: Final = 7 * 24 * 3600


class MarketPost(NamedTuple):
    """A market post as its author wrote and changed it; `ended` is the reason, None while open."""

    author: str
    client_id: str
    lamport: int
    created_at: str
    fields: Mapping[str, Any]
    ended: str | None


class ChatRecord(NamedTuple):
    """A message without its content: sender, recipient and event."""

    author: str
    recipient: str
    client_id: str
    lamport: int
    sent_at: str
    event: str
    attachments: tuple[tuple[str, str], ...]
    delivered_at: str | None
    read_at: str | None


class CorpusDocument(NamedTuple):
    """A document of a corpus."""

    ingester: str
    lamport: int
    title: str | None
    language: str | None
    chunks: int


class ManifestRecord(NamedTuple):
    """A node's last logged manifest; `extensions` only grows."""

    display_name: str
    endpoints: tuple[tuple[str, str, int, str | None], ...]
    extensions: tuple[str, ...]
    event: str


class _Layer(dict[Key, Value]):
    """A table above another one, which it leaves as it is; not for iteration."""

    __slots__ = ("_below", "_gone")

    def __init__(self, below: dict[Key, Value]) -> None:
        super().__init__()
        self._below = below
        self._gone: set[Key] = set()

    def get(self, key: Key, default: Any = None) -> Any:
        found = super().get(key, _NOTHING)
        if found is not _NOTHING:
            return found
        return default if key in self._gone else self._below.get(key, default)

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (key not in self._gone and key in self._below)

    def __getitem__(self, key: Key) -> Value:
        found = self.get(key, _NOTHING)
        if found is _NOTHING:
            raise KeyError(key)
        value: Value = found
        return value

    def __setitem__(self, key: Key, value: Value) -> None:
        self._gone.discard(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Key) -> None:
        if key not in self:
            raise KeyError(key)
        super().pop(key, None)
        self._gone.add(key)


@dataclass(slots=True)
class Content:
    """The result of the content events.

    Attributes:
        posts: By event id, which its author chose: two authors may have chosen the same.
        messages: Likewise.
        clients: The used client ids; see `client_key`.
        files: Holders and size.
        documents: By corpus and document.
        manifests: By node.
        counts: Content events by status.
        head: The last event that is not quarantined, of any kind.
        changes: The undo log; None while nothing is recorded.
    """

    posts: dict[str, tuple[MarketPost, ...]] = field(default_factory=dict)
    messages: dict[str, tuple[ChatRecord, ...]] = field(default_factory=dict)
    clients: dict[str, bool] = field(default_factory=dict)
    files: dict[tuple[str, str], int] = field(default_factory=dict)
    documents: dict[tuple[str, str], CorpusDocument] = field(default_factory=dict)
    manifests: dict[str, ManifestRecord] = field(default_factory=dict)
    counts: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    head: Position | None = None
    changes: "list[tuple[dict[Any, Any], Any, Any]] | None" = None

    def copy(self) -> "Content":
        """An independent copy."""
        return Content(
            self.posts.copy(),
            self.messages.copy(),
            self.clients.copy(),
            self.files.copy(),
            self.documents.copy(),
            self.manifests.copy(),
            self.counts.copy(),
            self.head,
        )

    def layered(self) -> "Content":
        """Content above this one, whose changes this one does not see; costs nothing to make.

        It may not be encoded or copied. What changes below shows through, unless it was changed.
        """
        return Content(
            _Layer(self.posts),
            _Layer(self.messages),
            _Layer(self.clients),
            _Layer(self.files),
            _Layer(self.documents),
            _Layer(self.manifests),
            self.counts.copy(),
            self.head,
        )

    def put(self, table: dict[Key, Value], key: Key, value: Value) -> None:
        """Set one entry of one of the tables."""
        if self.changes is not None:
            self.changes.append((table, key, table.get(key, _NOTHING)))
        table[key] = value

    def drop(self, table: dict[Key, Value], key: Key) -> None:
        """Remove one entry of one of the tables."""
        if self.changes is not None:
            self.changes.append((table, key, table[key]))
        del table[key]

    def undo(self, count: int) -> None:
        """Undo all changes but the first ones."""
        assert self.changes is not None
        for table, key, before in reversed(self.changes[count:]):
            if before is _NOTHING:
                del table[key]
            else:
                table[key] = before
        del self.changes[count:]


def client_key(kind: str, author: str, client_id: str) -> str:
    """The key of an author's client id, of one kind; all author ids have the same length."""
    return kind + author + client_id


LevelMap = dict[str, Level]
ContentRule = Callable[[Content, Event, LevelMap], Verdict]


def judge_content(content: Content, event: Event, levels: LevelMap) -> Verdict:
    """Judge a content event of a member, and apply it."""
    rule = CONTENT_RULES.get(event.event_type)
    if rule is not None and event.schema_version == 1:
        return rule(content, event, levels)
    if rule is not None:
        return VERDICTS["schema.newer"]
    is_reserved = event.event_type.startswith(RESERVED_TYPES)
    return VERDICTS["type.reserved" if is_reserved else "type.unknown"]


def learn_manifest(content: Content, event: Event, manifest: Mapping[str, Any]) -> None:
    """Record a node's manifest."""
    known = content.manifests.get(event.author)
    extensions = set(manifest.get("extensions", ()))
    if known is not None:
        extensions.update(known.extensions)
    said = ManifestRecord(
        manifest["display_name"],
        tuple(
            (each["transport"], each["host"], each["port"], each.get("certificate"))
            for each in manifest["endpoints"]
        ),
        tuple(sorted(extensions)),
        event.hash,
    )
    content.put(content.manifests, event.author, said)


def _posted(content: Content, event: Event, levels: LevelMap) -> Verdict:
    data, author = event.data, event.author
    client = client_key("post", author, data["client_id"])
    others = content.posts.get(event.event_id, ())
    if client in content.clients or (others and any(post.author == author for post in others)):
        return _DUPLICATE_POST
    content.put(content.clients, client, True)
    post = MarketPost(author, data["client_id"], event.lamport, event.wall_clock, data, None)
    content.put(content.posts, event.event_id, (*others, post))
    return ACCEPTED


def _post_updated(content: Content, event: Event, levels: LevelMap) -> Verdict:
    target = event.data["target_event_id"]
    posts = content.posts.get(target, ())
    for number, post in enumerate(posts):
        if post.author == event.author:
            if event.lamport <= post.lamport:
                return _NAMES_LATER
            if post.ended is not None:
                return _ENDED
            changed = MarketPost(*post[:4], {**post.fields, **event.data["fields"]}, None)
            content.put(content.posts, target, (*posts[:number], changed, *posts[number + 1 :]))
            return ACCEPTED
    return _NO_POST


def _post_expired(content: Content, event: Event, levels: LevelMap) -> Verdict:
    target, reason = event.data["target_event_id"], event.data["reason"]
    posts = content.posts.get(target, ())
    is_mine = any(post.author == event.author for post in posts)
    if not posts or not (is_mine or levels[event.author] >= Level.TRUSTED):
        return _NO_POST
    if not is_mine and reason == "user_request":
        return VERDICTS["market.reason"]
    ending = [post for post in posts if not is_mine or post.author == event.author]
    named = [post for post in ending if post.lamport < event.lamport]
    if not named:
        return _NAMES_LATER
    if all(post.ended is not None for post in named):
        return _ENDED
    authors = {post.author for post in named}
    ended = tuple(
        MarketPost(*post[:5], reason) if post.ended is None and post.author in authors else post
        for post in posts
    )
    content.put(content.posts, target, ended)
    return ACCEPTED


def _sent(content: Content, event: Event, levels: LevelMap) -> Verdict:
    data, author = event.data, event.author
    if data["recipient"] not in levels:
        return VERDICTS["chat.recipient"]
    client = client_key("chat", author, data["client_id"])
    others = content.messages.get(event.event_id, ())
    if client in content.clients or (others and any(each.author == author for each in others)):
        return VERDICTS["chat.duplicate"]
    content.put(content.clients, client, True)
    message = ChatRecord(
        author,
        data["recipient"],
        data["client_id"],
        event.lamport,
        event.wall_clock,
        event.hash,
        tuple((each["cid"], each["name"]) for each in data.get("attachments", ())),
        None,
        None,
    )
    content.put(content.messages, event.event_id, (*others, message))
    return ACCEPTED


def _delivered(content: Content, event: Event, levels: LevelMap) -> Verdict:
    return _receipt(content, event, "delivered_at")


def _read(content: Content, event: Event, levels: LevelMap) -> Verdict:
    return _receipt(content, event, "read_at")


def _receipt(content: Content, event: Event, what: str) -> Verdict:
    """A receipt is for every message of that id to its author: others can reuse ids."""
    target, author = event.data["target_event_id"], event.author
    messages = content.messages.get(target, ())
    mine = [message for message in messages if message.recipient == author]
    named = [message for message in mine if message.lamport < event.lamport]
    if not named:
        return _NAMES_LATER if mine else _NO_MESSAGE
    fresh = {message.author for message in named if getattr(message, what) is None}
    if not fresh:
        return VERDICTS["chat.already"]
    moment = event.data[what]
    told = tuple(
        _told(message, what, moment)
        if message.recipient == author and message.author in fresh
        else message
        for message in messages
    )
    content.put(content.messages, target, told)
    return ACCEPTED


def _told(message: ChatRecord, what: str, moment: str) -> ChatRecord:
    if what == "read_at":
        return ChatRecord(*message[:8], moment)
    return ChatRecord(*message[:7], moment, message.read_at)


def _advertised(content: Content, event: Event, levels: LevelMap) -> Verdict:
    content.put(content.files, (event.data["cid"], event.author), event.data["sizes_bytes"])
    return ACCEPTED


def _unpinned(content: Content, event: Event, levels: LevelMap) -> Verdict:
    held = event.data["cid"], event.author
    if held not in content.files:
        return VERDICTS["file.missing"]
    content.drop(content.files, held)
    return ACCEPTED


def _ingested(content: Content, event: Event, levels: LevelMap) -> Verdict:
    if levels[event.author] < Level.TRUSTED:
        return _LEVEL
    data = event.data
    name = data["corpus"], data["doc_cid"]
    if name in content.documents:
        return VERDICTS["rag.duplicate"]
    document = CorpusDocument(
        event.author, event.lamport, data.get("title"), data.get("language"), data["chunks"]
    )
    content.put(content.documents, name, document)
    return ACCEPTED


def _manifest_updated(content: Content, event: Event, levels: LevelMap) -> Verdict:
    manifest = event.data["manifest"]
    if manifest["community_id"] != event.community_id or manifest["node_id"] != event.author:
        return VERDICTS["manifest.foreign"]
    learn_manifest(content, event, manifest)
    return ACCEPTED


_LEVEL: Final = VERDICTS["membership.level"]
_NAMES_LATER: Final = VERDICTS["names.later"]
_DUPLICATE_POST: Final = VERDICTS["market.duplicate"]
_NO_POST: Final = VERDICTS["market.missing"]
_ENDED: Final = VERDICTS["market.ended"]
_NO_MESSAGE: Final = VERDICTS["chat.missing"]

CONTENT_RULES: Final[Mapping[str, ContentRule]] = {
    "market.post.created": _posted,
    "market.post.updated": _post_updated,
    "market.post.expired": _post_expired,
    "chat.message.sent": _sent,
    "chat.message.delivered": _delivered,
    "chat.message.read": _read,
    "file.cid.advertised": _advertised,
    "file.cid.unpinned": _unpinned,
    "rag.document.ingested": _ingested,
    "node.manifest.updated": _manifest_updated,
}
"""The rule for each content type."""
