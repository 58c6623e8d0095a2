"""Jobs: a service's own background work, run at least once, with retries, deadlines and keys.

`open_queue` opens a declared queue to submit to it; `Worker` runs its jobs. The history of every
job is on the stream JOBS, which the authority's job administration reads.
"""

from accord.fabric.jobs.queue import JobKeys, JobQueue, JobStreams, open_queue
from accord.fabric.jobs.worker import GiveUpError, JobContext, JobHandler, Worker
from accord.fabric.rules.jobs import (
    NO_SLOTS,
    Job,
    JobEvent,
    KeyPolicy,
    KeySlots,
    QueueTerms,
    read_job,
    write_event,
)

__all__ = [
    "NO_SLOTS",
    "GiveUpError",
    "Job",
    "JobContext",
    "JobEvent",
    "JobHandler",
    "JobKeys",
    "JobQueue",
    "JobStreams",
    "KeyPolicy",
    "KeySlots",
    "QueueTerms",
    "Worker",
    "open_queue",
    "read_job",
    "write_event",
]
