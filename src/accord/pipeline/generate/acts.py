"""What members of a generated community do, all of which stands: offer, talk, keep, teach.

Each act is a small function from a village to the event that was written, or None where there is
nothing to do it to.
"""

import base64
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from blake3 import blake3

from accord.kernel.clock import format_time
from accord.pipeline.generate.chronicle import Signed
from accord.pipeline.generate.village import POLICY, Known, Village

_CORPORA: Final = ("house-rules", "garden", "repairs")

# Few enough that somebody is always left to talk to.
_FEW_MEMBERS: Final = 12


def act(village: Village) -> Signed:
    """Whatever happens next."""
    turn = village.chance.random()
    for threshold, what in _ACTS:
        if turn < threshold and (event := what(village)) is not None:
            return event
    return _offer(village)


def _offer(village: Village) -> Signed:
    author = village.pick()
    event = village.post(author, village.away(author))
    village.posts.append((author, event))
    return event


def _change(village: Village) -> Signed | None:
    if (found := _standing(village)) is None:
        return None
    author, post = found
    data = {
        "client_id": f"change-{village.fresh()}",
        "target_event_id": post.event_id,
        "fields": {"title": f"{post.members['data']['title']} ({village.fresh()})"},
    }
    lamport = village.away(author, post.lamport)
    return village.chronicle.write(author, "market.post.updated", data, lamport=lamport)


def _end(village: Village) -> Signed | None:
    if (found := _standing(village)) is None:
        return None
    village.posts.remove(found)
    author, post = found
    by = author if village.chance.random() < 0.9 else village.elders[1]
    data = {
        "client_id": f"end-{village.fresh()}",
        "target_event_id": post.event_id,
        "reason": "fulfilled" if by is author else "stale",
    }
    return village.chronicle.write(by, "market.post.expired", data)


def _standing(village: Village) -> Known | None:
    if not village.posts:
        return None
    found = village.posts[village.chance.randrange(len(village.posts))]
    return None if found[0].gone else found


def _say(village: Village) -> Signed | None:
    author, recipient = village.pick(), village.pick()
    if author is recipient:
        return None
    data: dict[str, Any] = {"client_id": f"chat-{village.fresh()}", "recipient": recipient.id}
    if village.chance.random() < 0.1:
        data["body"] = f"See you at {village.chance.randrange(8, 20)}."
    else:
        data["sealed"] = _seal(village)
    event = village.chronicle.write(author, "chat.message.sent", data)
    village.sent.append((recipient, event))
    return event


def _seal(village: Village) -> dict[str, str]:
    """What a sealed text looks like; there is nothing in it."""
    stream = blake3(b"seal %d" % village.chance.getrandbits(64)).digest(length=256)
    size = village.chance.randrange(64, 112)
    return {
        "algorithm": "x25519-sealed",
        "to_recipient": base64.urlsafe_b64encode(stream[:size]).decode().rstrip("="),
        "to_sender": base64.urlsafe_b64encode(stream[112 : 112 + size]).decode().rstrip("="),
        "commit": f"blake3:{stream[224:].hex()}",
    }


def _receive(village: Village) -> Signed | None:
    return _receipt(village, "delivered", village.sent, village.unread)


def _read(village: Village) -> Signed | None:
    return _receipt(village, "read", village.unread, None)


def _receipt(
    village: Village, what: str, waiting: deque[Known], then: deque[Known] | None
) -> Signed | None:
    if not waiting:
        return None
    reader, message = waiting.popleft()
    if reader.gone:
        return None
    if then is not None:
        then.append((reader, message))
    moment = format_time(village.chronicle.calendar.time)
    data = {"target_event_id": message.event_id, f"{what}_at": moment}
    lamport = village.away(reader, message.lamport)
    return village.chronicle.write(reader, f"chat.message.{what}", data, lamport=lamport)


def _keep(village: Village) -> Signed:
    author, cid = village.pick(), _cid(village)
    village.files.append((author, cid))
    data = {"cid": cid, "sizes_bytes": village.chance.randrange(1, 10_000_000)}
    lamport = village.away(author)
    return village.chronicle.write(author, "file.cid.advertised", data, lamport=lamport)


def _release(village: Village) -> Signed | None:
    if not village.files:
        return None
    author, cid = village.files.popleft()
    if author.gone:
        return None
    return village.chronicle.write(author, "file.cid.unpinned", {"cid": cid})


def _teach(village: Village) -> Signed:
    author, since = village.chance.choice(village.trusted)
    data = {
        "corpus": village.chance.choice(_CORPORA),
        "doc_cid": _cid(village),
        "title": f"Page {village.fresh()}",
        "language": village.chance.choice(("de", "en")),
        "chunks": village.chance.randrange(1, 40),
    }
    lamport = village.away(author, since)
    return village.chronicle.write(author, "rag.document.ingested", data, lamport=lamport)


def _describe(village: Village) -> Signed:
    author = village.pick()
    manifest = village.chronicle.manifest(author, village.chance.choice(("to", "seals")))
    return village.chronicle.write(author, "node.manifest.updated", {"manifest": manifest})


def _govern(village: Village) -> Signed:
    policy = {**POLICY, "capability_token_ttl_seconds": 600 * village.chance.randrange(1, 12)}
    root = village.chronicle.root
    return village.chronicle.write(root, "community.policy.updated", {"policy": policy})


def _part(village: Village) -> Signed | None:
    if len(village.members) <= _FEW_MEMBERS:
        return None
    return village.depart(village.chance.choice(village.members[len(village.elders) :]))


def _cid(village: Village) -> str:
    return "blake3:" + blake3(b"file %d" % village.chance.getrandbits(64)).hexdigest()


_ACTS: Final[tuple[tuple[float, Callable[[Village], Signed | None]], ...]] = (
    (0.001, _govern),
    (0.002, _part),
    (0.02, _describe),
    (0.04, _teach),
    (0.13, _change),
    (0.18, _end),
    (0.42, _say),
    (0.55, _receive),
    (0.60, _read),
    (0.70, _keep),
    (0.74, _release),
)
"""What may happen: the first whose threshold lies above chance, and that can be done."""
