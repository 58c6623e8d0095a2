"""`trellis.jobs@v1`: administration of everybody's jobs."""

from typing import Any

from pydantic import Field

from accord.authority.contracts.wire import Payload
from accord.contracts.authoring import Contract

ID = "trellis.jobs@v1"
ADMIN_READ = "trellis.jobs::admin.read"
ADMIN_MUTATE = "trellis.jobs::admin.mutate"

MAX_PAGE = 500


class JobRef(Payload):
    """Which job."""

    job_id: str = Field(min_length=1, max_length=128)


class JobEntry(Payload):
    """Where a job stands."""

    job_id: str
    service: str
    job_type: str
    state: str
    tries: int
    max_tries: int | None = None
    error: Any = None
    progress: Any = None
    deadline: str | None = None
    created_at: str
    updated_at: str


class JobDetail(JobEntry):
    """A job with what it was given and what it came to."""

    payload: Any = None
    result: Any = None
    context: Any = None
    logs: list[Any] | None = None


class JobsList(Payload):
    """Which jobs, the latest first."""

    service: str | None = Field(default=None, max_length=256)
    job_type: str | None = Field(default=None, max_length=256)
    state: list[str] | None = Field(default=None, max_length=16)
    before: str | None = Field(default=None, max_length=128)
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class JobsPage(Payload):
    """A page; `next` is the `before` of the following one, where there is one."""

    jobs: list[JobEntry]
    next: str | None = None


class JobReply(Payload):
    """The job, with everything."""

    job: JobDetail


class JobChanged(Payload):
    """The job as the change leaves it."""

    job: JobEntry


def contract() -> Contract:
    """The contract, as it is written."""
    jobs = Contract(
        ID,
        display_name="Trellis jobs",
        description="See everybody's jobs; retry, dismiss and cancel them.",
    )
    jobs.capability("admin.read", "Read jobs", "View the jobs of every service, dead ones too.")
    jobs.capability(
        "admin.mutate",
        "Change jobs",
        "Retry, dismiss or cancel the jobs of any service.",
        consequence="Can run work again, or keep it from running.",
    )
    for kind in ("NotFoundError", "ConflictError"):
        jobs.error(kind)
    jobs.rpc("Jobs.List", JobsList, JobsPage, call=["admin.read"])
    jobs.rpc("Jobs.Get", JobRef, JobReply, call=["admin.read"], errors=["NotFoundError"])
    for name in ("Retry", "Dismiss", "Cancel"):
        jobs.rpc(
            f"Jobs.{name}",
            JobRef,
            JobChanged,
            call=["admin.mutate"],
            errors=["NotFoundError", "ConflictError"],
        )
    return jobs
