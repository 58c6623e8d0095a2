"""Jobs: the service's own work, done at least once, with tries, deadlines and keys.

`open_queue` gives the queue that a contract declares, to submit to it; `Worker` works on it. What
happens to a job is told on the stream JOBS, where the authority's jobs administration reads it.
"""

from accord.fabric.jobs.context import GiveUpError, JobContext
from accord.fabric.jobs.events import Happened, Job
from accord.fabric.jobs.queue import Keyed, Queue
from accord.fabric.jobs.submitting import JobQueue, open_queue
from accord.fabric.jobs.worker import Handler, Worker

__all__ = [
    "GiveUpError",
    "Handler",
    "Happened",
    "Job",
    "JobContext",
    "JobQueue",
    "Keyed",
    "Queue",
    "Worker",
    "open_queue",
]
