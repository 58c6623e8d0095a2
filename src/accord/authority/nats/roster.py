"""The list of connections that are there, and which of them are a session's first and last.

A plain value in memory: it hears nothing and tells nobody.
"""

from dataclasses import dataclass, field

from accord.authority.nats.advisories import Connection

Place = tuple[str, int]
"""A server, and the number of a connection on it."""


def place(connection: Connection) -> Place:
    """What is a connection's alone."""
    return connection.server, connection.client


@dataclass(slots=True)
class Roster:
    """Connections by place, and by session and contract."""

    _held: dict[Place, Connection] = field(default_factory=dict)
    _by_session: dict[str, dict[str, set[Place]]] = field(default_factory=dict)

    def __contains__(self, where: Place) -> bool:
        return where in self._held

    def all(self) -> tuple[Connection, ...]:
        """Every connection, in the order in which they were seen."""
        return tuple(self._held.values())

    def has_session(self, key: str) -> bool:
        """Whether a session has a connection."""
        return key in self._by_session

    def of_session(self, key: str) -> tuple[Connection, ...]:
        """The connections of a session."""
        under = self._by_session.get(key, {})
        return tuple(self._held[where] for places in under.values() for where in places)

    def add(self, connection: Connection) -> bool:
        """Add one that is not there; whether it is the first of its session and contract."""
        admitted, where = connection.admitted, place(connection)
        self._held[where] = connection
        places = self._by_session.setdefault(admitted.key, {}).setdefault(admitted.digest, set())
        places.add(where)
        return len(places) == 1

    def remove(self, where: Place) -> tuple[Connection, bool] | None:
        """Take one away, if it is there; with whether it was the last of its session and contract.

        What is known of it from its beginning counts, not what its end says.
        """
        gone = self._held.pop(where, None)
        if gone is None:
            return None
        under = self._by_session[gone.admitted.key]
        places = under[gone.admitted.digest]
        places.discard(where)
        if places:
            return gone, False
        del under[gone.admitted.digest]
        if not under:
            del self._by_session[gone.admitted.key]
        return gone, True
