"""Snapshots signed by an anchor (section 7.5), when they are taken, and stubs of pruned events.

Decides which snapshot a joining node may start from. The state in it is exactly the fold's.
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from cachetools import LRUCache

from accord.community.errors import Code, CommunityError, bad_request
from accord.community.rules import formats
from accord.community.rules.event import MAX_LAMPORT, Position
from accord.community.rules.formats import Level
from accord.community.rules.state import CommunityState, digest_of_state, read_state, state_bytes
from accord.community.rules.verdicts import Status
from accord.kernel import canonical, signing
from accord.kernel.identifiers import is_ulid
from accord.kernel.signing import SigningKey

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
        return _written(
            self.community_id,
            self.lamport,
            self.wall_clock,
            self.state,
            author=self.author,
            signature=self.signature,
        )

    @property
    def is_signed(self) -> bool:
        """Whether the signature is the author's."""
        signed = _written(
            self.community_id, self.lamport, self.wall_clock, self.state, author=self.author
        )
        signature = formats.read_signature(self.signature)
        if signature is None or not formats.is_id(self.author):
            return False
        return signing.verify_bytes(signing.parse_id(self.author), signed, signature)


def settled_state(state: bytes) -> bytes:
    """A state that counts no quarantined events, which are after its head."""
    read = read_state(state)
    read.content.counts[Status.QUARANTINED] = 0
    return state_bytes(read)


def sign_snapshot(
    key: SigningKey, *, community_id: str, lamport: int, wall_clock: str, state: bytes
) -> Snapshot:
    """Sign a state as an anchor."""
    signed = _written(community_id, lamport, wall_clock, state, author=key.id)
    signature = formats.write_signature(key.sign_bytes(signed))
    return Snapshot(community_id, lamport, wall_clock, state, key.id, signature)


def read_snapshot(raw: bytes, community_id: str) -> Snapshot:
    """Read a snapshot strictly; check its signature and state, but not who signed it.

    Raises `bad_request` if it is malformed or of another community, else `invalid_signature`.
    """
    snapshot = _cut_out(raw)
    if snapshot is None or not snapshot.is_signed:
        # Written in another way than ours, or not right; this takes longer and tells which.
        snapshot = _read_whole(raw)
    if snapshot.community_id != community_id:
        raise bad_request("the snapshot is of another community")
    if not snapshot.is_signed:
        raise CommunityError(Code.INVALID_SIGNATURE, "the snapshot's signature is not its author's")
    anchors_in(snapshot.state)
    return snapshot


def _cut_out(raw: bytes) -> Snapshot | None:
    """Read a snapshot in canonical form without reading its state, which is most of it."""
    begin, end = raw.find(_STATE) + len(_STATE), raw.rfind(_AFTER_STATE)
    if not len(_STATE) <= begin < end <= len(raw) <= MAX_SNAPSHOT:
        return None
    try:
        payload = canonical.decode(raw[:begin] + b"{}" + raw[end:], max_bytes=_FRAME_BYTES)
    except canonical.CanonicalError:
        return None
    return _snapshot(payload, raw[begin:end]) if _is_snapshot(payload) else None


def _read_whole(raw: bytes) -> Snapshot:
    try:
        payload = canonical.decode(raw, max_bytes=MAX_SNAPSHOT)
        if not _is_snapshot(payload):
            raise bad_request("this is not a snapshot of schema version 1")
        return _snapshot(payload, canonical.encode(payload["state"]))
    except canonical.CanonicalError as error:
        raise bad_request(str(error)) from None


def _snapshot(payload: Any, state: bytes) -> Snapshot:
    return Snapshot(
        payload["community_id"],
        payload["lamport"],
        payload["wall_clock"],
        state,
        payload["author"],
        payload["signature"],
    )


_KNOWN_ANCHORS: Final[LRUCache[str, frozenset[str]]] = LRUCache(4)


def anchors_in(state: bytes) -> frozenset[str]:
    """The anchors in an encoded state; raises `bad_request` if it is none.

    The last few are remembered: reading a large state takes many seconds, and whoever begins with
    a snapshot asks several times.
    """
    digest = digest_of_state(state)
    anchors = _KNOWN_ANCHORS.get(digest)
    if anchors is None:
        members = read_state(state).roster.members.items()
        anchors = frozenset(node for node, member in members if member.level is Level.ANCHOR)
        _KNOWN_ANCHORS[digest] = anchors
    return anchors


def is_anchor(state: CommunityState, node_id: str) -> bool:
    """Whether a node is an anchor in a state."""
    return state.level_of(node_id) is Level.ANCHOR


def check_snapshot_author(snapshot: Snapshot, known_anchors: Collection[str]) -> None:
    """Raise `unauthorized` unless the signer is an anchor in the snapshot and in what we know."""
    if snapshot.author not in anchors_in(snapshot.state) or snapshot.author not in known_anchors:
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


_STATE: Final = b'"state":'
_AFTER_STATE: Final = b',"wall_clock":"'
_FRAME_BYTES: Final = 64 * 1024


def _written(
    community_id: str,
    lamport: int,
    wall_clock: str,
    state: bytes,
    *,
    author: str,
    signature: str | None = None,
) -> bytes:
    """The canonical form with or without the signature; `state` is canonical already."""
    frame = {
        "schema_version": 1,
        "community_id": community_id,
        "author": author,
        "lamport": lamport,
        "wall_clock": wall_clock,
        "state": {},
        "covers_events_up_to": lamport,
    }
    if signature is not None:
        frame["signature"] = signature
    # Quotes in strings are escaped, so this is the member and nothing else.
    before, _, after = canonical.encode(frame).partition(_STATE + b"{}")
    return b"".join((before, _STATE, state, after))


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

_STEPS: Final = 32

SNAPSHOT_SECONDS: Final = 24 * 60 * 60
SNAPSHOTS_KEPT: Final = 7


def snapshot_step(head: int) -> int:
    """How far apart snapshots are in a log with this head.

    A snapshot costs as much as the state is large. So the step doubles with the log, and all
    snapshots together cost the same for each event, however long the log is.
    """
    step = SNAPSHOT_LAMPORTS
    while step * 2 * _STEPS <= head:
        step *= 2
    return step


def snapshot_due(head: int, *, now: float, last: tuple[int, float] | None) -> int | None:
    """The lamport at which a snapshot is due now, if one is.

    `last` has lamport and time of the newest snapshot; times are seconds since the epoch.
    """
    lamport, taken = last or (0, 0.0)
    multiple = head - head % snapshot_step(head)
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
