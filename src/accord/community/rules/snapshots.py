"""Snapshots signed by an anchor (section 7.5), when they are taken, and stubs of pruned events.

Decides which snapshot a joining node may start from. The state in it is exactly the fold's.
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from blake3 import blake3

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import formats
from accord.community.rules.event import MAX_LAMPORT, Position
from accord.community.rules.formats import Level
from accord.community.rules.state import CommunityState, read_state, state_bytes
from accord.community.rules.verdicts import Status
from accord.kernel import canonical, signing
from accord.kernel.signing import SigningKey
from accord.kernel.ulid import is_ulid

MAX_SNAPSHOT: Final = 256 * 1024 * 1024
"""The largest snapshot that is read."""

_SNAPSHOT_MEMBERS: Final = frozenset(
    {
        "schema_version",
        "community_id",
        "author",
        "lamport",
        "wall_clock",
        "state",
        "covers_events_up_to",
        "signature",
    }
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a community after every event up to a lamport.

    Attributes:
        state: The fold's state in canonical JSON.
        author: The anchor that signed it, which the specification does not name.
    """

    community_id: str
    lamport: int
    wall_clock: str
    state: bytes
    author: str
    signature: str

    @property
    def state_digest(self) -> str:
        """The digest of the state."""
        return digest_of_state(self.state)

    def encode(self) -> bytes:
        """The snapshot in canonical JSON."""
        return canonical.encode(self._payload() | {"signature": self.signature})

    def _payload(self) -> dict[str, Any]:
        return _snapshot_payload(
            self.community_id, self.lamport, self.wall_clock, self.state, author=self.author
        )


def digest_of_state(state: bytes) -> str:
    """The digest by which a retention floor names a state."""
    return "blake3:" + blake3(state).hexdigest()


def settled_state(state: bytes) -> bytes:
    """A state that counts no quarantined events, which are after its head."""
    read = read_state(state)
    read.content.counts[Status.QUARANTINED] = 0
    return state_bytes(read)


def sign_snapshot(
    key: SigningKey, *, community_id: str, lamport: int, wall_clock: str, state: bytes
) -> Snapshot:
    """Sign a state as an anchor."""
    payload = _snapshot_payload(community_id, lamport, wall_clock, state, author=key.id)
    signature = signing.sign(payload, key)["signature"]
    return Snapshot(community_id, lamport, wall_clock, state, key.id, signature)


def read_snapshot(raw: bytes, community_id: str) -> Snapshot:
    """Read a snapshot strictly; check its signature and state, but not who signed it.

    Raises `bad_request` if it is malformed or of another community, else `invalid_signature`.
    """
    try:
        payload = canonical.decode(raw, max_bytes=MAX_SNAPSHOT)
        state = canonical.encode(payload["state"]) if _is_snapshot(payload) else None
    except canonical.CanonicalError as error:
        raise bad_request(str(error)) from None
    if state is None:
        raise bad_request("this is not a snapshot of schema version 1")
    if payload["community_id"] != community_id:
        raise bad_request("the snapshot is of another community")
    if not signing.verify(payload, payload["author"]):
        raise CommunityError(Code.INVALID_SIGNATURE, "the snapshot's signature is not its author's")
    read_state(state)
    return Snapshot(
        community_id,
        payload["lamport"],
        payload["wall_clock"],
        state,
        payload["author"],
        payload["signature"],
    )


def is_anchor(state: CommunityState, node_id: str) -> bool:
    """Whether a node is an anchor in a state."""
    return state.level_of(node_id) is Level.ANCHOR


def check_snapshot_author(snapshot: Snapshot, known_anchors: Collection[str]) -> None:
    """Raise `unauthorized` unless the signer is an anchor in the snapshot and in what we know."""
    vouches = is_anchor(read_state(snapshot.state), snapshot.author)
    if not vouches or snapshot.author not in known_anchors:
        raise CommunityError(
            Code.UNAUTHORIZED,
            "the snapshot is not signed by an anchor",
            where=snapshot.author,
            mend="ask an anchor of the community for one",
        )


def choose_snapshot(snapshots: Iterable[Snapshot], known_anchors: Collection[str]) -> Snapshot:
    """The newest snapshot that two anchors signed, or one if there is only one anchor.

    Snapshots not signed by an anchor are ignored. Raises `unauthorized` if there is none.
    """
    vouchers: dict[tuple[int, str], dict[str, Snapshot]] = {}
    refusal: CommunityError | None = None
    for snapshot in snapshots:
        try:
            check_snapshot_author(snapshot, known_anchors)
        except CommunityError as error:
            refusal = error
            continue
        same = vouchers.setdefault((snapshot.lamport, snapshot.state_digest), {})
        same[snapshot.author] = snapshot
    needed = min(2, len(known_anchors))
    agreed = [key for key, same in vouchers.items() if len(same) >= max(needed, 1)]
    if not agreed:
        raise refusal or CommunityError(
            Code.UNAUTHORIZED,
            "no two anchors have signed the same snapshot",
            mend="ask further anchors, or read the whole log",
        )
    # Two anchors that sign two states for one lamport would tie: the smaller digest, everywhere.
    best = min(agreed, key=lambda key: (-key[0], key[1]))
    return min(vouchers[best].values(), key=lambda each: each.author)


def _snapshot_payload(
    community_id: str, lamport: int, wall_clock: str, state: bytes, *, author: str
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "community_id": community_id,
        "author": author,
        "lamport": lamport,
        "wall_clock": wall_clock,
        "state": canonical.decode(state, max_bytes=MAX_SNAPSHOT),
        "covers_events_up_to": lamport,
    }


def _is_snapshot(payload: Any) -> bool:
    return (
        isinstance(payload, dict)
        and payload.keys() == _SNAPSHOT_MEMBERS
        and payload["schema_version"] == 1
        and all(is_right(payload[name]) for name, is_right in _FORMS)
        and payload["covers_events_up_to"] == payload["lamport"]
    )


_FORMS: Final[tuple[tuple[str, Callable[[Any], bool]], ...]] = (
    ("community_id", lambda value: isinstance(value, str)),
    ("author", lambda value: isinstance(value, str)),
    ("signature", lambda value: isinstance(value, str)),
    ("lamport", lambda value: type(value) is int and 0 <= value <= canonical.MAX_INTEGER),
    ("wall_clock", formats.is_time),
    ("state", lambda value: isinstance(value, dict)),
)


SNAPSHOT_LAMPORTS: Final = 1000
"""How far apart snapshots are in lamports; each lies at a multiple, so that anchors agree."""

SNAPSHOT_SECONDS: Final = 24 * 60 * 60
SNAPSHOTS_KEPT: Final = 7


def snapshot_due(head: int, *, now: float, last: tuple[int, float] | None) -> int | None:
    """The lamport at which a snapshot is due now, if one is.

    `last` has lamport and time of the newest snapshot; times are seconds since the epoch.
    """
    lamport, taken = last or (0, 0.0)
    multiple = head - head % SNAPSHOT_LAMPORTS
    if multiple > lamport:
        return multiple
    return head if head > lamport and now - taken >= SNAPSHOT_SECONDS else None


MAX_STUB_BYTES: Final = 2048
"""The longest stub, as canonical JSON."""

_HASH: Final = re.compile(r"blake3:[0-9a-f]{64}", re.ASCII)
_WORD: Final = re.compile(r"[a-z][a-z0-9_.]{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Stub:
    """A pruned event: its position, its link in the author's chain, and its final verdict."""

    lamport: int
    event_id: str
    hash: str
    author: str
    author_seq: int | None
    prev: str | None
    event_type: str
    verdict: str
    rule: str | None

    @property
    def position(self) -> Position:
        """Its position in the total order."""
        return Position(self.lamport, self.event_id, bytes.fromhex(self.hash[7:]))

    def encode(self) -> bytes:
        """The stub in canonical JSON."""
        return canonical.encode(asdict(self))


def read_stub(raw: bytes) -> Stub:
    """Read a stub strictly; raises `bad_request`."""
    try:
        payload = canonical.decode(raw, max_bytes=MAX_STUB_BYTES)
    except canonical.CanonicalError as error:
        raise bad_request(str(error)) from None
    names = Stub.__slots__
    if not isinstance(payload, dict) or payload.keys() != set(names):
        raise bad_request(f"a stub has exactly the members {', '.join(sorted(names))}")
    for name in names:
        if not _is_stub(name, payload[name]):
            raise bad_request("this is not a stub", where=f"/{name}")
    return Stub(**payload)


def _is_stub(name: str, value: Any) -> bool:
    match name, value:
        case ("author_seq" | "prev" | "rule", None):
            return True
        case "lamport" | "author_seq", int():
            return not isinstance(value, bool) and 0 <= value <= MAX_LAMPORT
        case "event_id", str():
            return is_ulid(value)
        case "hash" | "prev", str():
            return _HASH.fullmatch(value) is not None
        case "author", str():
            return formats.is_id(value)
        case "event_type" | "verdict" | "rule", str():
            return _WORD.fullmatch(value) is not None
    return False
