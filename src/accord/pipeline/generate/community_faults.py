"""Invalid events of a generated community: forged, backdated, equivocal or refused."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from accord.kernel import canonical, signing
from accord.pipeline.generate.community import (
    POLICY,
    REVOKED,
    Author,
    GeneratedCommunity,
    SignedEvent,
    landed_draft,
)
from accord.pipeline.generate.records import RecordDraft
from accord.pipeline.rules import redaction

_NOBODYS: Final = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
_CID: Final = "blake3:" + "0" * 64


def refused_event(rule: str) -> Callable[[GeneratedCommunity], Iterator[RecordDraft]]:
    """The story of one event that a rule refuses."""
    tell = _STORIES[rule]

    def story(community: GeneratedCommunity) -> Iterator[RecordDraft]:
        kind = f"refused.{rule}"
        for signed, is_refused in tell(community):
            yield landed_draft(signed, kind if is_refused else None)

    return story


_Told = Iterator[tuple[SignedEvent, bool]]
_Teller = Callable[[GeneratedCommunity], _Told]


def _simple(
    event_type: str, data: Callable[[GeneratedCommunity, Author], Mapping[str, Any]]
) -> _Teller:
    def tell(community: GeneratedCommunity) -> _Told:
        author = community.pick()
        yield community.writer.write(author, event_type, data(community, author)), True

    return tell


def _actor(community: GeneratedCommunity) -> tuple[Author, list[tuple[SignedEvent, bool]]]:
    author, events = community.newcomer()
    return author, [(each, False) for each in (*events, community.post(author))]


def _gap(community: GeneratedCommunity) -> _Told:
    author, before = _actor(community)
    yield from before
    community.post(author)  # which is never published
    yield community.post(author), True


def _broken(community: GeneratedCommunity) -> _Told:
    author, before = _actor(community)
    yield from before
    author.prev = _CID
    yield community.post(author), True


def _lamport(community: GeneratedCommunity) -> _Told:
    author, before = _actor(community)
    yield from before
    yield community.post(author, author.lamport), True


def _stranger(community: GeneratedCommunity) -> _Told:
    stranger = community.writer.author(f"stranger {community.fresh()}")
    yield community.writer.joined(stranger, _NOBODYS), True


def _duplicate(community: GeneratedCommunity) -> _Told:
    author, data = community.pick(), community.offer()
    for is_refused in (False, True):
        event = community.writer.write(author, "market.post.created", data)
        yield event, is_refused


def _ended(community: GeneratedCommunity) -> _Told:
    author = community.pick()
    event = community.post(author)
    yield event, False
    end = {"client_id": f"end-{community.fresh()}", "target_event_id": event.event_id}
    expired = {**end, "reason": "withdrawn"}
    yield community.writer.write(author, "market.post.expired", expired), False
    change = {**end, "client_id": f"change-{community.fresh()}", "fields": {"title": "Again"}}
    yield community.writer.write(author, "market.post.updated", change), True


def _others_post(community: GeneratedCommunity) -> _Told:
    author, other = community.chance.sample(community.members, 2)
    event = community.post(author)
    yield event, False
    change = {"client_id": f"change-{community.fresh()}", "target_event_id": event.event_id}
    fields = {"fields": {"title": "Mine now"}}
    yield community.writer.write(other, "market.post.updated", {**change, **fields}), True


def _above(community: GeneratedCommunity) -> _Told:
    author, before = _actor(community)
    yield from before
    ghost = community.writer.author(f"ghost {community.fresh()}")
    yield community.writer.invited(author, ghost.id, "trusted"), True


def _not_trusted(community: GeneratedCommunity) -> _Told:
    author, before = _actor(community)
    yield from before
    data = {"corpus": "garden", "doc_cid": _CID, "chunks": 3}
    yield community.writer.write(author, "rag.document.ingested", data), True


def _too_few(community: GeneratedCommunity) -> _Told:
    founder, other, target = community.elders
    data = community.writer.revocation(target, (other,))
    yield community.writer.write(founder, REVOKED, data), True


def _by_root(community: GeneratedCommunity) -> _Told:
    ghost = community.writer.author(f"ghost {community.fresh()}")
    yield community.writer.invited(community.writer.root, ghost.id), True


def _newer(community: GeneratedCommunity) -> _Told:
    author = community.pick()
    data = {"anything": "that a later version may say"}
    yield community.writer.write(author, "market.post.created", data, version=2), True


def _recipient(community: GeneratedCommunity, _: Author) -> Mapping[str, Any]:
    stranger = community.writer.author(f"stranger {community.fresh()}")
    data = {"client_id": f"chat-{community.fresh()}", "recipient": stranger.id}
    return {**data, "body": "Is anybody there?"}


def _member(community: GeneratedCommunity, author: Author) -> Mapping[str, Any]:
    known = community.elders[1] if author is community.elders[0] else community.elders[0]
    moment = "2030-01-01T00:00:00Z"
    return {"invitee_node_id": known.id, "initial_level": "member", "expires_at": moment}


_STORIES: Final[Mapping[str, _Teller]] = {
    "chain.broken": _broken,
    "chain.gap": _gap,
    "chain.lamport": _lamport,
    "chat.missing": _simple(
        "chat.message.read",
        lambda _community, _author: {
            "target_event_id": _NOBODYS,
            "read_at": "2026-01-01T00:00:00Z",
        },
    ),
    "chat.recipient": _simple("chat.message.sent", _recipient),
    "file.missing": _simple("file.cid.unpinned", lambda _community, _author: {"cid": _CID}),
    "invite.missing": _stranger,
    "market.duplicate": _duplicate,
    "market.ended": _ended,
    "market.missing": _others_post,
    "membership.above": _above,
    "membership.already": _simple("community.member.invited", _member),
    "membership.level": _not_trusted,
    "membership.signatures": _too_few,
    "root.never": _by_root,
    "root.only": _simple(
        "community.policy.updated", lambda _community, _author: {"policy": POLICY}
    ),
    "schema.newer": _newer,
    "type.unknown": _simple("weather.report.made", lambda _community, _author: {"sky": "grey"}),
}

REFUSED_RULES: Final = tuple(_STORIES)
"""The rules for which an invalid event is generated."""


FAR: Final = 2**40
"""A lamport that no honest history reaches."""


def backdated(community: GeneratedCommunity) -> Iterator[RecordDraft]:
    """A revoked member writes on, with lamports from before the revocation."""
    writer = community.writer
    author, events = community.newcomer()
    yield from (each.draft() for each in events)
    yield community.post(author).draft()
    # Others write meanwhile, so that there are lamports in between.
    writer.lamport += 20
    yield community.depart(author).draft()
    for _ in range(2):
        yield community.post(author, author.lamport + 1).draft("backdated")
    # The revocation voids an earlier membership event.
    invite = {
        "invitee_node_id": writer.author(f"ghost {community.fresh()}").id,
        "initial_level": "member",
        "expires_at": "2030-01-01T00:00:00Z",
    }
    event = writer.write(author, "community.member.invited", invite, lamport=author.lamport + 1)
    yield event.draft("backdated")
    yield community.post(author, writer.lamport + 1).draft("backdated")
    writer.lamport += 1


def mutual_revocation(community: GeneratedCommunity) -> Iterator[RecordDraft]:
    """Two sides revoke each other, each from before the other's revocation.

    The side that the founder signed is the senior one. The other revocation is not void itself,
    since its author is not a target, but one of its signers is revoked.
    """
    writer = community.writer
    sides: list[Author] = []
    for _ in range(4):
        author, events = community.newcomer("trusted")
        sides.append(author)
        yield from (each.draft() for each in events)
    senior, junior, speaker, friend = sides
    for author, kind in ((senior, None), (junior, "mutual.undone")):
        ghost = writer.author(f"ghost {community.fresh()}")
        yield writer.invited(author, ghost.id).draft(kind)
    agreed = writer.revocation(junior, community.elders[:2], but_the_last=True)
    contested = writer.revocation(senior, (junior, friend), but_the_last=True)
    yield writer.write(senior, REVOKED, agreed).draft()
    yield writer.write(speaker, REVOKED, contested).draft("mutual.loser")


def equivocation(community: GeneratedCommunity) -> Iterator[RecordDraft]:
    """A member signs two events with one number, and continues."""
    writer = community.writer
    author, events = community.newcomer()
    yield from (each.draft() for each in events)
    yield community.post(author).draft()
    branches = [writer.sign(author, "market.post.created", community.offer()) for _ in range(2)]
    winner = min(branches, key=lambda each: each.digest)
    for each in branches:
        yield each.draft(None if each is winner else "equivocation")
    writer.keep(author, community.chance.choice(branches))
    for _ in range(community.chance.randrange(1, 4)):
        yield community.post(author).draft("equivocation")


def far_ahead(community: GeneratedCommunity) -> Iterator[RecordDraft]:
    """A member writes an event with an impossible lamport."""
    author, events = community.newcomer()
    yield from (each.draft() for each in events)
    far = FAR + 1000 * community.fresh()
    for step in range(community.chance.randrange(1, 4)):
        yield community.post(author, far + step).draft("gap.lamport")


def forged_signature(community: GeneratedCommunity) -> Iterator[RecordDraft]:
    """An event in a member's name, next in its chain, signed by somebody else."""
    forger = community.writer.author(f"forger {community.fresh()}").key
    signed = community.writer.sign(
        community.pick(), "market.post.created", community.offer(), by=forger
    )
    yield signed.draft("forged.signature")


def forged_shadow(community: GeneratedCommunity) -> Iterator[RecordDraft]:
    """A real event, and before or after it a forged one with the same members."""
    writer = community.writer
    author = community.pick()
    real = community.post(author)
    data = {**real.members["data"], "title": "Nothing at all"}
    members: dict[str, Any] = {**real.members, "data": data}
    signature = author.key.sign_bytes(b"something else")
    forged = writer.sealed(members, signing.signed_bytes(members), signature)
    shadow = RecordDraft(real.draft().id, forged.at, forged.body, "forged.shadow")
    yield from community.chance.choice(((shadow, real.draft()), (real.draft(), shadow)))


def forged_cosigner(community: GeneratedCommunity) -> Iterator[RecordDraft]:
    """A revocation with a co-signature of another revocation."""
    founder, *others = community.elders
    target, other = community.chance.sample(community.members[1:], 2)
    data = community.writer.revocation(target, others)
    data["co_signers"] = community.writer.revocation(other, others)["co_signers"]
    yield community.writer.sign(founder, REVOKED, data).draft("forged.cosigner")


def broken_form(community: GeneratedCommunity) -> Iterator[RecordDraft]:
    """A signed event that is not a valid envelope."""
    wrong: dict[str, Any] = community.chance.choice(
        (
            {"lamport": "7"},
            {"event_id": "01arz3ndektsv4rrffq69g5fav"},
            {"wall_clock": "yesterday"},
            {"community_id": "ed25519:short"},
            {"prev": None, "author_seq": 9},
            {"data": ["nothing"]},
            {"remark": "one member too many"},
        )
    )
    signed = community.writer.sign(
        community.pick(), "market.post.created", community.offer(), lamport=0, wrong=wrong
    )
    yield signed.draft("broken.form")


def broken_data(community: GeneratedCommunity) -> Iterator[RecordDraft]:
    """A signed event with data that its type does not allow."""
    offer = community.offer()
    wrong = community.chance.choice(
        (
            {**offer, "title": ""},
            {**offer, "category": "nonsense"},
            {**offer, "ttl_seconds": "a week"},
            {**offer, "price": 7},
            {"client_id": "alone"},
        )
    )
    signed = community.writer.sign(community.pick(), "market.post.created", wrong, lamport=0)
    yield signed.draft("broken.data")


def broken_redacted(community: GeneratedCommunity) -> Iterator[RecordDraft]:
    """An event that claims to be redacted in order not to be verified."""
    signed = community.writer.sign(community.pick(), "market.post.created", community.offer())
    redacted = {"digest": f"blake3:{signed.digest}", "rule": redaction.CLEAR}
    body = canonical.encode({"event": canonical.decode(signed.body), "redacted": redacted}).decode()
    yield RecordDraft(signed.draft().id, signed.at, body, "broken.redacted")
