"""How jobs get onto their streams: events to JOBS, work to JOBS_WORK.

Whatever is told twice under one name is stored once, so that asking again after a lost answer is
safe.
"""

from typing import Any, Final

from accord.fabric import streams
from accord.fabric.jobs.events import Happened, Job, write_event
from accord.fabric.jobs.queue import Queue
from accord.fabric.link import Link

_EVENTS: Final = "JOBS"


class Telling:
    """Tells of the jobs of one queue.

    Args:
        link: The instance's link.
        queue: The queue.
    """

    def __init__(self, link: Link, queue: Queue) -> None:
        self._link = link
        self._queue = queue

    async def tell(
        self,
        job: Job,
        happened: Happened,
        *,
        tries: int = 0,
        previous: str | None = None,
        once: str | None = None,
        **more: Any,
    ) -> None:
        """Tell what happened, durably.

        Args:
            job: To which job.
            happened: What.
            tries: How often it was begun.
            previous: Where it stood before.
            once: A name for this happening to the job, where it may be told twice.
            more: `payload`, `result`, `error`, `progress` or `logs`.

        Raises:
            FabricError: It is not known to be stored.
        """
        now = self._link.clock.now()
        data = write_event(job, happened, now, tries=tries, previous=previous, **more)
        await streams.append(
            self._link.inbox,
            f"{self._queue.prefix}.{job.id}.{happened}",
            data,
            message_id=None if once is None else f"{job.id}.{happened}.{once}",
        )

    async def is_cancelled(self, job: Job) -> bool:
        """Whether an administrator has cancelled a job before it was begun."""
        subject = f"{self._queue.prefix}.{job.id}.{Happened.CANCELLED}"
        return await streams.has_any(self._link.inbox, _EVENTS, subject)

    async def give(self, identity: str, work: bytes, *, again: bool = False) -> None:
        """Give a job to the workers; `again` where they may have had it before.

        Raises:
            FabricError: It is not known to be stored.
        """
        once = None if again else f"{identity}.work"
        await streams.append(self._link.inbox, self._queue.work, work, message_id=once)
