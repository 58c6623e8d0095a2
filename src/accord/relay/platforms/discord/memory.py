"""Where to go on after a restart or a lost session: the form in which it is remembered. Pure.

Owns the session, the last message of each channel, and from where a channel that is not among them
is read again. All of it may lag behind what was taken: what is read twice is taken once. What is
remembered and cannot be read counts as nothing.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import orjson

from accord.relay.platforms.discord import snowflakes
from accord.relay.platforms.discord.session import Session
from accord.relay.platforms.discord.snowflakes import is_snowflake

_MOST_CHANNELS: Final = 2_000
# Between this machine's clock and the one that Discord's ids come from.
_SKEW_SECONDS: Final = 60.0
# Ten seconds of ids: channels are not told of in one order, and one may lag behind another.
_DISORDER: Final = 10_000 << 22


class Memory:
    """What a bot remembers.

    Attributes:
        session: The session to resume; None where a new one must begin.
        baseline: The message after which a channel is read that was not seen yet; 0 where nothing
            is to be read, because the bot was never here before.
    """

    def __init__(self) -> None:
        self.session: Session | None = None
        self.baseline = 0
        self._newest = 0
        self._pending: set[str] = set()
        self._is_settled = True
        self._seen: OrderedDict[str, tuple[int, str]] = OrderedDict()

    @classmethod
    def read(cls, state: Mapping[str, str]) -> "Memory":
        """Read what the last owner remembered."""
        made = cls()
        match _json(state, "marks"):
            case {"newest": int(newest), "baseline": int(baseline), "settled": bool(settled)}:
                made._newest, made.baseline, made._is_settled = newest, baseline, settled
            case _:
                return made
        match _json(state, "session"):
            case {"id": str(name), "url": str(url), "seq": int(seq)}:
                made.session = Session(name, url, seq)
        seen = _json(state, "seen")
        for channel, entry in seen.items() if isinstance(seen, dict) else ():
            match entry:
                case [int(last), str(guild)] if is_snowflake(channel):
                    made._seen[channel] = last, guild
        return made

    def write(self) -> dict[str, str]:
        """The form in which it is remembered."""
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

    def began(self, session: Session, guilds: set[str], now: float) -> None:
        """A new session: what was missed before it is to be read, in each guild that is named.

        Args:
            session: The new one.
            guilds: Those that will be described one by one.
            now: Seconds since the epoch.
        """
        self.session = session
        if not self._newest:
            # The first life: nothing was missed, and the next one begins here.
            self._newest = snowflakes.before(now - _SKEW_SECONDS)
            return
        if self._is_settled and not self._pending:
            self.baseline = max(1, self._newest - _DISORDER)
        # Else some guild was never caught up with since the last time, and the old one holds.
        self._is_settled = True
        self._pending = set(guilds)

    def caught_up(self, guild_id: str) -> None:
        """A guild's channels are read."""
        self._pending.discard(guild_id)

    def saw(self, channel_id: str, message_id: str, guild_id: str | None) -> None:
        """A message is dealt with."""
        number = int(message_id)
        last = max(number, self._seen.get(channel_id, (0, ""))[0])
        self._seen[channel_id] = last, guild_id or ""
        self._seen.move_to_end(channel_id)
        self._newest = max(self._newest, number)
        while len(self._seen) > _MOST_CHANNELS:
            self._seen.popitem(last=False)

    def after(self, channel_id: str, oldest: int) -> int | None:
        """After which message a channel is read; None where nothing is to be read.

        Args:
            channel_id: The channel.
            oldest: The least id of a message that is not too old.
        """
        if not self.baseline:
            return None
        return max(self._seen.get(channel_id, (self.baseline, ""))[0], oldest)

    def seen_in(self, guild_id: str | None) -> list[str]:
        """The channels of a guild that were seen; the direct chats, where there is no guild."""
        return [channel for channel, (_, guild) in self._seen.items() if guild == (guild_id or "")]

    def forget(self, channel_id: str) -> None:
        """A channel is gone."""
        self._seen.pop(channel_id, None)


def _json(state: Mapping[str, str], name: str) -> Any:
    try:
        return orjson.loads(state.get(name) or "null")
    except orjson.JSONDecodeError:
        return None
