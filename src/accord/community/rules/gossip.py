"""Which peers a node syncs with in a round, and which of their addresses it dials first.

A round takes a few peers that answer, chosen at random, one that was not met for longest, and a
few whose addresses are untried or silent. So the cost of a round does not grow with the community,
every peer is met in the end, and silent ones displace nobody. Chance is a salt of the caller.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from blake3 import blake3

FIRST_PAUSE: Final = 2.0
LONGEST_PAUSE: Final = 300.0
"""Seconds until an address is tried again after one failure, and at most."""


MAX_TRIED: Final = 8
"""How many addresses of one peer are tried at a time."""


class GossipReason(StrEnum):
    """Why a peer is met in a round, or why it is not."""

    RANDOM = "gossip.random"
    """It answers, and chance chose it."""
    OLDEST = "gossip.oldest"
    """It answers, and was not met for longest."""
    UNTRIED = "gossip.untried"
    """None of its addresses was tried yet."""
    PROBE = "gossip.probe"
    """It was silent, and the pause of an address is over."""
    HEARD = "gossip.heard"
    """It was silent, and has called this node since it was tried last."""
    ASKED = "gossip.asked"
    """The owner asks for everybody."""
    BUSY = "gossip.busy"
    """A sync with it is under way."""
    PAUSED = "gossip.paused"
    """It was silent, and each of its addresses has a pause."""
    ENOUGH = "gossip.enough"
    """Others were chosen for this round."""


@dataclass(frozen=True, slots=True)
class AddressRecord:
    """What is known of an address.

    Attributes:
        failures: Failed attempts in a row.
        not_before: When to try again.
        tried: When it was tried last; None if never.
        answered: When a node answered there last; None if never.
    """

    url: str
    failures: int = 0
    not_before: float = 0.0
    tried: float | None = None
    answered: float | None = None

    def is_due(self, now: float) -> bool:
        """Whether it may be tried now."""
        # A pause beyond the longest one means that the clock was set back.
        return not now < self.not_before <= now + LONGEST_PAUSE

    def failed(self, now: float) -> "AddressRecord":
        """The record after an attempt without an answer."""
        pause = min(FIRST_PAUSE * 2.0 ** min(self.failures, 10), LONGEST_PAUSE)
        return AddressRecord(self.url, self.failures + 1, now + pause, now, self.answered)

    def succeeded(self, now: float) -> "AddressRecord":
        """The record after an answer."""
        return AddressRecord(self.url, tried=now, answered=now)


@dataclass(frozen=True, slots=True)
class GossipPeer:
    """A peer that could be met.

    Attributes:
        name: Its node id, or its address if the node there is not known.
        addresses: All its known addresses, the most trusted source first.
        met: When the last sync with it ended; None if never.
        heard: When it called this node last; None if never.
        is_busy: Whether a sync with it is under way.
    """

    name: str
    addresses: tuple[AddressRecord, ...]
    met: float | None = None
    heard: float | None = None
    is_busy: bool = False

    @property
    def is_live(self) -> bool:
        """Whether it answered at the last attempt at one of its addresses."""
        return any(each.answered is not None and not each.failures for each in self.addresses)

    @property
    def is_untried(self) -> bool:
        """Whether none of its addresses was ever tried."""
        return all(each.tried is None for each in self.addresses)

    @property
    def is_heard(self) -> bool:
        """Whether it has called this node since it was tried last."""
        tried = max((each.tried for each in self.addresses if each.tried is not None), default=None)
        return self.heard is not None and tried is not None and self.heard > tried


@dataclass(frozen=True, slots=True)
class GossipLimits:
    """How many peers a round meets.

    Attributes:
        fanout: Peers that answer, chosen at random.
        oldest: Peers that answer, those not met for longest.
        untried: Peers whose addresses were never tried.
        probes: Silent peers whose pause is over, and as many that have called since.
        search: New attempts of a round while fewer than `fanout` peers answer.
    """

    fanout: int = 3
    oldest: int = 1
    untried: int = 2
    probes: int = 1
    search: int = 16


@dataclass(frozen=True, slots=True)
class GossipChoice:
    """A peer to meet now, by these addresses in this order."""

    peer: GossipPeer
    addresses: tuple[str, ...]
    reason: GossipReason


@dataclass(frozen=True, slots=True)
class GossipRound:
    """The peers of a round.

    Attributes:
        left: Why each of the others is not met, by name.
        is_searching: Whether too few peers answer, so that the next round should come soon.
    """

    chosen: tuple[GossipChoice, ...]
    left: Mapping[str, GossipReason]
    is_searching: bool


def choose_peers(
    peers: Iterable[GossipPeer],
    *,
    now: float,
    salt: bytes,
    limits: GossipLimits | None = None,
    news: bool = False,
) -> GossipRound:
    """Choose the peers of a round.

    A round for news meets only peers that answer, as long as there are some. The same arguments
    give the same choice; `salt` is the chance.
    """
    most = limits or GossipLimits()
    left: dict[str, GossipReason] = {}
    live: list[GossipPeer] = []
    untried: list[GossipPeer] = []
    silent: list[GossipPeer] = []
    living = 0
    for peer in sorted(peers, key=lambda each: _rank(salt, each.name)):
        living += peer.is_live
        if peer.is_busy:
            left[peer.name] = GossipReason.BUSY
        elif peer.is_live:
            live.append(peer)
        elif peer.is_untried:
            untried.append(peer)
        elif peer.is_heard or any(each.is_due(now) for each in peer.addresses):
            silent.append(peer)
        else:
            left[peer.name] = GossipReason.PAUSED
    is_searching = living < most.fanout
    chosen = [(peer, GossipReason.RANDOM) for peer in live[: most.fanout]]
    if not news:
        waiting = sorted(live[most.fanout :], key=_met)
        chosen += [(peer, GossipReason.OLDEST) for peer in waiting[: most.oldest]]
    if is_searching or not news:
        room = most.search if is_searching else most.untried
        chosen += [(peer, GossipReason.UNTRIED) for peer in untried[:room]]
        room = max(most.search - len(untried), 0) if is_searching else 0
        heard = sorted((peer for peer in silent if peer.is_heard), key=_tried)
        chosen += [(peer, GossipReason.HEARD) for peer in heard[: max(room, most.probes)]]
        others = [peer for peer in silent if not peer.is_heard]
        others.sort(key=lambda peer: min(each.failures for each in peer.addresses))
        chosen += [(peer, GossipReason.PROBE) for peer in others[: max(room, most.probes)]]
    met = {peer.name for peer, _ in chosen}
    for peer in (*live, *untried, *silent):
        if peer.name not in met:
            left[peer.name] = GossipReason.ENOUGH
    return GossipRound(
        tuple(
            GossipChoice(peer, order_addresses(peer.addresses, now=now), reason)
            for peer, reason in chosen
        ),
        left,
        is_searching and (bool(chosen) or bool(left)),
    )


def choose_all(peers: Iterable[GossipPeer], *, now: float) -> GossipRound:
    """Meet every peer at all its addresses, paused ones included."""
    chosen = (
        GossipChoice(
            peer, order_addresses(peer.addresses, now=now, paused=True), GossipReason.ASKED
        )
        for peer in peers
    )
    return GossipRound(tuple(chosen), {}, is_searching=False)


def order_addresses(
    records: Sequence[AddressRecord], *, now: float, paused: bool = False
) -> tuple[str, ...]:
    """The addresses to try, best first: where it answered last, then untried, then silent ones.

    Addresses with a pause are left out, unless no other is known or `paused` asks for them.
    """

    def key(record: AddressRecord) -> tuple[int, int, float]:
        if record.answered is not None and not record.failures:
            return 0, 0, -record.answered
        return (1, 0, 0.0) if record.tried is None else (2, record.failures, 0.0)

    ordered = sorted(records, key=key)
    due = [record for record in ordered if paused or record.is_due(now)]
    return tuple(record.url for record in (due or ordered)[:MAX_TRIED])


def _rank(salt: bytes, name: str) -> bytes:
    return blake3(salt + name.encode()).digest(length=16)


def _met(peer: GossipPeer) -> float:
    return float("-inf") if peer.met is None else peer.met


def _tried(peer: GossipPeer) -> float:
    return max((each.tried for each in peer.addresses if each.tried is not None), default=0.0)
