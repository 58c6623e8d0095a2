"""One turn at a time in each session, many sessions at once.

Owns the order of turns and their interruption: an interrupt cancels the turn of exactly one
session, and nothing else. What a turn does, and what is done after it, it is given.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum

import structlog

_log = structlog.stdlib.get_logger(__name__)


class Ending(Enum):
    """How a turn ended."""

    DONE = "done"
    INTERRUPTED = "interrupted"
    BROKEN_OFF = "broken off"
    """The gateway ends; the turn is begun again by the next one."""


Work = Callable[[int, str], Awaitable[None]]
"""Runs the turn of an event, by its number and its session."""


class _Session:
    __slots__ = ("interrupted", "turn", "waiting", "worker")

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self.turn: asyncio.Task[None] | None = None
        self.interrupted = False
        self.worker: asyncio.Task[None] | None = None


class Sessions:
    """The sessions that have something to do.

    Args:
        work: Runs a turn.
        ended: Told how a turn ended, before the next one of its session begins.
        turns: How many turns run at once.
    """

    def __init__(
        self, work: Work, ended: Callable[[int, Ending], Awaitable[None]], turns: int
    ) -> None:
        self._work = work
        self._ended = ended
        self._slots = asyncio.Semaphore(turns)
        self._sessions: dict[str, _Session] = {}
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._closing = False

    @property
    def is_quiet(self) -> bool:
        """Whether no turn is running or waiting."""
        return not self._sessions

    def is_busy(self, session_key: str) -> bool:
        """Whether a turn of this session is running."""
        session = self._sessions.get(session_key)
        return session is not None and session.turn is not None

    def offer(self, number: int, session_key: str) -> None:
        """Let an event have its turn after those of its session that came before."""
        if self._closing:
            return  # it is in the inbox
        session = self._sessions.get(session_key)
        if session is None:
            session = self._sessions[session_key] = _Session()
            self._quiet.clear()
            session.worker = asyncio.create_task(self._serve(session_key, session))
        session.waiting.append(number)

    def interrupt(self, session_key: str) -> bool:
        """Cancel the running turn of one session; False when there is none."""
        session = self._sessions.get(session_key)
        if session is None or session.turn is None or session.interrupted:
            return False
        session.interrupted = True
        session.turn.cancel()
        return True

    async def quiet(self) -> None:
        """Wait until no turn is running or waiting."""
        await self._quiet.wait()

    async def close(self) -> None:
        """Break off every turn and begin no more."""
        self._closing = True
        workers = [each.worker for each in self._sessions.values() if each.worker is not None]
        for session in list(self._sessions.values()):
            session.waiting.clear()
            if session.turn is not None:
                session.turn.cancel()
        # A worker that waits for its slot has no turn to cancel, and now nothing to do either.
        await asyncio.gather(*workers)

    async def _serve(self, key: str, session: _Session) -> None:
        try:
            while session.waiting:
                async with self._slots:
                    if session.waiting:
                        await self._take_turn(session.waiting.popleft(), key, session)
        finally:
            del self._sessions[key]
            if not self._sessions:
                self._quiet.set()

    async def _take_turn(self, number: int, key: str, session: _Session) -> None:
        session.interrupted = False
        session.turn = asyncio.create_task(_run(self._work, number, key))
        await asyncio.wait({session.turn})
        turn, session.turn = session.turn, None
        ending = Ending.DONE
        if turn.cancelled():
            ending = Ending.INTERRUPTED if session.interrupted else Ending.BROKEN_OFF
        elif (error := turn.exception()) is not None:
            _log.error("a turn failed", session=key, exc_info=error)
        await self._ended(number, ending)


async def _run(work: Work, number: int, key: str) -> None:
    await work(number, key)
