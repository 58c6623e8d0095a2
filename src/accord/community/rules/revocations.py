"""Membership with revocations that reach back (stage b of the fold, complete).

A revocation that voids a membership event before its own position takes effect from the start, or
not at all. docs/concepts/fold.md explains how contested revocations are weighed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from accord.community.rules.chains import Chain
from accord.community.rules.event import Event, Position
from accord.community.rules.formats import Level
from accord.community.rules.membership import (
    CREATED,
    JOINED,
    REVOKED,
    Roster,
    cutoff_of,
    is_known_version,
    signers,
)

_INVITED: Final = "community.member.invited"
_PROMOTED: Final = "community.member.promoted"


class LevelBounds:
    """Upper bounds of everybody's level; `since` has the earliest possible admissions."""

    def __init__(self, events: Sequence[Event], community_id: str) -> None:
        self.since: dict[str, Position] = {}
        self._community_id = community_id
        self._levels: dict[str, Level] = {}
        self._invited: dict[str, Level] = {}
        self._able: set[bytes] = set()
        for event in events:
            if is_known_version(event):
                self._take(event)

    def could_revoke(self, revocation: Event) -> bool:
        """Whether a signer could have been trusted then, and its target a member.

        One signer is enough if nobody else is trusted, and who has lost trust is not known here.
        """
        return revocation.digest in self._able

    def _take(self, event: Event) -> None:
        kind, data, level = event.event_type, event.data, self._level(event.author)
        if kind == CREATED and event.author == self._community_id:
            self._raise(data["founder_node_id"], Level.ANCHOR, event)
        elif kind == _INVITED and level >= Level.MEMBER:
            invitee, given = data["invitee_node_id"], Level.parse(data["initial_level"])
            known = self._invited.get(invitee, Level.UNKNOWN)
            self._invited[invitee] = max(known, min(given, level))
        elif kind == JOINED:
            self._raise(event.author, self._invited.get(event.author, Level.UNKNOWN), event)
        elif kind == _PROMOTED and level >= Level.TRUSTED:
            target = data["target_node_id"]
            if self._level(target):
                self._raise(target, min(Level.parse(data["new_level"]), level), event)
        elif (
            kind == REVOKED
            and event.author in self.since
            and level >= Level.TRUSTED
            and self._level(data["target_node_id"])
        ):
            self._able.add(event.digest)

    def _level(self, node_id: str) -> Level:
        if node_id == self._community_id:
            return Level.ANCHOR
        return self._levels.get(node_id, Level.UNKNOWN)

    def _raise(self, node_id: str, level: Level, event: Event) -> None:
        if level > self._level(node_id):
            self._levels[node_id] = level
            self.since.setdefault(node_id, event.position)


MAX_CONTESTED_BY_AUTHOR: Final = 3
"""How many contested revocations are weighed of one author."""

MAX_CONTESTED: Final = 9
"""How many are weighed of all."""

MAX_RIVALS: Final = 3
"""How many that hold are weighed against each other at a time, the first ones in order."""

_Known = tuple[Event, ...]


def settle_membership(
    events: Sequence[Event], chains: Mapping[str, Chain], community_id: str
) -> Roster:
    """Fold the membership events, which come in total order."""
    return _Settlement(events, chains, community_id).settled()


class _Settlement:
    def __init__(
        self, events: Sequence[Event], chains: Mapping[str, Chain], community_id: str
    ) -> None:
        self._events = events
        self._chains = chains
        self._community_id = community_id
        self._in_place, reaching = _sorted_out(events)
        self._reaching = _names(reaching)
        self._able = LevelBounds(events if reaching else (), community_id)
        self._open = [event for event in reaching if self._able.could_revoke(event)]
        self._worlds: dict[frozenset[bytes], Roster] = {}

    def settled(self) -> Roster:
        known = self._uncontested(())
        self._open = self._weighed()
        while (chosen := self._next(known)) is not None:
            known = self._take(known, [chosen])
            known = self._uncontested(known)
        return self._world(known)

    def _uncontested(self, known: _Known) -> _Known:
        """Accept those that are valid together with each other and with all the rest."""
        holding = self._world((*known, *self._open)).holding
        together: Sequence[Event] = self._open
        while len(left := [event for event in together if event.digest in holding]) < len(together):
            together = left
            holding = holding & self._world((*known, *together)).holding
        return self._take(known, together)

    def _take(self, known: _Known, chosen: Sequence[Event]) -> _Known:
        names = _names(chosen)
        self._open = [event for event in self._open if event.digest not in names]
        known = (*known, *chosen)
        taken = _names(known)
        self._worlds = {key: each for key, each in self._worlds.items() if taken <= key}
        return known

    def _weighed(self) -> list[Event]:
        """The contested ones that can be weighed, in order."""
        chosen: list[Event] = []
        of_author: Counter[str] = Counter()
        since = self._able.since
        for event in sorted(self._open, key=lambda event: (since[event.author], event.position)):
            if of_author[event.author] < MAX_CONTESTED_BY_AUTHOR and len(chosen) < MAX_CONTESTED:
                of_author[event.author] += 1
                chosen.append(event)
        return sorted(chosen, key=_position_of)

    def _next(self, known: _Known) -> Event | None:
        holding = (event for event in self._open if self._holds(event, known))
        reaching = list(islice(holding, MAX_RIVALS))
        if not reaching:
            return None
        candidates = sorted(reaching + self._rivals(reaching, known), key=_position_of)
        for event in candidates:
            if not any(self._gives_way(event, other, known) for other in candidates):
                return event
        return min(candidates, key=lambda event: self._seniority(event, known))

    def _rivals(self, reaching: Sequence[Event], known: _Known) -> list[Event]:
        at_risk = {signer for event in reaching for signer in signers(event)}
        # One in place voids nothing before it, so it holds with its cutoff as without; but for one
        # whose author is its own target, which voids itself.
        holding = self._world(known).holding
        found = (
            event
            for event in self._in_place
            if event.data["target_node_id"] in at_risk - {event.author}
            and event.digest in holding
            and event not in known
        )
        return list(islice(found, MAX_RIVALS))

    def _gives_way(self, event: Event, other: Event, known: _Known) -> bool:
        if event is other or self._holds(event, (*known, other)):
            return False
        is_mutual = not self._holds(other, (*known, event))
        return not is_mutual or self._seniority(other, known) < self._seniority(event, known)

    def _holds(self, event: Event, known: _Known) -> bool:
        """Whether a revocation is valid by itself, given the known ones and its own cutoff."""
        return event.digest in self._world((*known, event)).holding

    def _seniority(self, event: Event, known: _Known) -> tuple[Position, str]:
        return self._world((*known, event)).seniority[event.digest]

    def _world(self, known: _Known) -> Roster:
        key = _names(known)
        world = self._worlds.get(key)
        if world is None:
            world = Roster(self._community_id, self._chains, known, self._reaching)
            self._worlds[key] = world
            for event in self._events:
                world.take(event)
        return world


def _names(known: Iterable[Event]) -> frozenset[bytes]:
    return frozenset(event.digest for event in known)


def _position_of(event: Event) -> Position:
    return event.position


def _sorted_out(events: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """The local revocations, and those that would void an earlier membership event."""
    last_seq: dict[str, int] = {}
    numbered: dict[tuple[str, int], set[str]] = {}
    in_place: list[Event] = []
    reaching: list[Event] = []
    for event in events:
        if event.event_type == REVOKED and is_known_version(event):
            target, cutoff = event.data["target_node_id"], cutoff_of(event)
            others = numbered.get((target, cutoff.last_seq), set()) - {cutoff.last_hash}
            is_reaching = last_seq.get(target, 0) > cutoff.last_seq or others
            (reaching if is_reaching else in_place).append(event)
        if event.author_seq is not None:
            seq = event.author_seq
            last_seq[event.author] = max(last_seq.get(event.author, 0), seq)
            numbered.setdefault((event.author, seq), set()).add(event.hash)
    return in_place, reaching
