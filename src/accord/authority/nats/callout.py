"""The auth callout: servers ask who may come in, and the authority's grants are the answer.

Owns the subscription on which servers ask, the replay window of connect tokens, and the users that
it signs. It decides nothing about grants, and refuses whatever it cannot prove; every refusal is
told to `audit`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from accord.authority.errors import AuthorityError, Code
from accord.authority.nats import jwt
from accord.authority.nats.admission import (
    WINDOW_SECONDS,
    Admitted,
    Permissions,
    Question,
    Shown,
    read_question,
    read_token,
    refusal,
)
from accord.authority.nats.cluster import Cluster
from accord.authority.nats.connecting import connect
from accord.authority.nats.issued import Issued
from accord.authority.records import Session
from accord.contracts import Grants
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError

_log = structlog.stdlib.get_logger(__name__)

SUBJECT: Final = "$SYS.REQ.USER.AUTH"
_GROUP: Final = "accord-authority"
_SERVER_XKEY: Final = "Nats-Server-Xkey"
_MOST_QUESTION: Final = 64 * 1024
_AT_ONCE: Final = 64


class Granting(Protocol):
    """What the callout asks the authority."""

    async def grants(self, key: str, digest: str) -> Grants:
        """What a session may touch under a contract; raises `AuthorityError` to refuse it."""
        ...

    async def session(self, key: str) -> Session | None:
        """The session of a key, if there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Refusal:
    """Somebody was not let in.

    Attributes:
        key: The session that it says it is, as far as it said so and proved it.
        digest: The contract that it came under.
    """

    code: Code
    why: str
    host: str
    key: str | None
    digest: str | None
    at: float


Audit = Callable[[Refusal], Awaitable[None]]


async def log_refusal(refusal: Refusal) -> None:
    """The audit of an authority that has no other."""
    _log.warning(
        "connection refused",
        code=refusal.code.value,
        why=refusal.why,
        host=refusal.host,
        session=refusal.key,
        digest=refusal.digest,
    )


class Callout:
    """Answers the questions of servers.

    Args:
        authority: Whose grants count.
        cluster: The keys and credentials.
        clock: Where the time comes from.
        issued: Remembers what was given, for whoever watches connections.
        audit: Told every refusal.
        lifetime: After how many seconds the server ends a connection in any case; it matters where
            connections cannot be ended from here.
    """

    def __init__(
        self,
        authority: Granting,
        cluster: Cluster,
        clock: Clock,
        issued: Issued,
        *,
        audit: Audit = log_refusal,
        lifetime: float | None = None,
    ) -> None:
        self._authority = authority
        self._cluster = cluster
        self._clock = clock
        self._issued = issued
        self._audit = audit
        self._lifetime = lifetime
        self._spent: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_AT_ONCE)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Answer until the block ends.

        Raises:
            AuthorityError: The server does not let the authority in.
        """
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
        # Whoever waits here waits in the client's queue, and its question has an end.
        await self._room.acquire()
        task = asyncio.create_task(self._serve(message))
        self._tasks.add(task)
        task.add_done_callback(self._served)

    def _served(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled() and (error := task.exception()):
            _log.error("a question of a NATS server was not answered", exc_info=error)

    async def _serve(self, message: Msg) -> None:
        try:
            question, sealed_to = self._open(message)
        except AuthorityError as error:
            await self._refuse(error, "", None)
            return
        late = self._clock.now() - question.expires_at
        if late >= 0:
            # The server has given up; where its clock is slow, nobody at all could come in.
            _log.warning("a question of a NATS server came too late", host=question.host, by=late)
            return
        answer = await self.answer(question)
        body = answer.encode()
        if sealed_to is not None and self._cluster.xkey is not None:
            body = self._cluster.xkey.seal(body, sealed_to)
        with contextlib.suppress(NatsError):  # the server asks again when it is back
            await message.respond(body)

    def _open(self, message: Msg) -> tuple[Question, str | None]:
        """Read a question, which must be sealed where we have a key to open it with."""
        data, sender = message.data, (message.headers or {}).get(_SERVER_XKEY)
        if len(data) > _MOST_QUESTION:
            raise AuthorityError(Code.TOO_LARGE, "the server's question is too large")
        if self._cluster.xkey is not None:
            if sender is None:
                raise AuthorityError(Code.BAD_REQUEST, "the server's question is not sealed")
            data = self._cluster.xkey.open(data, sender)
        return read_question(data.decode(errors="replace")), sender

    async def answer(self, question: Question) -> str:
        """The signed answer to a question: a user, or the reason why there is none."""
        shown: Shown | None = None
        try:
            shown = self._claim(question)
            user = await self._admit(shown, question.user_key)
        except AccordError as error:
            if shown is not None:
                # It was not let in, so that the same token may try again.
                self._spent.pop(shown.proof, None)
            await self._refuse(error, question.host, shown)
            return self._answer(question, error=str(error))
        return self._answer(question, user=user)

    def _claim(self, question: Question) -> Shown:
        """Take note of a token; each one lets in once."""
        now = self._clock.now()
        shown = read_token(question.token, now)
        while self._spent and next(iter(self._spent.values())) < now:
            del self._spent[next(iter(self._spent))]
        if shown.proof in self._spent:
            raise AuthorityError(
                Code.INVALID_PROOF,
                "this connect token was shown before",
                mend="sign anew for every connection, with a later time",
            )
        # One signed half a minute ahead of our clock stays fresh for twice as long.
        self._spent[shown.proof] = now + 2 * WINDOW_SECONDS + 1
        return shown

    async def _admit(self, shown: Shown, user_key: str) -> str:
        grants = await self._authority.grants(shown.key, shown.digest)
        if not grants.ok:
            raise refusal(grants)
        now = self._clock.now()
        expires_at = _earlier(
            await self._session_end(shown.key),
            None if self._lifetime is None else now + self._lifetime,
        )
        if expires_at is not None and expires_at <= now:
            raise AuthorityError(Code.UNKNOWN_SESSION, "the session has ended")
        permissions = Permissions.of(grants)
        self._issued.remember(permissions)
        return jwt.user(
            Admitted(shown.key, shown.digest, permissions.fingerprint).name,
            user_key,
            self._cluster.account_key,
            now=now,
            account_id=self._cluster.account,
            publish=permissions.publish,
            subscribe=permissions.subscribe,
            expires_at=expires_at,
        )

    async def _session_end(self, key: str) -> float | None:
        session = await self._authority.session(key)
        return None if session is None else session.expires_at

    def _answer(
        self, question: Question, *, user: str | None = None, error: str | None = None
    ) -> str:
        return jwt.answer(
            self._cluster.callout_key,
            server=question.server,
            user_key=question.user_key,
            now=self._clock.now(),
            account_id=self._cluster.callout_account,
            jwt=user,
            error=error,
        )

    async def _refuse(self, error: AccordError, host: str, shown: Shown | None) -> None:
        code = error.code if isinstance(error, AuthorityError) else Code.UNAVAILABLE
        await self._audit(
            Refusal(
                code,
                str(error),
                host,
                None if shown is None else shown.key,
                None if shown is None else shown.digest,
                self._clock.now(),
            )
        )


def _earlier(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else min(one, other)
