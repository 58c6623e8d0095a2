"""Stage (b), whole: the membership fold, settled also where revocations reach back.

Most revocations and floors end what their targets say from now on, and one pass in order judges
them in place. One that voids a membership event *before* its own position changes the ground that
it stands on itself, and others too. These are decided first, one at a time, and never taken back:

- It *holds* beside what is known already when, with its own cutoff known from the start too, it
  has its signers at its position and its own event is not void.
- One *excludes* another that holds, when the other would hold no more beside it.
- Of those that hold, the first in order is taken that nobody excludes one-sidedly; where two
  exclude each other, the junior gives way: the side whose earliest-admitted signer came later,
  then the greater event id. In a ring of exclusions the most senior is taken.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from accord.community.envelope import Event, Position
from accord.community.fold.chains import Chain
from accord.community.fold.roster import (
    FLOORED,
    REVOKED,
    Known,
    Roster,
    cutoff_of,
    floor_of,
    signers,
)

MAX_RIVALS: Final = 32
"""How many that hold are weighed against each other at a time, the first ones in order."""


def settle(events: Sequence[Event], chains: dict[str, Chain], community_id: str) -> Roster:
    """Fold the membership events, which come in total order."""
    return _Settling(events, chains, community_id).settled()


class _Settling:
    def __init__(
        self, events: Sequence[Event], chains: dict[str, Chain], community_id: str
    ) -> None:
        self._events = events
        self._chains = chains
        self._community_id = community_id
        self._reaching = _reaching(events)
        reaching = {event.digest for event in self._reaching}
        self._in_place = [
            event
            for event in events
            if event.event_type == REVOKED and event.digest not in reaching
        ]
        self._worlds: dict[frozenset[bytes], Roster] = {}

    def settled(self) -> Roster:
        known = Known()
        while (chosen := self._next(known)) is not None:
            known = _with(known, chosen)
            self._worlds.clear()
        return self._world(known)

    def _next(self, known: Known) -> Event | None:
        reaching = self._holding(self._reaching, known)
        if not reaching:
            return None
        at_risk = {signer for event in reaching for signer in signers(event)}
        rivals = [event for event in self._in_place if event.data["target_node_id"] in at_risk]
        candidates = sorted(
            reaching + self._holding(rivals, known), key=lambda event: event.position
        )
        for event in candidates:
            if not any(self._gives_way(event, other, known) for other in candidates):
                return event
        return min(candidates, key=lambda event: self._seniority(event, known))

    def _holding(self, events: Iterable[Event], known: Known) -> list[Event]:
        found = []
        for event in events:
            if event.digest not in known.digests() and self._holds(event, known):
                found.append(event)
                if len(found) == MAX_RIVALS:
                    break
        return found

    def _gives_way(self, event: Event, other: Event, known: Known) -> bool:
        if event is other or self._holds(event, _with(known, other)):
            return False
        is_mutual = not self._holds(other, _with(known, event))
        return not is_mutual or self._seniority(other, known) < self._seniority(event, known)

    def _holds(self, event: Event, known: Known) -> bool:
        """Whether an event holds by itself beside what is known and its own cutoff."""
        return event.digest in self._world(_with(known, event)).holding

    def _seniority(self, event: Event, known: Known) -> tuple[Position, str]:
        world = self._world(_with(known, event))
        return world.seniority.get(event.digest, (event.position, event.event_id))

    def _world(self, known: Known) -> Roster:
        key = known.digests()
        world = self._worlds.get(key)
        if world is None:
            world = self._worlds[key] = Roster(self._community_id, self._chains, known)
            for event in self._events:
                world.take(event)
        return world


def _with(known: Known, event: Event) -> Known:
    if event.digest in known.digests():
        return known
    if event.event_type == FLOORED:
        return Known(known.revocations, (*known.floors, event))
    return Known((*known.revocations, event), known.floors)


def _reaching(events: Sequence[Event]) -> list[Event]:
    """The revocations and floors that would void a membership event before them."""
    by_author: dict[str, list[Event]] = {}
    found = []
    for number, event in enumerate(events):
        if event.event_type == REVOKED:
            cutoff = cutoff_of(event)
            earlier = by_author.get(event.data["target_node_id"], ())
            if any(cutoff.voids(each) for each in earlier):
                found.append(event)
        elif event.event_type == FLOORED:
            floor = floor_of(event)
            if any(floor.voids(each) for each in events[:number]):
                found.append(event)
        by_author.setdefault(event.author, []).append(event)
    return found
