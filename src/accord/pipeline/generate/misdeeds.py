"""Single events that the fold refuses, each under its own rule.

Written by members in the course of their chains, which go on, or by actors of their own where the
chain itself is what is wrong.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from accord.pipeline.generate.arrivals import Draft
from accord.pipeline.generate.chronicle import REVOKED, Author, Signed
from accord.pipeline.generate.village import POLICY, Village, landed

_NOBODYS: Final = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
_CID: Final = "blake3:" + "0" * 64


def misdeed(rule: str) -> Callable[[Village], Iterator[Draft]]:
    """The story of one event that falls under a rule."""
    tell = _STORIES[rule]

    def story(village: Village) -> Iterator[Draft]:
        kind = f"refused.{rule}"
        for signed, is_refused in tell(village):
            yield landed(signed, kind if is_refused else None)

    return story


_Told = Iterator[tuple[Signed, bool]]
_Teller = Callable[[Village], _Told]


def _simple(event_type: str, data: Callable[[Village, Author], Mapping[str, Any]]) -> _Teller:
    def tell(village: Village) -> _Told:
        author = village.pick()
        yield village.chronicle.write(author, event_type, data(village, author)), True

    return tell


def _actor(village: Village) -> tuple[Author, list[tuple[Signed, bool]]]:
    author, events = village.newcomer()
    return author, [(each, False) for each in (*events, village.post(author))]


def _gap(village: Village) -> _Told:
    author, before = _actor(village)
    yield from before
    village.post(author)  # and nobody ever sees it
    yield village.post(author), True


def _broken(village: Village) -> _Told:
    author, before = _actor(village)
    yield from before
    author.prev = _CID
    yield village.post(author), True


def _lamport(village: Village) -> _Told:
    author, before = _actor(village)
    yield from before
    yield village.post(author, author.lamport), True


def _stranger(village: Village) -> _Told:
    stranger = village.chronicle.author(f"stranger {village.fresh()}")
    yield village.chronicle.joined(stranger, _NOBODYS), True


def _duplicate(village: Village) -> _Told:
    author, data = village.pick(), village.offer()
    for is_refused in (False, True):
        event = village.chronicle.write(author, "market.post.created", data)
        yield event, is_refused


def _ended(village: Village) -> _Told:
    author = village.pick()
    event = village.post(author)
    yield event, False
    end = {"client_id": f"end-{village.fresh()}", "target_event_id": event.event_id}
    expired = {**end, "reason": "withdrawn"}
    yield village.chronicle.write(author, "market.post.expired", expired), False
    change = {**end, "client_id": f"change-{village.fresh()}", "fields": {"title": "Again"}}
    yield village.chronicle.write(author, "market.post.updated", change), True


def _others_post(village: Village) -> _Told:
    author, other = village.chance.sample(village.members, 2)
    event = village.post(author)
    yield event, False
    change = {"client_id": f"change-{village.fresh()}", "target_event_id": event.event_id}
    fields = {"fields": {"title": "Mine now"}}
    yield village.chronicle.write(other, "market.post.updated", {**change, **fields}), True


def _above(village: Village) -> _Told:
    author, before = _actor(village)
    yield from before
    ghost = village.chronicle.author(f"ghost {village.fresh()}")
    yield village.chronicle.invited(author, ghost.id, "trusted"), True


def _not_trusted(village: Village) -> _Told:
    author, before = _actor(village)
    yield from before
    data = {"corpus": "garden", "doc_cid": _CID, "chunks": 3}
    yield village.chronicle.write(author, "rag.document.ingested", data), True


def _too_few(village: Village) -> _Told:
    founder, other, target = village.elders
    data = village.chronicle.revocation(target, (other,))
    yield village.chronicle.write(founder, REVOKED, data), True


def _by_root(village: Village) -> _Told:
    ghost = village.chronicle.author(f"ghost {village.fresh()}")
    yield village.chronicle.invited(village.chronicle.root, ghost.id), True


def _newer(village: Village) -> _Told:
    author = village.pick()
    data = {"anything": "that a later version may say"}
    yield village.chronicle.write(author, "market.post.created", data, version=2), True


def _recipient(village: Village, _: Author) -> Mapping[str, Any]:
    stranger = village.chronicle.author(f"stranger {village.fresh()}")
    data = {"client_id": f"chat-{village.fresh()}", "recipient": stranger.id}
    return {**data, "body": "Is anybody there?"}


def _member(village: Village, author: Author) -> Mapping[str, Any]:
    known = village.elders[1] if author is village.elders[0] else village.elders[0]
    moment = "2030-01-01T00:00:00Z"
    return {"invitee_node_id": known.id, "initial_level": "member", "expires_at": moment}


_STORIES: Final[Mapping[str, _Teller]] = {
    "chain.broken": _broken,
    "chain.gap": _gap,
    "chain.lamport": _lamport,
    "chat.missing": _simple(
        "chat.message.read",
        lambda _village, _author: {
            "target_event_id": _NOBODYS,
            "read_at": "2026-01-01T00:00:00Z",
        },
    ),
    "chat.recipient": _simple("chat.message.sent", _recipient),
    "file.missing": _simple("file.cid.unpinned", lambda _village, _author: {"cid": _CID}),
    "invite.missing": _stranger,
    "market.duplicate": _duplicate,
    "market.ended": _ended,
    "market.missing": _others_post,
    "membership.above": _above,
    "membership.already": _simple("community.member.invited", _member),
    "membership.level": _not_trusted,
    "membership.signatures": _too_few,
    "root.never": _by_root,
    "root.only": _simple("community.policy.updated", lambda _village, _author: {"policy": POLICY}),
    "schema.newer": _newer,
    "type.unknown": _simple("weather.report.made", lambda _village, _author: {"sky": "grey"}),
}

RULES: Final = tuple(_STORIES)
"""Every rule that there is a misdeed for."""
