"""Content in partitions: which events must be judged together, and how the results combine.

In a first round each event that names something new (a post, a message) is judged together with all
that its author named. In a second round those that were accepted, and everything else, are judged
by subject. A partition is any set of whole groups in total order, judged by `judge_events`.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from accord.community.rules.content import CONTENT_RULES
from accord.community.rules.event import Event
from accord.community.rules.membership import JOINED
from accord.community.rules.state import JsonObject
from accord.kernel import canonical

NAMING_TYPES: Final = frozenset({"market.post.created", "chat.message.sent"})
"""The types that name something new: their groups in the first round are the authors."""


class Subject(NamedTuple):
    """What an event is about: its group in the second round."""

    kind: str
    name: str


def subject(event: Event) -> Subject:
    """The subject of an event; one with unknown data is its own subject."""
    about = _SUBJECTS.get(event.event_type)
    if about is None or event.schema_version != 1:
        return Subject("event", event.hash)
    return about(event)


def assemble_state(frame: JsonObject, items: Iterable[tuple[str, bytes]]) -> bytes:
    """The bytes of a state, from its object without content and the canonical content items.

    `items` are pairs of section and bytes, grouped by section and in order.
    """
    sections = {
        section: b"[" + b",".join(map(itemgetter(1), of_section)) + b"]"
        for section, of_section in groupby(items, key=itemgetter(0))
    }
    members = (
        canonical.encode(name) + b":" + (sections.get(name) or canonical.encode(frame[name]))
        for name in sorted(frame)
    )
    return b"{" + b",".join(members) + b"}"


def _post(event: Event) -> Subject:
    return Subject("post", event.data.get("target_event_id", event.event_id))


def _message(event: Event) -> Subject:
    return Subject("message", event.data.get("target_event_id", event.event_id))


def _file(event: Event) -> Subject:
    return Subject("file", f"{event.data['cid']} {event.author}")


def _document(event: Event) -> Subject:
    return Subject("document", f"{event.data['corpus']} {event.data['doc_cid']}")


def _node(event: Event) -> Subject:
    return Subject("node", event.author)


_SUBJECTS: Final[Mapping[str, Callable[[Event], Subject]]] = {
    "market.post.created": _post,
    "market.post.updated": _post,
    "market.post.expired": _post,
    "chat.message.sent": _message,
    "chat.message.delivered": _message,
    "chat.message.read": _message,
    "file.cid.advertised": _file,
    "file.cid.unpinned": _file,
    "rag.document.ingested": _document,
    "node.manifest.updated": _node,
    JOINED: _node,
}
assert CONTENT_RULES.keys() <= _SUBJECTS.keys(), "every rule has its subject"
