"""Callers: sessions resolved by the authority, cached for a short time.

A service asks the authority who a session is (`Auth.Sessions.Resolve`) and drops a cached session
when it is revoked (`Auth.Sessions.Revoked`). A session that cannot be resolved has no rights.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
from cachetools import FIFOCache
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from accord.fabric.link import Link
from accord.fabric.nats_client import subscribe_published
from accord.fabric.rules.errors import (
    FabricError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
)
from accord.fabric.rules.terms import Terms, read_payload
from accord.kernel import canonical
from accord.kernel.clock import Clock
from accord.kernel.schema import compile_schema

_log = structlog.stdlib.get_logger(__name__)

AUTH: Final = "trellis.auth@v1"
RESOLVE: Final = "Auth.Sessions.Resolve"
RESOLVE_SUBJECT: Final = f"rpc.v1.{RESOLVE}"
REVOKED_SUBJECT: Final = "events.v1.Auth.Sessions.Revoked"

REMEMBER_SECONDS: Final = 30.0
"""How long a resolved session is cached; bounds the delay if a revocation message is lost."""

# A caller that is refused repeatedly must not cause as many questions.
_JUST_ASKED: Final = 1.0

# A caller that signs with ever new keys must not flood the authority.
_MOST_ASKING: Final = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """A session as the authority describes it."""

    session: str  # the session key
    holder: str  # `service`, `device` or `person`
    subject: str  # the deployment or the person
    contract_id: str | None = None
    digest: str | None = None
    capabilities: frozenset[str] = frozenset()  # global capability keys
    expires_at: float | None = None  # seconds since the epoch; None if it does not expire

    @property
    def identity(self) -> str:
        """Who holds the session, whichever session it is."""
        return f"{self.holder} {self.subject}"

    def require(self, gate: frozenset[str] | None, what: str) -> None:
        """Raise UnauthorizedError unless every capability of `gate` is held; None admits nobody."""
        if gate is None:
            raise UnauthorizedError(f"nobody may {what}")
        if not gate <= self.capabilities:
            missing = sorted(gate - self.capabilities)
            raise UnauthorizedError(
                f"to {what} needs {', '.join(missing)}", context={"missing": missing}
            )


def own_caller(link: Link, terms: Terms) -> Caller:
    """The session of a link itself, as a service of its contract."""
    service = link.bound.deployment or terms.id
    return Caller(link.session, "service", service, terms.id, terms.digest)


Resolve = Callable[[str], Awaitable[Caller]]
"""Resolves a session key; raises UnauthorizedError if there is no such session."""


def read_caller(session: str, answer: Mapping[str, Any]) -> Caller:
    """The caller in an answer of the authority that was already validated."""
    return Caller(
        session,
        answer["holder"],
        answer["subject"],
        answer.get("contractId"),
        answer.get("digest"),
        frozenset(answer["capabilities"]),
        answer.get("expiresAt"),
    )


class Callers:
    """A cache of resolved sessions: at most `most`, each for `seconds`."""

    def __init__(
        self,
        resolve: Resolve,
        clock: Clock,
        *,
        seconds: float = REMEMBER_SECONDS,
        most: int = 100_000,
    ) -> None:
        self._resolve = resolve
        self._clock = clock
        self._seconds = seconds
        self._known: FIFOCache[str, tuple[Caller, float]] = FIFOCache(most)
        self._asking: dict[str, asyncio.Task[Caller]] = {}

    def known(self, session: str) -> Caller | None:
        """The caller, if it is cached and its session has not expired."""
        entry = self._known.get(session)
        if entry is None:
            return None
        caller, until = entry
        if self._clock.monotonic() >= until or self._has_ended(caller):
            del self._known[session]
            return None
        return caller

    async def resolve(self, session: str) -> Caller:
        """The caller, from the cache or the authority; concurrent questions are joined.

        Raises UnauthorizedError if there is no such session, FabricError if the authority cannot be
        asked.
        """
        known = self.known(session)
        if known is not None:
            return known
        task = self._asking.get(session)
        if task is None:
            if len(self._asking) >= _MOST_ASKING:
                raise UnavailableError("too many unknown callers at once")
            task = asyncio.get_running_loop().create_task(self._ask(session))
            self._asking[session] = task
            task.add_done_callback(lambda done: self._asked(session, done))
        return await asyncio.shield(task)

    def forget(self, session: str) -> None:
        """Drop a session; an answer that is on its way is not cached."""
        self._known.pop(session, None)
        self._asking.pop(session, None)

    def recheck(self, session: str) -> None:
        """Drop a refused session unless it was resolved just now: it may hold more by now."""
        entry = self._known.get(session)
        if entry and entry[1] - self._clock.monotonic() < self._seconds - _JUST_ASKED:
            self.forget(session)

    def clear(self) -> None:
        """Drop everything, for example when revocations may have been missed."""
        self._known.clear()
        self._asking.clear()

    async def _ask(self, session: str) -> Caller:
        caller = await self._resolve(session)
        if self._has_ended(caller):
            raise UnauthorizedError("the session has ended")
        return caller

    def _asked(self, session: str, task: asyncio.Task[Caller]) -> None:
        failed = task.cancelled() or task.exception() is not None
        if self._asking.get(session) is not task:
            return  # dropped in the meantime
        del self._asking[session]
        if not failed:
            self._known[session] = (task.result(), self._clock.monotonic() + self._seconds)

    def _has_ended(self, caller: Caller) -> bool:
        return caller.expires_at is not None and self._clock.now() >= caller.expires_at


_RESOLVE_SECONDS: Final = 5.0
_TEXT: Final = {"type": "string"}
_MAYBE: Final = {"type": ["string", "null"]}
_FACTS: Final = compile_schema(
    {
        "type": "object",
        "properties": {
            "holder": _TEXT,
            "subject": _TEXT,
            "contractId": _MAYBE,
            "digest": _MAYBE,
            "capabilities": {"type": "array", "items": _TEXT},
            "expiresAt": {"type": ["number", "null"]},
        },
        "required": ["holder", "subject", "capabilities"],
    }
)
_REVOKED: Final = compile_schema(
    {"type": "object", "properties": {"sessionKey": _TEXT}, "required": ["sessionKey"]}
)


def caller_resolver(link: Link) -> Resolve:
    """A resolver that asks the authority over a link."""

    async def resolve(session: str) -> Caller:
        data = canonical.encode({"sessionKey": session})
        try:
            msg = await link.request(RESOLVE_SUBJECT, data, _RESOLVE_SECONDS)
            answer = read_payload(_FACTS, msg.data, "the authority's answer")
        except NotFoundError:
            raise UnauthorizedError("the session does not exist or was revoked") from None
        except FabricError as error:
            _log.error("a caller cannot be resolved", why=str(error))
            raise FabricError("the service cannot resolve the caller at the moment") from error
        return read_caller(session, answer)

    return resolve


@asynccontextmanager
async def watch_revocations(link: Link, callers: Callers) -> AsyncIterator[None]:
    """Drop revoked sessions from the cache until the block ends; all of them after a reconnect."""

    async def heard(msg: Msg) -> None:
        try:
            revoked = read_payload(_REVOKED, msg.data, "the revocation")
        except ValidationError:
            callers.clear()
        else:
            callers.forget(revoked["sessionKey"])

    def denied(_: FabricError) -> None:
        _log.warning("revocations cannot be received; sessions are resolved again every 30 seconds")

    with link.watching(REVOKED_SUBJECT, denied):
        subscription = await subscribe_published(link.nats, REVOKED_SUBJECT, heard)
        link.on_return.append(callers.clear)
        try:
            yield
        finally:
            link.on_return.remove(callers.clear)
            with suppress(NatsError):
                await subscription.unsubscribe()
