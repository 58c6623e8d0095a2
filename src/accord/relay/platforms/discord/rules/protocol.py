"""Discord's protocol: gateway sessions, rate limit buckets and commands. Pure.

The checkpoint of a session may lag behind what was ingested: events are deduplicated by their ids.
Rate limits are learnt from response headers: they name the bucket that routes share, and buckets
are separate for each major parameter (channel, guild, webhook). A command that Discord would refuse
is left out, so that the others are shown.
"""

import math
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, IntFlag
from typing import Any, Final

import orjson
from cachetools import LRUCache

from accord.relay.errors import Code, RelayError
from accord.relay.platforms.discord.rules import permissions
from accord.relay.platforms.discord.rules.permissions import is_snowflake

VERSION: Final = 10
KEEPS_SESSION: Final = 4000
"""The code to close with: 1000 and 1001 would end the session, too."""
_LEAST_INTERVAL: Final = 1.0
_MOST_INTERVAL: Final = 600.0
_FRESH: Final = frozenset({4003, 4007, 4009})
_REFUSED: Final = {
    4004: ("Discord refuses the bot's token", "make a new one in the developer portal, under Bot"),
    4010: ("Discord refuses the shard", "correct shard: the number, and how many there are"),
    4011: ("Discord wants this bot in several shards", "set shards, or leave it out"),
    4012: ("Discord no longer speaks this version of its gateway", "install a newer Accord"),
    4013: ("Discord does not know an intent", "install a newer Accord"),
    4014: (
        "the bot may not have an intent that it asks for",
        "enable it in the developer portal under Bot, or turn off message_content or member_events",
    ),
}
_MOST_CHANNELS: Final = 2_000
# The allowed difference between this clock and Discord's.
_SKEW_SECONDS: Final = 60.0
# Ten seconds of ids: events of different channels may arrive out of order.
_DISORDER: Final = 10_000 << 22
_MOST_BUCKETS: Final = 5_000
_EVERYONE: Final = "*"
_LONGEST_WAIT: Final = 86_400.0
MOST_COMMANDS: Final = 100
_MOST_OPTIONS: Final = 25
_MOST_CHOICES: Final = 25
_LONGEST_DESCRIPTION: Final = 100
_COMMAND_NAME: Final = re.compile(r"[\w-]{1,32}")
_SUB_COMMAND: Final = 1
_GROUP: Final = 2
_TEXT: Final = 3
_OPTIONS: Final = range(_TEXT, 12)
_CHOOSABLE: Final = {_TEXT: (str,), 4: (int,), 10: (int, float)}
CommandPayload = dict[str, Any]


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


def after_close(code: int) -> NextStep:
    """What to do after the gateway closed with this code; raises RelayError if nothing helps."""
    if code in _REFUSED:
        what, mend = _REFUSED[code]
        raise RelayError(Code.UNAUTHORIZED, what, where=f"discord gateway ({code})", mend=mend)
    return NextStep.IDENTIFY if code in _FRESH else NextStep.RESUME


class Heartbeat:
    """The heartbeat of one connection; `interval` is in seconds.

    `tolerance` is how many beats may be missed before the connection counts as dead.
    """

    def __init__(self, interval: float, tolerance: int = 0) -> None:
        self.interval = interval
        self._tolerance = tolerance
        self._awaited = 0

    @classmethod
    def of(cls, hello: Any, tolerance: int = 0) -> "Heartbeat":
        """The heartbeat that a HELLO asks for; raises RelayError if it is no HELLO."""
        match hello:
            case {"op": Op.HELLO, "d": {"heartbeat_interval": int() | float() as millis}}:
                return cls(min(max(millis / 1000, _LEAST_INTERVAL), _MOST_INTERVAL), tolerance)
            case _:
                raise RelayError(Code.UNAVAILABLE, "Discord's gateway does not say hello")

    def first(self, chance: float) -> float:
        """Seconds until the first beat; `chance` (from 0 to 1) spreads them."""
        return self.interval * chance

    def beat(self) -> bool:
        """Whether to send a beat; False if too many before it were not acknowledged."""
        if self._awaited > self._tolerance:
            return False
        self._awaited += 1
        return True

    def acknowledged(self) -> None:
        """Note that the last beat was acknowledged."""
        self._awaited = 0


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
        marks = _read_marks(state)
        if marks is None:
            return made
        made._newest, made.baseline, made._is_settled = marks
        match _as_json(state, "session"):
            case {"id": str(name), "url": str(url), "seq": int(seq)}:
                made.session = GatewaySession(name, url, seq)
        made._seen.update(_read_seen(state))
        return made

    @classmethod
    def inherit(cls, states: Sequence[Mapping[str, str]]) -> "Checkpoint":
        """What a new shard knows from others: a channel may have been any other shard's."""
        made = cls()
        marks = [found for state in states if (found := _read_marks(state)) is not None]
        made._newest = min((newest for newest, _, _ in marks if newest), default=0)
        unsettled = [baseline for _, baseline, settled in marks if not settled]
        made.baseline, made._is_settled = min(unsettled, default=0), not unsettled
        for state in states:
            for channel, (last, guild) in _read_seen(state).items():
                made._seen[channel] = max(last, made._seen.get(channel, (0, ""))[0]), guild
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
        """Note that a message was handled, and those of its channel before it."""
        last = max(int(message_id), self._seen.get(channel_id, (0, ""))[0])
        self._seen[channel_id] = last, guild_id or ""
        self._seen.move_to_end(channel_id)
        while len(self._seen) > _MOST_CHANNELS:
            self._seen.popitem(last=False)

    def passed(self, message_id: int) -> None:
        """Note that a message and everything that came before it were handled."""
        self._newest = max(self._newest, message_id)

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


def _read_marks(state: Mapping[str, str]) -> tuple[int, int, bool] | None:
    match _as_json(state, "marks"):
        case {"newest": int(newest), "baseline": int(baseline), "settled": bool(settled)}:
            return newest, baseline, settled
        case _:
            return None


def _read_seen(state: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    seen = _as_json(state, "seen")
    for channel, entry in seen.items() if isinstance(seen, dict) else ():
        match entry:
            case [int(last), str(guild)] if is_snowflake(channel):
                found[channel] = last, guild
    return found


def _as_json(state: Mapping[str, str], name: str) -> Any:
    try:
        return orjson.loads(state.get(name) or "null")
    except orjson.JSONDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """A route of the API."""

    method: str
    template: str  # the path with open parameters
    path: str = field(repr=False)
    shown: str  # the path without a token, for logs
    major: str = field(default="", repr=False)  # the parameter that separates buckets

    @classmethod
    def of(cls, method: str, template: str, *parameters: str) -> "ApiRoute":
        """A route whose first parameter is the major one; of a webhook, with its token."""
        path = template.format(*parameters)
        if not template.startswith(("/webhooks/", "/interactions/")):
            return cls(method, template, path, path, "".join(parameters[:1]))
        shown = template.format(parameters[0], "token", *parameters[2:])
        return cls(method, template, path, shown, "/".join(parameters[:2]))


@dataclass(slots=True)
class _Bucket:
    limit: int
    remaining: int
    reset_at: float
    is_guessed: bool = False


class RateLimits:
    """The known buckets of one token."""

    def __init__(self) -> None:
        self._ids: LRUCache[tuple[str, str], str] = LRUCache(_MOST_BUCKETS)
        self._buckets: LRUCache[tuple[str, str], _Bucket] = LRUCache(_MOST_BUCKETS)
        self._all_from = -math.inf

    def wait(self, route: ApiRoute, now: float) -> float:
        """Take one request from its bucket: 0 if it may be sent now, else seconds to wait."""
        everyone = self._all_from - now
        if everyone > 0:
            return everyone
        bucket = self._buckets.get(self._key(route))
        if bucket is None:
            return 0.0
        if bucket.reset_at <= now:
            # It is full again; not all waiters may go at once.
            bucket.remaining, bucket.reset_at, bucket.is_guessed = bucket.limit, now + 1, True
        if bucket.remaining > 0:
            bucket.remaining -= 1
            return 0.0
        return bucket.reset_at - now

    def note_headers(self, route: ApiRoute, headers: Mapping[str, str], now: float) -> None:
        """Learn from the headers of a response."""
        name = headers.get("x-ratelimit-bucket", "")
        if 0 < len(name) <= 200:
            self._ids[route.method, route.template] = name
        remaining = _number(headers.get("x-ratelimit-remaining"))
        reset_after = _number(headers.get("x-ratelimit-reset-after"))
        limit = _number(headers.get("x-ratelimit-limit"))
        if remaining is None or reset_after is None:
            return
        key, reset_at = self._key(route), now + reset_after
        known = self._buckets.get(key)
        if known is not None and known.reset_at > now:
            # This answer does not count requests that are still in flight.
            remaining = min(remaining, known.remaining)
            reset_at = reset_at if known.is_guessed else max(reset_at, known.reset_at)
        self._buckets[key] = _Bucket(max(1, int(limit or 1)), int(remaining), reset_at)

    def pause_name(self, route: ApiRoute, *, everyone: bool) -> str | None:
        """What other connectors are told of a 429; None where the path has a token."""
        if everyone:
            return _EVERYONE
        if route.shown != route.path:
            return None
        return f"{route.method} {route.template} {route.major}"

    def note_pause(self, name: str, seconds: float, now: float) -> None:
        """Learn from a 429 that another connector got."""
        method, _, rest = name.partition(" ")
        template, _, major = rest.partition(" ")
        route = ApiRoute(method, template, template, template, major)
        known = self._buckets.get(self._key(route))
        if known is not None and not known.remaining and known.reset_at > now + seconds:
            return  # it is empty for longer
        self.note_refusal(route, seconds, now, everyone=name == _EVERYONE)

    def note_refusal(self, route: ApiRoute, seconds: float, now: float, *, everyone: bool) -> None:
        """Learn from a 429 how long nothing more may be sent."""
        if everyone:
            self._all_from = max(self._all_from, now + seconds)
        else:
            key = self._key(route)
            known = self._buckets.get(key)
            self._buckets[key] = _Bucket(known.limit if known else 1, 0, now + seconds)

    def _key(self, route: ApiRoute) -> tuple[str, str]:
        own = f"{route.method} {route.template}"
        return self._ids.get((route.method, route.template), own), route.major


def retry_after(value: object) -> float:
    """The seconds that a 429 names; 1 if it names none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return 1.0
    return min(float(value), _LONGEST_WAIT)


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return min(value, _LONGEST_WAIT) if value >= 0 else None


def read_commands(manifest: Any) -> list[CommandPayload]:
    """The valid commands of a manifest (name, description, options); the first of each name."""
    found: dict[str, CommandPayload] = {}
    for entry in manifest[:MOST_COMMANDS] if isinstance(manifest, list) else ():
        command = _named(entry)
        if command is None:
            continue
        options = _options(entry.get("options"), depth=0)
        if options:
            command["options"] = options
        found.setdefault(command["name"], {**command, "type": 1})
    return list(found.values())


def merge_commands(offers: Mapping[str, list[CommandPayload]]) -> list[CommandPayload]:
    """The commands of all instances; of equal names, that of the first instance by id."""
    found: dict[str, CommandPayload] = {}
    for instance in sorted(offers):
        for command in offers[instance]:
            found.setdefault(command["name"], command)
    return [found[name] for name in sorted(found)][:MOST_COMMANDS]


def _named(entry: Any) -> CommandPayload | None:
    match entry:
        case {"name": str(name)} if _COMMAND_NAME.fullmatch(name) and name == name.lower():
            said = entry.get("description")
            description = said.strip() if isinstance(said, str) else ""
            return {"name": name, "description": description[:_LONGEST_DESCRIPTION] or name}
        case _:
            return None


def _options(value: Any, depth: int) -> list[CommandPayload]:
    """Options, required ones first as Discord demands; or sub-commands, but not both."""
    found: dict[str, CommandPayload] = {}
    for entry in value[:_MOST_OPTIONS] if isinstance(value, list) else ():
        option = _option(entry, depth)
        if option is not None:
            found.setdefault(option["name"], option)
    nested = [each for each in found.values() if each["type"] in (_SUB_COMMAND, _GROUP)]
    return nested or sorted(found.values(), key=lambda each: not each.get("required", False))


def _option(entry: Any, depth: int) -> CommandPayload | None:
    option = _named(entry)
    if option is None:
        return None
    kind = entry.get("type", _TEXT)
    if type(kind) is not int:
        return None
    option["type"] = kind
    if (kind == _GROUP and depth == 0) or (kind == _SUB_COMMAND and depth <= 1):
        # Within a group there are sub-commands, and within these there are options.
        options = _options(entry.get("options"), 1 if kind == _GROUP else 2)
        if kind == _GROUP:
            options = [each for each in options if each["type"] == _SUB_COMMAND]
        if options:
            option["options"] = options
        return option if options or kind == _SUB_COMMAND else None
    if kind not in _OPTIONS:
        return None
    if entry.get("required") is True:
        option["required"] = True
    choices = _choices(entry.get("choices"), kind)
    if choices:
        option["choices"] = choices
    return option


def _choices(value: Any, kind: int) -> list[CommandPayload]:
    allowed = _CHOOSABLE.get(kind)
    if allowed is None or not isinstance(value, list):
        return []
    found: dict[str, CommandPayload] = {}
    for entry in value[:_MOST_CHOICES]:
        match entry:
            case {"name": str(name), "value": chosen} if 0 < len(name) <= _LONGEST_DESCRIPTION:
                is_short = not isinstance(chosen, str) or len(chosen) <= _LONGEST_DESCRIPTION
                if type(chosen) in allowed and is_short:
                    found.setdefault(name, {"name": name, "value": chosen})
            case _:
                continue
    return list(found.values())
