"""What was refused goes into the history, so that whoever audits finds it where decisions are.

Owns how refusals are gathered: equal ones of a few seconds are one entry that says how many they
were, and of very many different ones only the count is kept, so that nobody fills the disk by
being refused. It refuses nothing itself.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from accord.authority.errors import Code
from accord.authority.history import Act
from accord.storage import StoreError

_log = structlog.stdlib.get_logger(__name__)

_GATHER_SECONDS: Final = 2.0
_MOST: Final = 100


@dataclass(frozen=True, slots=True)
class Refused:
    """Who was refused what.

    Attributes:
        code: Why.
        where: The door: a path, or `connect`.
        who: The session that was proved, else the address that it came from.
        digest: The contract that it came under, where it said so.
    """

    code: Code
    where: str
    who: str
    digest: str | None = None


class History(Protocol):
    """Where acts are kept."""

    async def note(self, acts: Sequence[Act]) -> None:
        """Keep acts that change nothing."""
        ...


class Auditing:
    """Gathers refusals and writes them down.

    Args:
        history: Where to.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._seen: Counter[Refused] = Counter()
        self._others = 0

    def note(self, refused: Refused) -> None:
        """Take note of a refusal."""
        if refused in self._seen or len(self._seen) < _MOST:
            self._seen[refused] += 1
        else:
            self._others += 1

    async def run(self) -> None:
        """Write down what was refused, until cancelled; then once more."""
        try:
            while True:
                await asyncio.sleep(_GATHER_SECONDS)
                await self.write()
        finally:
            await self.write()

    async def write(self) -> None:
        """Write down what was gathered; what the store does not take is kept for later."""
        if not self._seen:
            return
        seen, others = self._seen, self._others
        self._seen, self._others = Counter(), 0
        acts = [
            Act("refused", by=each.who, digest=each.digest, why=_sentence(each, count))
            for each, count in seen.items()
        ]
        if others:
            acts.append(Act("refused", by="others", why=f"{others} times more, from many"))
        try:
            await self._history.note(acts)
        except StoreError as error:
            _log.error("refusals could not be written down", count=len(acts), why=error.what)
            self._seen, self._others = seen, others


def _sentence(refused: Refused, count: int) -> str:
    times = "once" if count == 1 else f"{count} times"
    return f"{refused.code.value} at {refused.where}, {times}"
