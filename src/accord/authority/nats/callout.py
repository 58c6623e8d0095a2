"""The auth callout: servers ask whether a client may connect, and the authority's grants answer.

Every token is accepted once. Whatever cannot be verified is refused, and `audit` is called with
every refusal.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from accord.authority.nats.accounts import Cluster, connect
from accord.authority.rules import jwt
from accord.authority.rules.connections import (
    WINDOW_SECONDS,
    AdmittedUser,
    ConnectRequest,
    ConnectToken,
    IssuedPermissions,
    NatsPermissions,
    connect_refusal,
    read_connect_request,
    read_connect_token,
)
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.service import Authority
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError

_log = structlog.stdlib.get_logger(__name__)

SUBJECT: Final = "$SYS.REQ.USER.AUTH"
_GROUP: Final = "accord-authority"
_SERVER_XKEY: Final = "Nats-Server-Xkey"
_MAX_REQUEST_BYTES: Final = 64 * 1024
_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class ConnectRefusal:
    """A client was not admitted; `key` is its session key, if it was proved."""

    code: Code
    why: str
    host: str
    key: str | None
    digest: str | None
    at: float


RefusalSink = Callable[[ConnectRefusal], Awaitable[None]]


async def log_refusal(refusal: ConnectRefusal) -> None:
    """Log a refusal."""
    _log.warning(
        "connection refused",
        code=refusal.code.value,
        why=refusal.why,
        host=refusal.host,
        session=refusal.key,
        digest=refusal.digest,
    )


class Callout:
    """Answers the requests of servers; `audit` is called with every refusal.

    After `lifetime` seconds the server ends a connection in any case, for systems whose connections
    cannot be ended from here.
    """

    def __init__(
        self,
        authority: Authority,
        cluster: Cluster,
        clock: Clock,
        issued: IssuedPermissions,
        *,
        audit: RefusalSink = log_refusal,
        lifetime: float | None = None,
    ) -> None:
        self._authority = authority
        self._cluster = cluster
        self._clock = clock
        self._issued = issued
        self._audit = audit
        self._lifetime = lifetime
        self._used: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Answer until the block ends."""
        connection = await connect("admit sessions", self._cluster, self._cluster.callout)
        try:
            await connection.subscribe(SUBJECT, _GROUP, cb=self._take)
            await connection.flush()
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await connection.close()

    async def _take(self, message: Msg) -> None:
        # Requests that wait here stay in the client's queue, and have a deadline.
        await self._room.acquire()
        task = asyncio.create_task(self._serve(message))
        self._tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled() and (error := task.exception()):
            _log.error("an auth callout request was not answered", exc_info=error)

    async def _serve(self, message: Msg) -> None:
        try:
            request, sealed_to = self._open(message)
        except AuthorityError as error:
            await self._refuse(error, "", None)
            return
        late = self._clock.now() - request.expires_at
        if late >= 0:
            # The server no longer waits; if its clock is slow, this happens to every request.
            _log.warning("an auth callout request came too late", host=request.host, by=late)
            return
        answer = await self.answer(request)
        body = answer.encode()
        if sealed_to is not None and self._cluster.xkey is not None:
            body = self._cluster.xkey.seal(body, sealed_to)
        with contextlib.suppress(NatsError):  # the server asks again when it is back
            await message.respond(body)

    def _open(self, message: Msg) -> tuple[ConnectRequest, str | None]:
        """Read a request, which must be encrypted if there is a key to decrypt it with."""
        data, sender = message.data, (message.headers or {}).get(_SERVER_XKEY)
        if len(data) > _MAX_REQUEST_BYTES:
            raise AuthorityError(Code.TOO_LARGE, "the auth callout request is too large")
        if self._cluster.xkey is not None:
            if sender is None:
                raise AuthorityError(Code.BAD_REQUEST, "the auth callout request is not encrypted")
            data = self._cluster.xkey.open(data, sender)
        return read_connect_request(data.decode(errors="replace")), sender

    async def answer(self, request: ConnectRequest) -> str:
        """The signed response to a request: a user, or the reason why there is none."""
        token: ConnectToken | None = None
        try:
            token = self._claim(request)
            user = await self._admit(token, request.user_key)
        except AccordError as error:
            if token is not None:
                # The token was not used, so it may be tried again.
                self._used.pop(token.proof, None)
            await self._refuse(error, request.host, token)
            return self._answer(request, error=str(error))
        return self._answer(request, user=user)

    def _claim(self, request: ConnectRequest) -> ConnectToken:
        """Verify a token and mark it as used."""
        now = self._clock.now()
        token = read_connect_token(request.token, now)
        while self._used and next(iter(self._used.values())) < now:
            del self._used[next(iter(self._used))]
        if token.proof in self._used:
            raise AuthorityError(
                Code.INVALID_PROOF,
                "this connect token was used before",
                mend="sign anew for every connection, with a later time",
            )
        # A token signed ahead of our clock stays valid for twice the window.
        self._used[token.proof] = now + 2 * WINDOW_SECONDS + 1
        return token

    async def _admit(self, token: ConnectToken, user_key: str) -> str:
        grants = await self._authority.sessions.grants(token.key, token.digest)
        if not grants.ok:
            raise connect_refusal(grants)
        now = self._clock.now()
        expires_at = _earlier(
            await self._session_end(token.key),
            None if self._lifetime is None else now + self._lifetime,
        )
        if expires_at is not None and expires_at <= now:
            raise AuthorityError(Code.UNKNOWN_SESSION, "the session has ended")
        permissions = NatsPermissions.of(grants)
        self._issued.remember(permissions)
        return jwt.user(
            AdmittedUser(token.key, token.digest, permissions.fingerprint).name,
            user_key,
            self._cluster.account_key,
            now=now,
            account_id=self._cluster.account,
            publish=permissions.publish,
            subscribe=permissions.subscribe,
            expires_at=expires_at,
        )

    async def _session_end(self, key: str) -> float | None:
        session = await self._authority.sessions.get(key)
        return None if session is None else session.expires_at

    def _answer(
        self, request: ConnectRequest, *, user: str | None = None, error: str | None = None
    ) -> str:
        return jwt.callout_response(
            self._cluster.callout_key,
            server=request.server,
            user_key=request.user_key,
            now=self._clock.now(),
            account_id=self._cluster.callout_account,
            jwt=user,
            error=error,
        )

    async def _refuse(self, error: AccordError, host: str, token: ConnectToken | None) -> None:
        code = error.code if isinstance(error, AuthorityError) else Code.UNAVAILABLE
        await self._audit(
            ConnectRefusal(
                code,
                str(error),
                host,
                None if token is None else token.key,
                None if token is None else token.digest,
                self._clock.now(),
            )
        )


def _earlier(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else min(one, other)
