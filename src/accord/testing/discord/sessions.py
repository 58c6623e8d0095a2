"""Gateway sessions: what each was told, in order, and what can be told again.

Owns sequence numbers and the log from which a RESUME is answered. A session outlives its sockets.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import orjson

from accord.testing.discord.intents import Intent
from accord.testing.discord.websocket import GatewaySocket

_LOGGED = 10_000


@dataclass(eq=False, slots=True)
class Session:
    """What one IDENTIFY began.

    Attributes:
        sequence: The number of the last dispatch.
        socket: Where it is heard now, if it is.
        left_at: When its last socket ended, by the clock.
        is_expired: Whether it can no longer be resumed.
    """

    id: str
    intents: Intent
    shard: tuple[int, int]
    sequence: int = 0
    socket: GatewaySocket | None = None
    left_at: float | None = None
    is_expired: bool = False
    _log: deque[tuple[int, str, bytes]] = field(default_factory=lambda: deque(maxlen=_LOGGED))

    def dispatch(self, name: str, data: Any) -> None:
        """Tell something, now or when the session is resumed."""
        self.sequence += 1
        text = orjson.dumps({"op": 0, "t": name, "s": self.sequence, "d": data})
        self._log.append((self.sequence, name, text))
        if self.socket is not None:
            self.socket.send(text)

    def can_replay(self, after: int) -> bool:
        """Whether everything after a sequence number is still known."""
        return not self._log or after >= self._log[0][0] - 1

    def replay(self, after: int) -> None:
        """Tell again what came after a sequence number, in order, and say that this was all."""
        for number, name, text in self._log:
            if number > after and name != "RESUMED" and self.socket is not None:
                self.socket.send(text)
        self.dispatch("RESUMED", {"_trace": []})
