"""Small stories of several events that do not all stand: backdating, mutual revocation, forks.

Each is told at one turn of a village's life by actors of its own, so that nothing else falls with
it. The kind of every event that does not stand is in its draft; which rule that means is in
`faults`.
"""

from collections.abc import Iterator
from typing import Any, Final

from accord.kernel import canonical, signing
from accord.pipeline.generate.arrivals import Draft
from accord.pipeline.generate.chronicle import REVOKED, Author
from accord.pipeline.generate.village import Village
from accord.pipeline.landing import redaction

FAR: Final = 2**40
"""A lamport that no honest history reaches."""


def backdated(village: Village) -> Iterator[Draft]:
    """Somebody is revoked and writes on, with lamports from before the revocation."""
    chronicle = village.chronicle
    author, events = village.newcomer()
    yield from (each.draft() for each in events)
    yield village.post(author).draft()
    # The village goes on meanwhile: there must be lamports in between.
    chronicle.lamport += 20
    yield village.depart(author).draft()
    for _ in range(2):
        yield village.post(author, author.lamport + 1).draft("backdated")
    # The revocation voids a membership event that comes before it: it reaches back.
    invite = {
        "invitee_node_id": chronicle.author(f"ghost {village.fresh()}").id,
        "initial_level": "member",
        "expires_at": "2030-01-01T00:00:00Z",
    }
    event = chronicle.write(author, "community.member.invited", invite, lamport=author.lamport + 1)
    yield event.draft("backdated")
    yield village.post(author, chronicle.lamport + 1).draft("backdated")
    chronicle.lamport += 1


def mutual(village: Village) -> Iterator[Draft]:
    """Two sides revoke each other, and both reach back behind what the other did before.

    The side that the founder has signed is the senior one. The other one is not void itself, since
    its author is nobody's target, but one of its signers is gone.
    """
    chronicle = village.chronicle
    sides: list[Author] = []
    for _ in range(4):
        author, events = village.newcomer("trusted")
        sides.append(author)
        yield from (each.draft() for each in events)
    senior, junior, speaker, friend = sides
    for author, kind in ((senior, None), (junior, "mutual.undone")):
        ghost = chronicle.author(f"ghost {village.fresh()}")
        yield chronicle.invited(author, ghost.id).draft(kind)
    agreed = chronicle.revocation(junior, village.elders[:2], but_the_last=True)
    contested = chronicle.revocation(senior, (junior, friend), but_the_last=True)
    yield chronicle.write(senior, REVOKED, agreed).draft()
    yield chronicle.write(speaker, REVOKED, contested).draft("mutual.loser")


def equivocation(village: Village) -> Iterator[Draft]:
    """Somebody signs two events with one number, and goes on."""
    chronicle = village.chronicle
    author, events = village.newcomer()
    yield from (each.draft() for each in events)
    yield village.post(author).draft()
    branches = [chronicle.sign(author, "market.post.created", village.offer()) for _ in range(2)]
    winner = min(branches, key=lambda each: each.digest)
    for each in branches:
        yield each.draft(None if each is winner else "equivocation")
    chronicle.keep(author, village.chance.choice(branches))
    for _ in range(village.chance.randrange(1, 4)):
        yield village.post(author).draft("equivocation")


def far_ahead(village: Village) -> Iterator[Draft]:
    """Somebody writes with a lamport that nobody can have come to."""
    author, events = village.newcomer()
    yield from (each.draft() for each in events)
    far = FAR + 1000 * village.fresh()
    for step in range(village.chance.randrange(1, 4)):
        yield village.post(author, far + step).draft("gap.lamport")


def forged_signature(village: Village) -> Iterator[Draft]:
    """Somebody writes in a member's name, where that member's chain would go on."""
    forger = village.chronicle.author(f"forger {village.fresh()}").key
    signed = village.chronicle.sign(
        village.pick(), "market.post.created", village.offer(), by=forger
    )
    yield signed.draft("forged.signature")


def forged_shadow(village: Village) -> Iterator[Draft]:
    """A real event, and before or after it another that goes by its name in everything."""
    chronicle = village.chronicle
    author = village.pick()
    real = village.post(author)
    data = {**real.members["data"], "title": "Nothing at all"}
    members: dict[str, Any] = {**real.members, "data": data}
    signature = author.key.sign_bytes(b"something else")
    forged = chronicle.sealed(members, signing.signed_bytes(members), signature)
    shadow = Draft(real.draft().id, forged.at, forged.body, "forged.shadow")
    yield from village.chance.choice(((shadow, real.draft()), (real.draft(), shadow)))


def forged_cosigner(village: Village) -> Iterator[Draft]:
    """An elder's revocation of somebody, with a co-signature that was given to another one."""
    founder, *others = village.elders
    target, other = village.chance.sample(village.members[1:], 2)
    data = village.chronicle.revocation(target, others)
    data["co_signers"] = village.chronicle.revocation(other, others)["co_signers"]
    yield village.chronicle.sign(founder, REVOKED, data).draft("forged.cosigner")


def broken_form(village: Village) -> Iterator[Draft]:
    """An event that was signed as it is, and is none."""
    wrong: dict[str, Any] = village.chance.choice(
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
    signed = village.chronicle.sign(
        village.pick(), "market.post.created", village.offer(), lamport=0, wrong=wrong
    )
    yield signed.draft("broken.form")


def broken_data(village: Village) -> Iterator[Draft]:
    """An event that was signed as it is, and whose data its type does not allow."""
    offer = village.offer()
    wrong = village.chance.choice(
        (
            {**offer, "title": ""},
            {**offer, "category": "nonsense"},
            {**offer, "ttl_seconds": "a week"},
            {**offer, "price": 7},
            {"client_id": "alone"},
        )
    )
    signed = village.chronicle.sign(village.pick(), "market.post.created", wrong, lamport=0)
    yield signed.draft("broken.data")


def broken_redacted(village: Village) -> Iterator[Draft]:
    """An event that need not be redacted, in the form of one that was, so as not to be verified."""
    signed = village.chronicle.sign(village.pick(), "market.post.created", village.offer())
    told = {"digest": f"blake3:{signed.digest}", "rule": redaction.CLEAR}
    body = canonical.encode({"event": canonical.decode(signed.body), "redacted": told}).decode()
    yield Draft(signed.draft().id, signed.at, body, "broken.redacted")
