"""A job as its handler sees it."""

from typing import Any, Final

from accord.fabric.errors import FabricError
from accord.fabric.jobs.events import Happened, Job
from accord.fabric.jobs.queue import Queue
from accord.fabric.jobs.telling import Telling
from accord.kernel.clock import Clock, format_time

_LONGEST_LINE: Final = 10_000


class GiveUpError(FabricError):
    """A handler raises it where another try would be of no use."""

    type = "GiveUpError"


class JobContext:
    """A job that is being worked on.

    Attributes:
        id: The job's id.
        caller: Empty: it is the service's own work.
        tries: Which try this is, from 1.
        max_tries: How often it is tried at most.
        deadline: Until when it must have ended, in seconds since the epoch.
        context: What was found with the job.
    """

    caller: Final = ""

    def __init__(self, telling: Telling, queue: Queue, job: Job, tries: int, clock: Clock) -> None:
        self.id = job.id
        self.tries = tries
        self.max_tries = job.max_tries
        self.deadline = job.deadline
        self.context = job.context
        self._telling = telling
        self._queue = queue
        self._job = job
        self._clock = clock

    async def progress(self, payload: Any) -> None:
        """Tell how far it is, where the contract keeps progress."""
        if self._queue.progress:
            await self._telling.tell(
                self._job, Happened.PROGRESS, tries=self.tries, progress=payload
            )

    async def log(self, message: str, *, level: str = "info") -> None:
        """Leave a line with the job, where the contract keeps logs."""
        if self._queue.logs:
            line = {
                "timestamp": format_time(self._clock.now(), millis=True),
                "level": level,
                "message": message[:_LONGEST_LINE],
            }
            await self._telling.tell(self._job, Happened.LOGGED, tries=self.tries, logs=[line])
