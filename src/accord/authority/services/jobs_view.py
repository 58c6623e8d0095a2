"""Where every job stands: the stream of job events, folded.

It holds a few facts of each job and no payloads; who wants those reads the job's own events. The
jobs longest untouched are forgotten first, so that it never holds more than it may. It reads no
stream itself: `jobs_following` does.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from accord.fabric.errors import UnavailableError

MOST_JOBS: Final = 100_000
_TOKENS: Final = 6  # trellis.jobs.<namespace>.<queue>.<job>.<event>
_PATIENCE: Final = 10.0


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Where one job stands.

    Attributes:
        prefix: What the subjects of its queue's events begin with.
    """

    id: str
    prefix: str
    service: str
    type: str
    state: str
    tries: int
    created_at: str
    updated_at: str
    max_tries: int | None = None
    deadline: str | None = None
    error: Any = None
    progress: Any = None

    @property
    def events(self) -> str:
        """The subjects of its events."""
        return f"{self.prefix}.{self.id}.>"

    @property
    def work(self) -> str:
        """The subject of its queue's work."""
        _, _, namespace, queue = self.prefix.split(".")
        return f"trellis.work.{namespace}.{queue}"


def fold(before: JobFacts | None, subject: str, body: Mapping[str, Any]) -> JobFacts | None:
    """Where a job stands after an event; nothing if what came is none."""
    tokens = subject.split(".")
    said = [body.get(name) for name in ("service", "jobType", "state", "timestamp")]
    if len(tokens) != _TOKENS or not all(isinstance(each, str) for each in said):
        return before
    service, kind, state, at = (str(each) for each in said)
    tries, most, deadline = body.get("tries"), body.get("maxTries"), body.get("deadline")
    facts = before or JobFacts(
        tokens[4], ".".join(tokens[:4]), service, kind, state, 0, created_at=at, updated_at=at
    )
    return replace(
        facts,
        state=state,
        tries=tries if isinstance(tries, int) else facts.tries,
        max_tries=most if isinstance(most, int) else facts.max_tries,
        deadline=deadline if isinstance(deadline, str) else facts.deadline,
        error=body.get("error"),
        progress=body.get("progress", facts.progress),
        updated_at=at,
    )


class JobsView:
    """The jobs that were touched last.

    Args:
        most: How many are held.

    Attributes:
        sequence: The last event of the stream that was taken in.
    """

    def __init__(self, most: int = MOST_JOBS) -> None:
        self._most = most
        self._jobs: OrderedDict[str, JobFacts] = OrderedDict()
        self.sequence = 0
        self._moved = asyncio.Event()

    def get(self, job: str) -> JobFacts | None:
        """A job, if it is known."""
        return self._jobs.get(job)

    def jobs(self) -> list[JobFacts]:
        """Every job that is held."""
        return list(self._jobs.values())

    def take(self, sequence: int, subject: str, data: bytes) -> None:
        """Take in an event of the stream."""
        try:
            body = orjson.loads(data)
        except orjson.JSONDecodeError:
            body = None
        if isinstance(body, dict) and subject.count(".") == _TOKENS - 1:
            job = subject.split(".")[4]
            facts = fold(self._jobs.get(job), subject, body)
            if facts is not None:
                self._jobs[job] = facts
                self._jobs.move_to_end(job)
                while len(self._jobs) > self._most:
                    self._jobs.popitem(last=False)
        self.sequence = sequence
        self._moved.set()
        self._moved = asyncio.Event()

    async def reached(self, sequence: int) -> None:
        """Wait until an event of the stream was taken in.

        Raises:
            UnavailableError: It takes too long.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                while self.sequence < sequence:
                    await self._moved.wait()
        except TimeoutError:
            raise UnavailableError(
                "the jobs are still being read", mend="ask again in a moment"
            ) from None
