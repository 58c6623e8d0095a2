"""The gateway: its sessions, what is said on each socket, and the trouble that a test can make.

A session outlives its sockets and holds the log from which a RESUME is answered.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import orjson
from tests.fakes.discord.application import Application
from tests.fakes.discord.intents import KNOWN, PRIVILEGED, Intent, as_told, is_on_shard
from tests.fakes.discord.opcodes import NOT_RESUMABLE, Close, GatewayTerms, Op, SocketClosed
from tests.fakes.discord.websocket import GatewaySocket
from tests.fakes.discord.world import Json, News, World

_CHUNK = 1000
_MOST_IDS = 100


def member_chunks(world: World, body: Any, intents: Intent) -> list[Json]:
    """What GUILD_MEMBERS_CHUNK says, one for each thousand; nothing of a foreign guild.

    Raises:
        SocketClosed: The request has not the documented form.
    """
    form = body if isinstance(body, dict) else {}
    query, limit, asked = form.get("query"), form.get("limit", 0), form.get("user_ids")
    ids = None if asked is None else _ids(asked if isinstance(asked, list) else [asked])
    if type(limit) is not int or limit < 0 or (ids is None and not isinstance(query, str)):
        raise _malformed()
    (guild_id,) = _ids([form.get("guild_id")])
    guild = world.guilds.get(guild_id)
    if guild is None or world.bot_id not in guild.members:
        return []
    if ids is not None:
        found = [guild.members[each] for each in ids if each in guild.members]
    elif query or limit:
        begins = [m for m in guild.members.values() if m.user.name.startswith(query or "")]
        found = begins[: limit or _CHUNK]
    elif Intent.GUILD_MEMBERS in intents:
        found = list(guild.members.values())
    else:
        raise SocketClosed(Close.DISALLOWED_INTENTS, "Disallowed intent(s).")
    pages = [found[at : at + _CHUNK] for at in range(0, len(found), _CHUNK)] or [[]]
    told: Json = {"guild_id": guild.id, "chunk_count": len(pages)}
    if ids is not None:
        told["not_found"] = [each for each in ids if each not in guild.members]
    if isinstance(form.get("nonce"), str):
        told["nonce"] = form["nonce"]
    return [
        {**told, "chunk_index": at, "members": [each.json() for each in page]}
        for at, page in enumerate(pages)
    ]


def _ids(found: list[Any]) -> list[str]:
    # A snowflake may also come as a number.
    if len(found) > _MOST_IDS or not all(type(each) in (str, int) for each in found):
        raise _malformed()
    return [str(each) for each in found]


def _malformed() -> SocketClosed:
    return SocketClosed(Close.UNKNOWN_OPCODE, "A request for members of the wrong form.")


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


_STARTS_A_DAY = 1000
_DAY_MILLIS = 86_400_000


class Gateway:
    """Every session and every open socket of the bot.

    Attributes:
        sessions: What was begun by IDENTIFY and is not forgotten, by its id.
        received: The payloads that the bot sent, in order, as (opcode, data); tokens are left out.
        closed: The codes with which the gateway ended sockets, in order.
        paths: What each socket asked for, in order, with its query.
        acks: Whether heartbeats are acknowledged.
        greets: Whether a new socket hears HELLO, or nothing at all.
    """

    def __init__(
        self,
        world: World,
        application: Application,
        terms: GatewayTerms,
        changed: Callable[[], None],
    ) -> None:
        self.world = world
        self.application = application
        self.terms = terms
        self.changed = changed
        self.sessions: dict[str, Session] = {}
        self.received: list[tuple[int, Any]] = []
        self.closed: list[int] = []
        self.paths: list[str] = []
        self.acks = True
        self.greets = True
        self.url = ""
        self._open: dict[Conversation, None] = {}
        self._starts_left = _STARTS_A_DAY
        self._identified_at: dict[int, float] = {}
        world.listeners.append(self.hear)

    @property
    def sockets(self) -> int:
        """How many sockets are open."""
        return len(self._open)

    def hear(self, news: News) -> None:
        """Tell of some news whomever they concern."""
        for session in self.sessions.values():
            if is_on_shard(news, session.shard):
                data = as_told(news, session.intents, self.world.bot_id)
                if data is not None:
                    session.dispatch(news.name, data)
        self.changed()

    async def converse(self, socket: GatewaySocket) -> None:
        """Serve an accepted socket to its end."""
        talk = Conversation(socket, self)
        self._open[talk] = None
        self.paths.append(socket.path)
        self.changed()
        try:
            await talk.serve()
        finally:
            del self._open[talk]
            talk.leave()
            self.changed()

    def start(self, intents: Intent, shard: tuple[int, int]) -> Session | None:
        """Begin a session; None where too many begin at once, or none is left for today."""
        now, bucket = self.world.clock.monotonic(), shard[0] % self.max_concurrency
        last = self._identified_at.get(bucket)
        if self._starts_left == 0 or (
            last is not None and now - last < self.terms.identify_seconds
        ):
            return None
        for known in list(self.sessions):
            self.resumable(known)  # forgets those that nobody came back to
        self._identified_at[bucket] = now
        self._starts_left -= 1
        session = Session(self.world.secret(), intents, shard)
        self.sessions[session.id] = session
        return session

    def introduce(self, session: Session, *, sharded: bool) -> None:
        """Send READY, and then each guild as it becomes available."""
        guilds = [
            News("GUILD_CREATE", each.event_json(), each)
            for each in self.world.guilds.values()
            if self.world.bot_id in each.members
        ]
        own = [each for each in guilds if is_on_shard(each, session.shard)]
        ready: Json = {
            "v": 10,
            "user": {**self.world.bot.json(), "mfa_enabled": True, "verified": True, "flags": 0},
            "guilds": [{"id": each.data["id"], "unavailable": True} for each in own],
            "session_id": session.id,
            "resume_gateway_url": f"{self.url}/resume",
            "application": {"id": self.application.id, "flags": 0},
        }
        session.dispatch("READY", {**ready, "shard": list(session.shard)} if sharded else ready)
        for each in own:
            data = as_told(each, session.intents, self.world.bot_id)
            if data is not None:
                session.dispatch(each.name, data)

    def resumable(self, name: str) -> Session | None:
        """A session that can still be resumed."""
        session = self.sessions.get(name)
        if session is None or session.is_expired:
            return None
        waited = 0.0 if session.left_at is None else self.world.clock.now() - session.left_at
        if waited > self.terms.session_seconds:
            del self.sessions[name]
            return None
        return session

    def take_over(self, session: Session) -> None:
        """End the socket on which a session is heard, as it is resumed on another."""
        for each in list(self._open):
            if each.session is session:
                each.session = None
                each.close(Close.UNKNOWN_ERROR, "The session was resumed elsewhere.")

    def bot_json(self) -> Json:
        """What Get Gateway Bot answers."""
        return {
            "url": self.url,
            "shards": self.terms.shards,
            "session_start_limit": {
                "total": _STARTS_A_DAY,
                "remaining": self._starts_left,
                "reset_after": _DAY_MILLIS,
                "max_concurrency": self.max_concurrency,
            },
        }

    @property
    def max_concurrency(self) -> int:
        """How many sessions may begin at once."""
        return 1

    def drop_sockets(self) -> None:
        """Cut every socket, without a word."""
        for each in list(self._open):
            each.socket.abort()

    def close_sockets(self, code: int, reason: str = "") -> None:
        """End every socket with a close code."""
        for each in list(self._open):
            each.close(code, reason)

    def ask_to_reconnect(self) -> None:
        """Send RECONNECT to everybody."""
        for each in self._open:
            each.say(Op.RECONNECT)

    def ask_for_heartbeats(self) -> None:
        """Ask everybody for a heartbeat now."""
        for each in self._open:
            each.say(Op.HEARTBEAT)

    def dispatch(self, name: str, data: Any) -> None:
        """Send every session an event that need not make sense."""
        for each in self.sessions.values():
            each.dispatch(name, data)

    def babble(self, data: bytes) -> None:
        """Send every socket a message that need not be a payload."""
        for each in self._open:
            each.socket.send(data)

    def invalidate(self, *, resumable: bool = False) -> None:
        """Send INVALID_SESSION to everybody; what cannot be resumed is forgotten."""
        for each in self._open:
            session = each.session
            if session is not None:
                session.is_expired = not resumable
                each.leave()
            each.say(Op.INVALID_SESSION, resumable)

    def expire_sessions(self) -> None:
        """Let no session be resumed; one that is heard goes on until its socket ends."""
        for each in list(self.sessions.values()):
            each.is_expired = True
            if each.socket is None:
                del self.sessions[each.id]


_MAX_PAYLOAD = 4096
_SENDS, _SENDS_SECONDS = 120, 60.0
_PATIENCE = 1.5
_FORGETTING = (1000, 1001)
"""Who leaves with these codes does not want to resume."""


class Conversation:
    """One socket and, once it was said who talks, its session."""

    def __init__(self, socket: GatewaySocket, gateway: "Gateway") -> None:
        self.socket = socket
        self.session: Session | None = None
        self._gateway = gateway
        self._sent_at: deque[float] = deque()
        self._heard_at = asyncio.get_running_loop().time()

    async def serve(self) -> None:
        """Talk until the socket ends."""
        try:
            self._greet()
            while (data := await self._next()) is not None:
                self._take(data)
        except SocketClosed as why:
            self.close(why.code, why.reason)
        if self.socket.closed_with is not None:
            await self.socket.linger()

    def say(self, op: Op, data: Any = None) -> None:
        """Send a payload that is no dispatch."""
        self.socket.send(orjson.dumps({"op": int(op), "d": data, "s": None, "t": None}))

    def close(self, code: int, reason: str = "") -> None:
        """End the socket with a code; what the code forbids to resume is forgotten."""
        if self.socket.is_open:
            if self.session is not None and code in NOT_RESUMABLE:
                self.session.is_expired = True
            self._gateway.closed.append(code)
            self.socket.close(code, reason)

    def leave(self) -> None:
        """Let go of the session: it waits to be resumed, unless the bot said that it will not."""
        session, self.session = self.session, None
        if session is not None and session.socket is self.socket:
            session.socket = None
            session.left_at = self._gateway.world.clock.now()
            if session.is_expired or self.socket.left_with in _FORGETTING:
                self._gateway.sessions.pop(session.id, None)

    def _greet(self) -> None:
        query = parse_qs(self.socket.path.partition("?")[2])
        if query.get("v", ["10"]) != ["10"]:
            raise SocketClosed(Close.INVALID_API_VERSION, "Invalid API version.")
        if query.get("encoding", ["json"]) != ["json"]:
            raise SocketClosed(Close.DECODE_ERROR, "JSON is all that is spoken here.")
        if query.get("compress", ["zlib-stream"]) != ["zlib-stream"]:
            raise SocketClosed(Close.DECODE_ERROR, "zlib-stream is all that is known here.")
        if "compress" in query:
            self.socket.compress()
        if self._gateway.greets:
            self.say(Op.HELLO, {"heartbeat_interval": self._gateway.terms.heartbeat_interval})

    async def _next(self) -> bytes | None:
        patience = _PATIENCE * self._gateway.terms.heartbeat_interval / 1000
        try:
            async with asyncio.timeout_at(self._heard_at + patience):
                return await self.socket.receive()
        except TimeoutError:
            # "Your connection will be closed and you will be forced to resume."
            raise SocketClosed(Close.UNKNOWN_ERROR, "No heartbeat came.") from None

    def _take(self, data: bytes) -> None:
        now = self._gateway.world.clock.monotonic()
        self._sent_at.append(now)
        while now - self._sent_at[0] >= _SENDS_SECONDS:
            self._sent_at.popleft()
        if len(self._sent_at) > _SENDS:
            raise SocketClosed(Close.RATE_LIMITED, "You are being rate limited.")
        op, body = _payload(data)
        shown = body
        if isinstance(body, dict):
            shown = {name: value for name, value in body.items() if name != "token"}
        self._gateway.received.append((op, shown))
        if op == Op.HEARTBEAT:
            self._heard_at = asyncio.get_running_loop().time()
            if self._gateway.acks:
                self.say(Op.HEARTBEAT_ACK)
        elif op in (Op.IDENTIFY, Op.RESUME):
            self._begin(Op(op), body)
        elif op not in (Op.PRESENCE_UPDATE, Op.VOICE_STATE_UPDATE, Op.REQUEST_GUILD_MEMBERS):
            raise SocketClosed(Close.UNKNOWN_OPCODE, "Unknown opcode.")
        elif self.session is None:
            raise SocketClosed(Close.NOT_AUTHENTICATED, "Not authenticated.")
        elif op == Op.REQUEST_GUILD_MEMBERS:
            for each in member_chunks(self._gateway.world, body, self.session.intents):
                self.session.dispatch("GUILD_MEMBERS_CHUNK", each)
        self._gateway.changed()

    def _begin(self, op: Op, body: Any) -> None:
        if self.session is not None:
            raise SocketClosed(Close.ALREADY_AUTHENTICATED, "Already authenticated.")
        token = body.get("token") if isinstance(body, dict) else None
        if not isinstance(token, str):
            raise SocketClosed(Close.UNKNOWN_OPCODE, "A payload without a token.")
        if not self._gateway.application.knows(token):
            raise SocketClosed(Close.AUTHENTICATION_FAILED, "Authentication failed.")
        if op is Op.IDENTIFY:
            self._identify(body)
        else:
            self._resume(body)

    def _identify(self, body: Json) -> None:
        if not isinstance(body.get("properties"), dict):
            raise SocketClosed(Close.UNKNOWN_OPCODE, "An identify without properties.")
        intents = self._intents(body.get("intents"))
        shard = _shard(body.get("shard", [0, 1]))
        session = self._gateway.start(intents, shard)
        if session is None:
            self.say(Op.INVALID_SESSION, False)
            return
        self.session, session.socket = session, self.socket
        self._gateway.introduce(session, sharded="shard" in body)

    def _intents(self, asked: object) -> Intent:
        if not isinstance(asked, int) or isinstance(asked, bool):
            raise SocketClosed(Close.UNKNOWN_OPCODE, "An identify without intents.")
        if asked < 0 or asked & ~int(KNOWN):
            raise SocketClosed(Close.INVALID_INTENTS, "Invalid intent(s).")
        if asked & int(PRIVILEGED) & ~int(self._gateway.application.enabled):
            raise SocketClosed(Close.DISALLOWED_INTENTS, "Disallowed intent(s).")
        return Intent(asked)

    def _resume(self, body: Json) -> None:
        name, sequence = body.get("session_id"), body.get("seq")
        if not isinstance(name, str) or not isinstance(sequence, int) or sequence < 0:
            raise SocketClosed(Close.UNKNOWN_OPCODE, "A resume without session_id or seq.")
        session = self._gateway.resumable(name)
        if session is None or not session.can_replay(sequence):
            self.say(Op.INVALID_SESSION, False)
            return
        if sequence > session.sequence:
            self._gateway.sessions.pop(session.id, None)
            raise SocketClosed(Close.INVALID_SEQ, "Invalid seq.")
        self._gateway.take_over(session)
        self.session, session.socket, session.left_at = session, self.socket, None
        session.replay(sequence)


def _payload(data: bytes) -> tuple[int, Any]:
    if len(data) > _MAX_PAYLOAD:
        raise SocketClosed(Close.DECODE_ERROR, "Payload too large.")
    try:
        payload = orjson.loads(data)
    except orjson.JSONDecodeError:
        payload = None
    if not isinstance(payload, dict) or type(payload.get("op")) is not int:
        raise SocketClosed(Close.DECODE_ERROR, "Error while decoding payload.")
    return payload["op"], payload.get("d")


def _shard(asked: object) -> tuple[int, int]:
    match asked:
        case [int(number), int(of)] if 0 <= number < of:
            return number, of
    raise SocketClosed(Close.INVALID_SHARD, "Invalid shard.")
