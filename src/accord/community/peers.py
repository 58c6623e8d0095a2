"""The peer book: which nodes were reached, at which addresses, and with what result.

A peer enters only with a verified, fresh manifest. Hints from the local network are only addresses
to try. Everything is bounded; members displace strangers.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from accord.community.errors import Code, CommunityError
from accord.community.rules import manifests
from accord.community.rules.manifests import Pins
from accord.kernel.clock import parse_time

MAX_PEERS: Final = 1024
MAX_HINTS: Final = 256
HINT_SECONDS: Final = 300.0
"""How long a hint is worth asking."""

MAX_SILENT: Final = 4096
"""How many addresses where nobody answered are remembered."""

_FIRST_PAUSE: Final = 2.0
_LONGEST_PAUSE: Final = 300.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A listening address of a node, and the fingerprint of its certificate."""

    transport: str
    host: str
    port: int
    certificate: str | None = None

    @property
    def url(self) -> str:
        """The URL to dial."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.transport}://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Hint:
    """An address where a node might be."""

    node_id: str
    endpoint: Endpoint


@dataclass(frozen=True, slots=True)
class Peer:
    """A node that was met in a community.

    Attributes:
        manifest: The last verified one.
        is_member: Whether it was a member then.
        seen: When its last manifest was verified.
        failures: Failed attempts in a row since then.
        not_before: When to try again.
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
    """The peers of one node; `pins` are keys that were pinned before."""

    def __init__(self, own_id: str, pins: Pins | None = None) -> None:
        self._own_id = own_id
        self._peers: dict[tuple[str, str], Peer] = {}
        self._hints: dict[Hint, float] = {}
        # By community and address: failures in a row, and when to try again.
        self._silent: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        self.pins = pins or Pins()

    def admit(self, manifest: Any, community_id: str, *, is_member: bool, now: float) -> Peer:
        """Add a node by its manifest, or replace its older manifest.

        Raises:
            CommunityError: What `manifests.check` raises; `invalid_signature` if another key is
                pinned; `bad_request` if it is this node's own manifest or an old one;
                `capacity_exceeded` if the book is full of members.
        """
        manifests.check(manifest, now=now, expected_community=community_id)
        node_id = manifest["node_id"]
        if node_id == self._own_id:
            raise CommunityError(Code.BAD_REQUEST, "this is the node's own manifest")
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
        """Record that a peer could not be reached, which delays the next attempt."""
        peer = self._peers.get((community_id, node_id))
        if peer is not None:
            self._peers[community_id, node_id] = replace(
                peer, failures=peer.failures + 1, not_before=now + _pause(peer.failures)
            )

    def unreached(self, community_id: str, address: str, *, now: float) -> None:
        """Record that nobody answered at an address, whether or not a peer was met there."""
        failures, _ = self._silent.pop((community_id, address), (0, 0.0))
        while len(self._silent) >= MAX_SILENT:
            self._silent.popitem(last=False)
        self._silent[community_id, address] = failures + 1, now + _pause(failures)

    def reached(self, community_id: str, address: str) -> None:
        """Record that a node answered at an address."""
        self._silent.pop((community_id, address), None)

    def is_silent(self, community_id: str, address: str) -> bool:
        """Whether nobody answered at an address at the last attempt."""
        return (community_id, address) in self._silent

    def is_due(self, community_id: str, address: str, *, now: float) -> bool:
        """Whether an address should be tried now."""
        _, not_before = self._silent.get((community_id, address), (0, now))
        return _is_due(not_before, now)

    def forget(self, node_id: str) -> None:
        """Remove a node from every community, such as a revoked one; its key stays pinned."""
        for key in [each for each in self._peers if each[1] == node_id]:
            del self._peers[key]

    def peer(self, community_id: str, node_id: str) -> Peer | None:
        """A peer by its id."""
        return self._peers.get((community_id, node_id))

    def peers(self, community_id: str) -> list[Peer]:
        """Every peer of a community: members first, then by failures and by when it was seen."""
        found = [peer for peer in self._peers.values() if peer.community_id == community_id]
        return sorted(found, key=lambda peer: (not peer.is_member, peer.failures, -peer.seen))

    def due(self, community_id: str, *, now: float) -> list[Peer]:
        """The peers that should be tried now."""
        return [peer for peer in self.peers(community_id) if _is_due(peer.not_before, now)]

    def hint(self, hint: Hint, *, now: float) -> None:
        """Add a hint; the oldest is dropped if there are too many."""
        if hint.node_id == self._own_id:
            return
        self._hints.pop(hint, None)
        while len(self._hints) >= MAX_HINTS:
            del self._hints[next(iter(self._hints))]
        self._hints[hint] = now

    def hints(self, *, now: float) -> list[Hint]:
        """The hints that are not too old, newest first."""
        return [
            hint for hint, noted in reversed(self._hints.items()) if now - noted <= HINT_SECONDS
        ]

    def _make_room(self, *, is_member: bool) -> None:
        strangers = [key for key, peer in self._peers.items() if not peer.is_member]
        leaving = strangers or (list(self._peers) if is_member else [])
        if not leaving:
            raise CommunityError(Code.CAPACITY_EXCEEDED, "the peer book is full of members")
        del self._peers[min(leaving, key=lambda key: self._peers[key].seen)]


def _pause(failures: int) -> float:
    return min(_FIRST_PAUSE * 2.0 ** min(failures, 10), _LONGEST_PAUSE)


def _is_due(not_before: float, now: float) -> bool:
    # A pause beyond the longest one means that the clock was set back.
    return not now < not_before <= now + _LONGEST_PAUSE


def _issued(manifest: Mapping[str, Any]) -> float:
    return parse_time(manifest["issued_at"])


def _endpoints(written: list[dict[str, Any]]) -> tuple[Endpoint, ...]:
    return tuple(
        Endpoint(each["transport"], each["host"], each["port"], each.get("certificate"))
        for each in written
    )
