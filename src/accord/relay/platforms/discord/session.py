"""A session with Discord's gateway: what is said first, and what follows from how it ends. Pure.

Owns the payloads that go up, the meaning of close codes, and the heartbeat as a small machine.
Nothing here waits or sends; time comes from whoever asks.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from typing import Any, Final

from accord.relay.errors import Code, RelayError

VERSION: Final = 10
KEEPS_SESSION: Final = 4000
"""The code to close with: 1000 and 1001 would end the session, too."""
_LEAST_INTERVAL: Final = 1.0
_MOST_INTERVAL: Final = 600.0


class Op(IntEnum):
    """What a payload of the gateway is."""

    DISPATCH = 0
    HEARTBEAT = 1
    IDENTIFY = 2
    RESUME = 6
    RECONNECT = 7
    INVALID_SESSION = 9
    HELLO = 10
    HEARTBEAT_ACK = 11


class Intent(IntFlag):
    """What the gateway is asked to tell of."""

    GUILDS = 1 << 0
    GUILD_MEMBERS = 1 << 1
    GUILD_MESSAGES = 1 << 9
    DIRECT_MESSAGES = 1 << 12
    MESSAGE_CONTENT = 1 << 15


@dataclass(frozen=True, slots=True)
class Session:
    """What a session is resumed by; nothing of it is of use without the token.

    Attributes:
        seq: The number of the last dispatch that is dealt with.
    """

    id: str
    url: str
    seq: int


def identify(token: str, intents: int, shard: tuple[int, int]) -> dict[str, Any]:
    """The payload that begins a session."""
    properties = {"os": "linux", "browser": "accord", "device": "accord"}
    told = {"token": token, "intents": intents, "shard": list(shard), "properties": properties}
    return {"op": Op.IDENTIFY.value, "d": told}


def resume(token: str, session: Session) -> dict[str, Any]:
    """The payload that goes on with a session."""
    told = {"token": token, "session_id": session.id, "seq": session.seq}
    return {"op": Op.RESUME.value, "d": told}


def heartbeat(received: int | None) -> dict[str, Any]:
    """The payload that says that we are alive, and what came last."""
    return {"op": Op.HEARTBEAT.value, "d": received}


class Next(Enum):
    """What to do after a connection has ended."""

    RESUME = "resume"
    IDENTIFY = "identify"


_FRESH: Final = frozenset({4003, 4007, 4009})
_REFUSED: Final = {
    4004: ("Discord refuses the bot's token", "make a new one in the developer portal, under Bot"),
    4010: ("Discord refuses the shard", "correct shard: the number, and how many there are"),
    4011: ("Discord wants this bot in several shards", "set shard, and run one for each"),
    4012: ("Discord no longer speaks this version of its gateway", "install a newer Accord"),
    4013: ("Discord does not know an intent", "install a newer Accord"),
    4014: (
        "the bot may not have an intent that it asks for",
        "enable it in the developer portal under Bot, or turn off message_content or member_events",
    ),
}


def after_close(code: int) -> Next:
    """What to do after the gateway closed with this code.

    Raises:
        RelayError: It would close again: somebody must mend something first.
    """
    if code in _REFUSED:
        what, mend = _REFUSED[code]
        raise RelayError(Code.UNAUTHORIZED, what, where=f"discord gateway ({code})", mend=mend)
    return Next.IDENTIFY if code in _FRESH else Next.RESUME


class Pulse:
    """The heartbeat of one connection.

    Args:
        interval: The seconds between beats, as HELLO said in milliseconds.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._is_awaited = False

    @classmethod
    def of(cls, hello: Any) -> "Pulse":
        """The pulse that a HELLO asks for.

        Raises:
            RelayError: It is no HELLO.
        """
        match hello:
            case {"op": Op.HELLO, "d": {"heartbeat_interval": int() | float() as millis}}:
                return cls(min(max(millis / 1000, _LEAST_INTERVAL), _MOST_INTERVAL))
            case _:
                raise RelayError(Code.UNAVAILABLE, "Discord's gateway does not say hello")

    def first(self, chance: float) -> float:
        """Seconds until the first beat; `chance` is from 0 to 1, so that not all beat together."""
        return self.interval * chance

    def beat(self) -> bool:
        """A beat is due: whether to send it. The other end is dead if the last was not answered."""
        if self._is_awaited:
            return False
        self._is_awaited = True
        return True

    def acknowledged(self) -> None:
        """The other end has heard the last beat."""
        self._is_awaited = False
