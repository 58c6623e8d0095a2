"""The gateway: its sessions, its open sockets, and the trouble that a test can make for them.

Owns who is connected. What happened in the world comes in as news; which session is told of it is
decided in `intents`, and what is said on a socket in `conversation`.
"""

from collections.abc import Callable
from typing import Any

from accord.testing.discord.application import Application
from accord.testing.discord.conversation import Conversation
from accord.testing.discord.intents import Intent, as_told, is_on_shard
from accord.testing.discord.opcodes import Close, GatewayTerms, Op
from accord.testing.discord.sessions import Session
from accord.testing.discord.websocket import GatewaySocket
from accord.testing.discord.world import Json, News, World

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
