"""Who calls, and what they may: sessions resolved once and remembered for a short while.

The authority knows; a service asks it (`Auth.Sessions.Resolve`) and forgets a session the moment
it is revoked (`Auth.Sessions.Revoked`). What is not resolved may nothing.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.fabric.errors import UnauthorizedError, UnavailableError
from accord.kernel.clock import Clock

AUTH: Final = "trellis.auth@v1"
RESOLVE: Final = "Auth.Sessions.Resolve"
RESOLVE_SUBJECT: Final = f"rpc.v1.{RESOLVE}"
REVOKED_SUBJECT: Final = "events.v1.Auth.Sessions.Revoked"

REMEMBER_SECONDS: Final = 30.0
"""For how long an answer of the authority counts, should the word of a revocation get lost."""

# Whoever is refused again and again shall not make the service ask as often.
_JUST_ASKED: Final = 1.0

# Whoever signs with ever new keys shall not make the service flood the authority.
_MOST_ASKING: Final = 200


@dataclass(frozen=True, slots=True)
class Caller:
    """A session as the authority knows it.

    Attributes:
        session: Its key.
        holder: `service`, `device` or `person`.
        subject: The deployment, or the person.
        contract_id: The contract that it presented.
        digest: That contract's digest.
        capabilities: The keys that it holds.
        expires_at: When it ends, if it does.
    """

    session: str
    holder: str
    subject: str
    contract_id: str | None = None
    digest: str | None = None
    capabilities: frozenset[str] = frozenset()
    expires_at: float | None = None

    def require(self, gate: frozenset[str] | None, what: str) -> None:
        """Refuse what a gate does not let through; None lets nobody through.

        Raises:
            UnauthorizedError: It names the capabilities that are missing.
        """
        if gate is None:
            raise UnauthorizedError(f"nobody may {what}")
        if not gate <= self.capabilities:
            missing = sorted(gate - self.capabilities)
            raise UnauthorizedError(
                f"to {what} needs {', '.join(missing)}", context={"missing": missing}
            )


Resolve = Callable[[str], Awaitable[Caller]]
"""Asks who a session is; raises UnauthorizedError where it is nobody's."""


def read_caller(session: str, answer: Mapping[str, Any]) -> Caller:
    """The caller that the authority's answer describes, once its schema has accepted it."""
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
    """The sessions that were resolved lately.

    Args:
        resolve: Asks the authority.
        clock: For how long answers count.
        most: How many sessions are remembered.
    """

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
        self._most = most
        self._known: OrderedDict[str, tuple[Caller, float]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[Caller]] = {}

    def known(self, session: str) -> Caller | None:
        """The caller, where it was resolved lately and its session has not ended."""
        entry = self._known.get(session)
        if entry is None:
            return None
        caller, until = entry
        if self._clock.monotonic() >= until or self._has_ended(caller):
            del self._known[session]
            return None
        return caller

    async def resolve(self, session: str) -> Caller:
        """The caller; many who ask for one session at once ask the authority once.

        Raises:
            UnauthorizedError: The session is nobody's, or has ended.
            FabricError: The authority could not be asked, or is asked too much.
        """
        known = self.known(session)
        if known is not None:
            return known
        task = self._asking.get(session)
        if task is None:
            if len(self._asking) >= _MOST_ASKING:
                raise UnavailableError("more callers are new than can be asked about at once")
            task = asyncio.get_running_loop().create_task(self._ask(session))
            self._asking[session] = task
            task.add_done_callback(lambda done: self._asked(session, done))
        return await asyncio.shield(task)

    def forget(self, session: str) -> None:
        """Ask again at the next call; an answer that is under way counts for nobody new."""
        self._known.pop(session, None)
        self._asking.pop(session, None)

    def doubt(self, session: str) -> None:
        """Ask again at the next call, unless that was just done: it may hold more by now."""
        entry = self._known.get(session)
        if entry and entry[1] - self._clock.monotonic() < self._seconds - _JUST_ASKED:
            self.forget(session)

    def clear(self) -> None:
        """Forget everybody: word of a revocation may have been missed."""
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
            return  # forgotten meanwhile
        del self._asking[session]
        if not failed:
            self._known[session] = (task.result(), self._clock.monotonic() + self._seconds)
            while len(self._known) > self._most:
                self._known.popitem(last=False)

    def _has_ended(self, caller: Caller) -> bool:
        return caller.expires_at is not None and self._clock.now() >= caller.expires_at
