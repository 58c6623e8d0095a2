"""Stage (b), whole: the membership fold, settled also where revocations reach back.

Most revocations end what their targets say from now on, and one pass in order judges them in
place. One that voids a membership event *before* its own position changes the ground that it stands
on itself, and others too. Such a one has its effect from the start, or none at all. Those that have
it are found first, and never taken back:

- One *holds* beside others that are known when, with its own cutoff known from the start too, it
  has its signers at its position and its own event is not void.
- All that hold beside each other, and beside all the rest as well, are taken together.
- The rest are contested and taken one at a time. One *excludes* another that holds, when the other
  would hold no more beside it. Of those that hold, the first in order is taken that nobody excludes
  one-sidedly; where two exclude each other, the junior gives way: the side whose
  earliest-admitted signer came later, then the greater event id. In a ring of exclusions the most
  senior is taken. A revocation in place takes part where its target has signed a contested one.

Each question costs a pass, so only so many are asked. Revocations that nobody could ever have been
trusted to make are left aside. Of the contested ones, each author has its first three, and all
together nine, those of the authors who could have been admitted earliest; of those that hold at a
time the first three are weighed, with as many in place.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

from accord.community.envelope import Event, Position
from accord.community.fold.chains import Chain
from accord.community.fold.conceivable import Conceivable
from accord.community.fold.roster import REVOKED, Roster, is_known
from accord.community.fold.standing import cutoff_of, signers

OF_AUTHOR: Final = 3
"""How many contested revocations are weighed of one author."""

OF_ALL: Final = 9
"""How many are weighed of all."""

RIVALS: Final = 3
"""How many that hold are weighed against each other at a time, the first ones in order."""

_Known = tuple[Event, ...]


def settle(events: Sequence[Event], chains: Mapping[str, Chain], community_id: str) -> Roster:
    """Fold the membership events, which come in total order."""
    return _Settling(events, chains, community_id).settled()


class _Settling:
    def __init__(
        self, events: Sequence[Event], chains: Mapping[str, Chain], community_id: str
    ) -> None:
        self._events = events
        self._chains = chains
        self._community_id = community_id
        self._in_place, reaching = _sorted_out(events)
        self._reaching = _names(reaching)
        self._able = Conceivable(events if reaching else (), community_id)
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
        """Take all that hold beside each other and beside all the rest."""
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
        """Of those that are contested, the ones that can be weighed, in order."""
        chosen: list[Event] = []
        of_author: Counter[str] = Counter()
        since = self._able.since
        for event in sorted(self._open, key=lambda event: (since[event.author], event.position)):
            if of_author[event.author] < OF_AUTHOR and len(chosen) < OF_ALL:
                of_author[event.author] += 1
                chosen.append(event)
        return sorted(chosen, key=_position)

    def _next(self, known: _Known) -> Event | None:
        holding = (event for event in self._open if self._holds(event, known))
        reaching = list(islice(holding, RIVALS))
        if not reaching:
            return None
        candidates = sorted(reaching + self._rivals(reaching, known), key=_position)
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
        return list(islice(found, RIVALS))

    def _gives_way(self, event: Event, other: Event, known: _Known) -> bool:
        if event is other or self._holds(event, (*known, other)):
            return False
        is_mutual = not self._holds(other, (*known, event))
        return not is_mutual or self._seniority(other, known) < self._seniority(event, known)

    def _holds(self, event: Event, known: _Known) -> bool:
        """Whether an event holds by itself beside what is known and its own cutoff."""
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


def _position(event: Event) -> Position:
    return event.position


def _sorted_out(events: Sequence[Event]) -> tuple[list[Event], list[Event]]:
    """The revocations in place, and those that would void a membership event before them."""
    last_seq: dict[str, int] = {}
    numbered: dict[tuple[str, int], set[str]] = {}
    in_place: list[Event] = []
    reaching: list[Event] = []
    for event in events:
        if event.event_type == REVOKED and is_known(event):
            target, cutoff = event.data["target_node_id"], cutoff_of(event)
            others = numbered.get((target, cutoff.last_seq), set()) - {cutoff.last_hash}
            is_reaching = last_seq.get(target, 0) > cutoff.last_seq or others
            (reaching if is_reaching else in_place).append(event)
        if event.author_seq is not None:
            seq = event.author_seq
            last_seq[event.author] = max(last_seq.get(event.author, 0), seq)
            numbered.setdefault((event.author, seq), set()).add(event.hash)
    return in_place, reaching
