"""Who could at most have been trusted, whatever is void in the end.

One pass in which grants count and nothing is taken away, so every level is an upper bound of the
level in any settled world. It costs one look at each event and spares the weighing of what can
never hold.
"""

from collections.abc import Sequence
from typing import Final

from accord.community.envelope import Event, Position
from accord.community.envelope.names import Level
from accord.community.fold.roster import CREATED, JOINED, REVOKED, is_known
from accord.community.fold.standing import signers

_INVITED: Final = "community.member.invited"
_PROMOTED: Final = "community.member.promoted"
_POLICY: Final = "community.policy.updated"


class Conceivable:
    """The upper bound of everybody's level.

    Attributes:
        since: Where each node could have been admitted at the earliest.
    """

    def __init__(self, events: Sequence[Event], community_id: str) -> None:
        self.since: dict[str, Position] = {}
        self._community_id = community_id
        self._levels: dict[str, Level] = {}
        self._invited: dict[str, Level] = {}
        self._least = 64
        self._able: set[bytes] = set()
        for event in events:
            if is_known(event):
                self._take(event)

    def could_revoke(self, revocation: Event) -> bool:
        """Whether enough of its signers could have been trusted then, and its target a member."""
        return revocation.digest in self._able

    def _take(self, event: Event) -> None:
        kind, data, level = event.event_type, event.data, self._level(event.author)
        if kind == CREATED and event.author == self._community_id:
            self._enforce(event)
            self._raise(data["founder_node_id"], Level.ANCHOR, event)
        elif kind == _POLICY and event.author == self._community_id:
            self._enforce(event)
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
        elif kind == REVOKED and event.author in self.since and level >= Level.TRUSTED:
            trusted = sum(self._level(each) >= Level.TRUSTED for each in signers(event))
            if trusted >= self._least and self._level(data["target_node_id"]):
                self._able.add(event.digest)

    def _level(self, node_id: str) -> Level:
        if node_id == self._community_id:
            return Level.ANCHOR
        return self._levels.get(node_id, Level.UNKNOWN)

    def _enforce(self, event: Event) -> None:
        self._least = min(self._least, event.data["policy"]["min_signatures_to_revoke"])

    def _raise(self, node_id: str, level: Level, event: Event) -> None:
        if level > self._level(node_id):
            self._levels[node_id] = level
            self.since.setdefault(node_id, event.position)
