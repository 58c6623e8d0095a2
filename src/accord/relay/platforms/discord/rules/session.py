"""A session with Discord's gateway: its payloads, close codes, heartbeat and checkpoint. Pure.

The checkpoint may lag behind what was ingested: events are deduplicated by their ids.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag
from typing import Any, Final

import orjson

from accord.relay.errors import Code, RelayError
from accord.relay.platforms.discord.rules import permissions
from accord.relay.platforms.discord.rules.permissions import is_snowflake

VERSION: Final = 10
KEEPS_SESSION: Final = 4000
"""The code to close with: 1000 and 1001 would end the session, too."""
_LEAST_INTERVAL: Final = 1.0
_MOST_INTERVAL: Final = 600.0


class Op(IntEnum):
    """The opcodes of the gateway."""

    DISPATCH = 0
    HEARTBEAT = 1
    IDENTIFY = 2
    RESUME = 6
    RECONNECT = 7
    INVALID_SESSION = 9
    HELLO = 10
    HEARTBEAT_ACK = 11


class Intent(IntFlag):
    """The groups of events that the gateway can be asked for."""

    GUILDS = 1 << 0
    GUILD_MEMBERS = 1 << 1
    GUILD_MESSAGES = 1 << 9
    DIRECT_MESSAGES = 1 << 12
    MESSAGE_CONTENT = 1 << 15


@dataclass(frozen=True, slots=True)
class GatewaySession:
    """What is needed besides the token to resume; `seq` is that of the last handled dispatch."""

    id: str
    url: str
    seq: int


def identify_payload(token: str, intents: int, shard: tuple[int, int]) -> dict[str, Any]:
    """The payload that starts a session."""
    properties = {"os": "linux", "browser": "accord", "device": "accord"}
    told = {"token": token, "intents": intents, "shard": list(shard), "properties": properties}
    return {"op": Op.IDENTIFY.value, "d": told}


def resume_payload(token: str, session: GatewaySession) -> dict[str, Any]:
    """The payload that resumes a session."""
    told = {"token": token, "session_id": session.id, "seq": session.seq}
    return {"op": Op.RESUME.value, "d": told}


def heartbeat_payload(received: int | None) -> dict[str, Any]:
    """A heartbeat with the last sequence number."""
    return {"op": Op.HEARTBEAT.value, "d": received}


class NextStep(Enum):
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


def after_close(code: int) -> NextStep:
    """What to do after the gateway closed with this code; raises RelayError if nothing helps."""
    if code in _REFUSED:
        what, mend = _REFUSED[code]
        raise RelayError(Code.UNAUTHORIZED, what, where=f"discord gateway ({code})", mend=mend)
    return NextStep.IDENTIFY if code in _FRESH else NextStep.RESUME


class Heartbeat:
    """The heartbeat of one connection; `interval` is in seconds."""

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._is_awaited = False

    @classmethod
    def of(cls, hello: Any) -> "Heartbeat":
        """The heartbeat that a HELLO asks for; raises RelayError if it is no HELLO."""
        match hello:
            case {"op": Op.HELLO, "d": {"heartbeat_interval": int() | float() as millis}}:
                return cls(min(max(millis / 1000, _LEAST_INTERVAL), _MOST_INTERVAL))
            case _:
                raise RelayError(Code.UNAVAILABLE, "Discord's gateway does not say hello")

    def first(self, chance: float) -> float:
        """Seconds until the first beat; `chance` (from 0 to 1) spreads them."""
        return self.interval * chance

    def beat(self) -> bool:
        """Whether to send a beat; False if the last one was not acknowledged."""
        if self._is_awaited:
            return False
        self._is_awaited = True
        return True

    def acknowledged(self) -> None:
        """Note that the last beat was acknowledged."""
        self._is_awaited = False


_MOST_CHANNELS: Final = 2_000
# The allowed difference between this clock and Discord's.
_SKEW_SECONDS: Final = 60.0
# Ten seconds of ids: events of different channels may arrive out of order.
_DISORDER: Final = 10_000 << 22


class Checkpoint:
    """What a bot stores to go on after a restart.

    Attributes:
        session: The session to resume; None to start a new one.
        baseline: The message id after which an unseen channel is read; 0 to read nothing, since
            the bot was never here before.
    """

    def __init__(self) -> None:
        self.session: GatewaySession | None = None
        self.baseline = 0
        self._newest = 0
        self._pending: set[str] = set()
        self._is_settled = True
        self._seen: OrderedDict[str, tuple[int, str]] = OrderedDict()

    @classmethod
    def read(cls, state: Mapping[str, str]) -> "Checkpoint":
        """Read what the last owner stored."""
        made = cls()
        match _as_json(state, "marks"):
            case {"newest": int(newest), "baseline": int(baseline), "settled": bool(settled)}:
                made._newest, made.baseline, made._is_settled = newest, baseline, settled
            case _:
                return made
        match _as_json(state, "session"):
            case {"id": str(name), "url": str(url), "seq": int(seq)}:
                made.session = GatewaySession(name, url, seq)
        seen = _as_json(state, "seen")
        for channel, entry in seen.items() if isinstance(seen, dict) else ():
            match entry:
                case [int(last), str(guild)] if is_snowflake(channel):
                    made._seen[channel] = last, guild
        return made

    def write(self) -> dict[str, str]:
        """The form in which it is stored."""
        marks = {
            "newest": self._newest,
            "baseline": self.baseline,
            "settled": self._is_settled and not self._pending,
        }
        session = self.session
        told = session and {"id": session.id, "url": session.url, "seq": session.seq}
        return {
            "marks": orjson.dumps(marks).decode(),
            "session": orjson.dumps(told).decode(),
            "seen": orjson.dumps(self._seen).decode(),
        }

    def began(self, session: GatewaySession, guilds: set[str], now: float) -> None:
        """Note a new session: missed messages are to be read in each of these guilds."""
        self.session = session
        if not self._newest:
            # The first session ever: nothing was missed before it.
            self._newest = permissions.snowflake_before(now - _SKEW_SECONDS)
            return
        if self._is_settled and not self._pending:
            self.baseline = max(1, self._newest - _DISORDER)
        # Else some guild is not caught up yet, and the old baseline stays.
        self._is_settled = True
        self._pending = set(guilds)

    def caught_up(self, guild_id: str) -> None:
        """Note that a guild's channels were read."""
        self._pending.discard(guild_id)

    def saw(self, channel_id: str, message_id: str, guild_id: str | None) -> None:
        """Note that a message was handled."""
        number = int(message_id)
        last = max(number, self._seen.get(channel_id, (0, ""))[0])
        self._seen[channel_id] = last, guild_id or ""
        self._seen.move_to_end(channel_id)
        self._newest = max(self._newest, number)
        while len(self._seen) > _MOST_CHANNELS:
            self._seen.popitem(last=False)

    def after(self, channel_id: str, oldest: int) -> int | None:
        """The id after which to read a channel, `oldest` at least; None to read nothing."""
        if not self.baseline:
            return None
        return max(self._seen.get(channel_id, (self.baseline, ""))[0], oldest)

    def seen_in(self, guild_id: str | None) -> list[str]:
        """The channels seen in a guild; for None, the direct chats."""
        return [channel for channel, (_, guild) in self._seen.items() if guild == (guild_id or "")]

    def forget(self, channel_id: str) -> None:
        """Forget a channel that is gone."""
        self._seen.pop(channel_id, None)


def _as_json(state: Mapping[str, str], name: str) -> Any:
    try:
        return orjson.loads(state.get(name) or "null")
    except orjson.JSONDecodeError:
        return None
