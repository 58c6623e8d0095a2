"""Stages (c) and (d): what members say, each event against the membership just before it.

Every rule touches one key: a post, a message, a file, a document, a node's manifest. Values are
immutable, so a copy of the content is a copy of its dictionaries.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from accord.community.envelope import Event, Position
from accord.community.envelope.names import Level
from accord.community.fold.verdicts import ACCEPTED, VERDICTS, Status, Verdict
from accord.kernel import canonical
from accord.kernel.digest import blake3

RESERVED: Final = ("federation.", "chat.group.")
"""Types that the specification keeps for later."""

DEFAULT_TTL_SECONDS: Final = 7 * 24 * 3600


class Post(NamedTuple):
    """A post of the market. `ended` is the reason of its end; None while it stands."""

    author: str
    client_id: str
    lamport: int
    created_at: str
    fields: Mapping[str, Any]
    ended: str | None


class Message(NamedTuple):
    """A message as others may see it: who to whom, and the digest of what was said."""

    author: str
    recipient: str
    client_id: str
    lamport: int
    sent_at: str
    body: str
    attachments: tuple[tuple[str, str], ...]
    delivered_at: str | None
    read_at: str | None


class Document(NamedTuple):
    """A document of a corpus."""

    ingester: str
    lamport: int
    title: str | None
    language: str | None
    chunks: int


class Manifest(NamedTuple):
    """What a node last said of itself; `extensions` only grows."""

    display_name: str
    endpoints: tuple[tuple[str, str, int, str | None], ...]
    extensions: tuple[str, ...]
    event: str


@dataclass(slots=True)
class Content:
    """What the content events come to.

    Attributes:
        posts: By event id, which its author chose: two authors may have chosen the same.
        messages: Likewise.
        clients: The client ids that were used, by kind and author.
        files: Who holds what, and its size.
        documents: By corpus and document.
        manifests: By node.
        counts: Events by status.
        head: The last event that is not quarantined.
    """

    posts: dict[str, tuple[Post, ...]] = field(default_factory=dict)
    messages: dict[str, tuple[Message, ...]] = field(default_factory=dict)
    clients: set[tuple[str, str, str]] = field(default_factory=set)
    files: dict[tuple[str, str], int] = field(default_factory=dict)
    documents: dict[tuple[str, str], Document] = field(default_factory=dict)
    manifests: dict[str, Manifest] = field(default_factory=dict)
    counts: dict[Status, int] = field(default_factory=lambda: dict.fromkeys(Status, 0))
    head: Position | None = None

    def copy(self) -> "Content":
        """A copy that changes apart from this one."""
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


Levels = dict[str, Level]
Judge = Callable[[Content, Event, Levels], Verdict]


def judge(content: Content, event: Event, levels: Levels) -> Verdict:
    """Judge a content event whose author is a member, and let it take effect."""
    rule = JUDGES.get(event.event_type)
    if rule is not None and event.schema_version == 1:
        return rule(content, event, levels)
    if rule is not None:
        return VERDICTS["schema.newer"]
    is_reserved = event.event_type.startswith(RESERVED)
    return VERDICTS["type.reserved" if is_reserved else "type.unknown"]


def learn_manifest(content: Content, event: Event, manifest: Mapping[str, Any]) -> None:
    """Remember what a node says of itself."""
    known = content.manifests.get(event.author)
    extensions = set(manifest.get("extensions", ()))
    if known is not None:
        extensions.update(known.extensions)
    content.manifests[event.author] = Manifest(
        manifest["display_name"],
        tuple(
            (each["transport"], each["host"], each["port"], each.get("certificate"))
            for each in manifest["endpoints"]
        ),
        tuple(sorted(extensions)),
        event.hash,
    )


def _posted(content: Content, event: Event, levels: Levels) -> Verdict:
    data = event.data
    client = "post", event.author, data["client_id"]
    if client in content.clients:
        return _DUPLICATE_POST
    content.clients.add(client)
    fields = {name: value for name, value in data.items() if name != "client_id"}
    post = Post(event.author, data["client_id"], event.lamport, event.wall_clock, fields, None)
    content.posts[event.event_id] = (*content.posts.get(event.event_id, ()), post)
    return ACCEPTED


def _post_updated(content: Content, event: Event, levels: Levels) -> Verdict:
    target = event.data["target_event_id"]
    posts = content.posts.get(target, ())
    for number, post in enumerate(posts):
        if post.author == event.author:
            if event.lamport <= post.lamport:
                return _NAMES_LATER
            if post.ended is not None:
                return VERDICTS["market.ended"]
            changed = post._replace(fields={**post.fields, **event.data["fields"]})
            content.posts[target] = (*posts[:number], changed, *posts[number + 1 :])
            return ACCEPTED
    return VERDICTS["market.missing"]


def _post_expired(content: Content, event: Event, levels: Levels) -> Verdict:
    target, reason = event.data["target_event_id"], event.data["reason"]
    posts = content.posts.get(target, ())
    moderates = levels[event.author] >= Level.TRUSTED
    mine = [post for post in posts if post.author == event.author]
    ending = mine or (list(posts) if moderates else [])
    if not ending:
        return VERDICTS["market.missing"]
    if not mine and reason == "user_request":
        return VERDICTS["market.reason"]
    if all(event.lamport <= post.lamport for post in ending):
        return _NAMES_LATER
    if all(post.ended is not None for post in ending):
        return VERDICTS["market.ended"]
    content.posts[target] = tuple(
        post._replace(ended=reason) if post in ending and post.ended is None else post
        for post in posts
    )
    return ACCEPTED


def _sent(content: Content, event: Event, levels: Levels) -> Verdict:
    data = event.data
    if data["recipient"] not in levels:
        return VERDICTS["chat.recipient"]
    client = "chat", event.author, data["client_id"]
    if client in content.clients:
        return VERDICTS["chat.duplicate"]
    content.clients.add(client)
    said = data["sealed"] if "sealed" in data else data["body"]
    message = Message(
        event.author,
        data["recipient"],
        data["client_id"],
        event.lamport,
        event.wall_clock,
        str(blake3(canonical.encode(said))),
        tuple((each["cid"], each["name"]) for each in data.get("attachments", ())),
        None,
        None,
    )
    content.messages[event.event_id] = (*content.messages.get(event.event_id, ()), message)
    return ACCEPTED


def _delivered(content: Content, event: Event, levels: Levels) -> Verdict:
    return _receipt(content, event, "delivered_at")


def _read(content: Content, event: Event, levels: Levels) -> Verdict:
    return _receipt(content, event, "read_at")


def _receipt(content: Content, event: Event, what: str) -> Verdict:
    target = event.data["target_event_id"]
    messages = content.messages.get(target, ())
    for number, message in enumerate(messages):
        if message.recipient == event.author:
            if event.lamport <= message.lamport:
                return _NAMES_LATER
            if getattr(message, what) is not None:
                return VERDICTS["chat.already"]
            told = message._replace(**{what: event.data[what]})
            content.messages[target] = (*messages[:number], told, *messages[number + 1 :])
            return ACCEPTED
    return VERDICTS["chat.missing"]


def _advertised(content: Content, event: Event, levels: Levels) -> Verdict:
    content.files[event.data["cid"], event.author] = event.data["sizes_bytes"]
    return ACCEPTED


def _unpinned(content: Content, event: Event, levels: Levels) -> Verdict:
    held = content.files.pop((event.data["cid"], event.author), None)
    return VERDICTS["file.missing"] if held is None else ACCEPTED


def _ingested(content: Content, event: Event, levels: Levels) -> Verdict:
    if levels[event.author] < Level.TRUSTED:
        return _LEVEL
    data = event.data
    name = data["corpus"], data["doc_cid"]
    if name in content.documents:
        return VERDICTS["rag.duplicate"]
    content.documents[name] = Document(
        event.author, event.lamport, data.get("title"), data.get("language"), data["chunks"]
    )
    return ACCEPTED


def _manifest_updated(content: Content, event: Event, levels: Levels) -> Verdict:
    manifest = event.data["manifest"]
    if manifest["community_id"] != event.community_id or manifest["node_id"] != event.author:
        return VERDICTS["manifest.foreign"]
    learn_manifest(content, event, manifest)
    return ACCEPTED


_LEVEL: Final = VERDICTS["membership.level"]
_NAMES_LATER: Final = VERDICTS["names.later"]
_DUPLICATE_POST: Final = VERDICTS["market.duplicate"]

JUDGES: Final[Mapping[str, Judge]] = {
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
