"""Content in parts: which events must be judged together, and how parts come to one state.

Every rule of `content` looks at few keys, so a log need not be judged by one pair of hands. In a
first round whoever names something new, a post or a message, is judged beside all else that the
same author named: only its own events can have used its ids before. In a second round those that
stood, and everything else, are judged beside whatever is about the same subject. In both, a part
is any set of events that breaks up no group, in total order, and `folding.run` judges it.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Final, NamedTuple

from accord.community.envelope import Event
from accord.community.fold.content import JUDGES
from accord.community.fold.roster import JOINED
from accord.community.fold.state import JsonObject
from accord.kernel import canonical

NAMING: Final = frozenset({"market.post.created", "chat.message.sent"})
"""The types that name something new: their groups in the first round are the authors."""


class Subject(NamedTuple):
    """What an event is about: its group in the second round."""

    kind: str
    name: str


def subject(event: Event) -> Subject:
    """What an event is about; one whose data nobody knows to read is about itself."""
    about = _SUBJECTS.get(event.event_type)
    if about is None or event.schema_version != 1:
        return Subject("event", event.hash)
    return about(event)


def assembled(frame: JsonObject, items: Iterable[tuple[str, bytes]]) -> bytes:
    """The bytes of a state.

    Args:
        frame: Its object, without the items of content.
        items: Section and canonical bytes of each, the sections together, each in its order.
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
assert JUDGES.keys() <= _SUBJECTS.keys(), "every rule has its subject"
