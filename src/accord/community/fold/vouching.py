"""Snapshots as nodes exchange them: a state that an anchor vouches for (section 7.5).

Owns the form of a snapshot, its signature, and the decision which one a joiner may begin with.
The state in it is the fold's own object, byte for byte.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from blake3 import blake3

from accord.community.envelope import forms
from accord.community.envelope.names import Level
from accord.community.errors import Code, CommunityError
from accord.community.fold.reading import state_from
from accord.community.fold.state import State, state_bytes
from accord.community.fold.verdicts import Status
from accord.community.fold.views import level_of
from accord.kernel import canonical, signing
from accord.kernel.signing import SigningKey

MAX_BYTES: Final = 256 * 1024 * 1024
"""The largest snapshot that is read."""

_MEMBERS: Final = frozenset(
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
        author: The anchor that signed it, which the specification leaves readers to guess.
    """

    community_id: str
    lamport: int
    wall_clock: str
    state: bytes
    author: str
    signature: str

    @property
    def state_digest(self) -> str:
        """What two anchors agree about."""
        return digest_of(self.state)

    def encode(self) -> bytes:
        """The snapshot in canonical JSON."""
        return canonical.encode(self._payload() | {"signature": self.signature})

    def _payload(self) -> dict[str, Any]:
        return _payload(
            self.community_id, self.lamport, self.wall_clock, self.state, author=self.author
        )


def digest_of(state: bytes) -> str:
    """The digest by which a retention floor names a state."""
    return "blake3:" + blake3(state).hexdigest()


def settled(state: bytes) -> bytes:
    """A state as of its head: what is quarantined lies behind that, and counts for nothing yet.

    Raises:
        CommunityError: It is no state: `bad_request`.
    """
    read = state_from(state)
    read.content.counts[Status.QUARANTINED] = 0
    return state_bytes(read)


def sign_snapshot(
    key: SigningKey, *, community_id: str, lamport: int, wall_clock: str, state: bytes
) -> Snapshot:
    """Vouch for a state."""
    payload = _payload(community_id, lamport, wall_clock, state, author=key.id)
    signature = signing.sign(payload, key)["signature"]
    return Snapshot(community_id, lamport, wall_clock, state, key.id, signature)


def read_snapshot(raw: bytes, community_id: str) -> Snapshot:
    """Read a snapshot strictly and check its signature and its state; not yet who signed it.

    Raises:
        CommunityError: It is malformed or of another community (`bad_request`), or its signature
            does not fit (`invalid_signature`).
    """
    try:
        payload = canonical.decode(raw, max_bytes=MAX_BYTES)
        state = canonical.encode(payload["state"]) if _is_snapshot(payload) else None
    except canonical.CanonicalError as error:
        raise _bad(str(error)) from None
    if state is None:
        raise _bad("this is not a snapshot of schema version 1")
    if payload["community_id"] != community_id:
        raise _bad("the snapshot is of another community")
    if not signing.verify(payload, payload["author"]):
        raise CommunityError(Code.INVALID_SIGNATURE, "the snapshot's signature is not its author's")
    state_from(state)
    return Snapshot(
        community_id,
        payload["lamport"],
        payload["wall_clock"],
        state,
        payload["author"],
        payload["signature"],
    )


def is_anchor(state: State, node_id: str) -> bool:
    """Whether somebody is an anchor in a state."""
    return level_of(state, node_id) is Level.ANCHOR


def check_author(snapshot: Snapshot, known_anchors: Collection[str]) -> None:
    """Make sure that an anchor vouches: one by the snapshot's own state and by what we know.

    Raises:
        CommunityError: `unauthorized`.
    """
    vouches = is_anchor(state_from(snapshot.state), snapshot.author)
    if not vouches or snapshot.author not in known_anchors:
        raise CommunityError(
            Code.UNAUTHORIZED,
            "the snapshot is not signed by an anchor",
            where=snapshot.author,
            mend="ask an anchor of the community for one",
        )


def agree(snapshots: Iterable[Snapshot], known_anchors: Collection[str]) -> Snapshot:
    """The newest snapshot that two anchors vouch for, or one where there is only one anchor.

    Snapshots that nobody entitled vouches for are left aside.

    Raises:
        CommunityError: `unauthorized`, when no snapshot is vouched for by enough anchors.
    """
    vouchers: dict[tuple[int, str], dict[str, Snapshot]] = {}
    refusal: CommunityError | None = None
    for snapshot in snapshots:
        try:
            check_author(snapshot, known_anchors)
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
            "no two anchors vouch for the same snapshot",
            mend="ask further anchors, or read the whole log",
        )
    # Two anchors that sign two states for one lamport would tie: the smaller digest, everywhere.
    best = min(agreed, key=lambda key: (-key[0], key[1]))
    return min(vouchers[best].values(), key=lambda each: each.author)


def _payload(
    community_id: str, lamport: int, wall_clock: str, state: bytes, *, author: str
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "community_id": community_id,
        "author": author,
        "lamport": lamport,
        "wall_clock": wall_clock,
        "state": canonical.decode(state, max_bytes=MAX_BYTES),
        "covers_events_up_to": lamport,
    }


def _is_snapshot(payload: Any) -> bool:
    return (
        isinstance(payload, dict)
        and payload.keys() == _MEMBERS
        and payload["schema_version"] == 1
        and all(is_right(payload[name]) for name, is_right in _FORMS)
        and payload["covers_events_up_to"] == payload["lamport"]
    )


_FORMS: Final[tuple[tuple[str, Callable[[Any], bool]], ...]] = (
    ("community_id", lambda value: isinstance(value, str)),
    ("author", lambda value: isinstance(value, str)),
    ("signature", lambda value: isinstance(value, str)),
    ("lamport", lambda value: type(value) is int and 0 <= value <= canonical.MAX_INTEGER),
    ("wall_clock", forms.is_time),
    ("state", lambda value: isinstance(value, dict)),
)


def _bad(what: str) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, what)
