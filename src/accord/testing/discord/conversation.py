"""The conversation on one socket, from HELLO to its end.

Owns what a bot may say when, and with which code it is shown the door. Sessions are kept by the
gateway.
"""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import orjson

from accord.testing.discord.chunks import member_chunks
from accord.testing.discord.intents import KNOWN, PRIVILEGED, Intent
from accord.testing.discord.opcodes import NOT_RESUMABLE, Close, Op, SocketClosed
from accord.testing.discord.sessions import Session
from accord.testing.discord.websocket import GatewaySocket
from accord.testing.discord.world import Json

if TYPE_CHECKING:
    from accord.testing.discord.gateway import Gateway

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
