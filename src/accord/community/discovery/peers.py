"""The book of peers: who was met, where, and how it went.

It decides and remembers; it neither asks nor listens, and time comes in as an argument. Only a
verified fresh manifest enters. Hints from the local network are kept apart and are only ever a
place to ask. Everything is bounded: strangers make room for members, never the other way round.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from accord.community.envelope import manifests
from accord.community.envelope.manifests import Pins
from accord.community.errors import Code, CommunityError
from accord.kernel.clock import parse_time

MAX_PEERS: Final = 1024
MAX_HINTS: Final = 256
HINT_SECONDS: Final = 300.0
"""How long a hint is worth asking."""

_FIRST_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 300.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a node listens, and the certificate it shows there."""

    transport: str
    host: str
    port: int
    certificate: str | None = None

    @property
    def url(self) -> str:
        """The address as a client dials it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.transport}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Hint:
    """A place where a node might be."""

    node_id: str
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Peer:
    """A node that was met in a community.

    Attributes:
        manifest: The last one that was verified.
        is_member: Whether it was a member then.
        seen: When its last manifest was verified.
        failures: How often in a row it could not be reached since.
        not_before: When it is worth another attempt.
    """

    node_id: str
    community_id: str
    endpoints: tuple[Endpoint, ...]
    manifest: Mapping[str, Any]
    is_member: bool
    seen: float
    failures: int = 0
    not_before: float = 0.0


class PeerBook:
    """The peers of one node.

    Args:
        own_id: The node itself, which is nobody's peer.
        pins: The keys that were pinned before.
    """

    def __init__(self, own_id: str, pins: Pins | None = None) -> None:
        self._own_id = own_id
        self._peers: dict[tuple[str, str], Peer] = {}
        self._hints: dict[Hint, float] = {}
        self.pins = pins or Pins()

    def admit(self, manifest: Any, community_id: str, *, is_member: bool, now: float) -> Peer:
        """Take up a node by its manifest, or take up its newer one.

        Raises:
            CommunityError: What `manifests.check` says of it; another key is pinned:
                `invalid_signature`; it is this node's own, or older than what is known:
                `bad_request`; the book is full of members: `capacity_exceeded`.
        """
        manifests.check(manifest, now=now, expected_community=community_id)
        node_id = manifest["node_id"]
        if node_id == self._own_id:
            raise CommunityError(Code.BAD_REQUEST, "this is the node itself")
        key = (community_id, node_id)
        known = self._peers.get(key)
        if known is not None and _issued(manifest) < _issued(known.manifest):
            raise CommunityError(Code.BAD_REQUEST, "a newer manifest of this node is known")
        pins = self.pins.pin(node_id)
        if known is None and len(self._peers) >= MAX_PEERS:
            self._make_room(is_member=is_member)
        if is_member:
            self.pins = pins
        peer = Peer(
            node_id, community_id, _endpoints(manifest["endpoints"]), manifest, is_member, now
        )
        self._peers.pop(key, None)
        self._peers[key] = peer
        return peer

    def failed(self, community_id: str, node_id: str, *, now: float) -> None:
        """Remember that a peer could not be reached; it is left in peace for a while."""
        peer = self._peers.get((community_id, node_id))
        if peer is not None:
            pause = min(_FIRST_PAUSE * 2 ** min(peer.failures, 10), _LONGEST_PAUSE)
            self._peers[community_id, node_id] = replace(
                peer, failures=peer.failures + 1, not_before=now + pause
            )

    def forget(self, node_id: str) -> None:
        """Drop a node in every community, such as one that was revoked; its key stays pinned."""
        for key in [each for each in self._peers if each[1] == node_id]:
            del self._peers[key]

    def peer(self, community_id: str, node_id: str) -> Peer | None:
        """A peer by its id."""
        return self._peers.get((community_id, node_id))

    def peers(self, community_id: str) -> list[Peer]:
        """Every peer of a community, members first, the longest known to be silent last."""
        found = [peer for peer in self._peers.values() if peer.community_id == community_id]
        return sorted(found, key=lambda peer: (not peer.is_member, peer.failures, -peer.seen))

    def due(self, community_id: str, *, now: float) -> list[Peer]:
        """The peers that are worth an attempt now."""
        # Nobody is left in peace for longer than the longest pause: then the clock was set back.
        return [
            peer
            for peer in self.peers(community_id)
            if not now < peer.not_before <= now + _LONGEST_PAUSE
        ]

    def hint(self, hint: Hint, *, now: float) -> None:
        """Note a place where a node might be; the oldest hint makes room for the newest."""
        if hint.node_id == self._own_id:
            return
        self._hints.pop(hint, None)
        while len(self._hints) >= MAX_HINTS:
            del self._hints[next(iter(self._hints))]
        self._hints[hint] = now

    def hints(self, *, now: float) -> list[Hint]:
        """The hints that are worth asking, newest first."""
        return [
            hint for hint, noted in reversed(self._hints.items()) if now - noted <= HINT_SECONDS
        ]

    def _make_room(self, *, is_member: bool) -> None:
        strangers = [key for key, peer in self._peers.items() if not peer.is_member]
        leaving = strangers or (list(self._peers) if is_member else [])
        if not leaving:
            raise CommunityError(Code.CAPACITY_EXCEEDED, "the book of peers is full of members")
        del self._peers[min(leaving, key=lambda key: self._peers[key].seen)]


def _issued(manifest: Mapping[str, Any]) -> float:
    return parse_time(manifest["issued_at"])


def _endpoints(written: list[dict[str, Any]]) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(each["transport"], each["host"], each["port"], each.get("certificate"))
        for each in written
    )
