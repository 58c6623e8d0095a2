"""The built-in services: the authority implements its own contracts with `accord.fabric`."""

from accord.authority.services.auth import connection_announcer
from accord.authority.services.jobs import (
    JobHistory,
    JobStep,
    JobsView,
    fold_job_event,
    follow_jobs,
)
from accord.authority.services.state import StateService

__all__ = [
    "JobHistory",
    "JobStep",
    "JobsView",
    "StateService",
    "connection_announcer",
    "fold_job_event",
    "follow_jobs",
]
