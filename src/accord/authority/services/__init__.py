"""The built-in services: the authority implements its own contracts with `accord.fabric`."""

from accord.authority.services.jobs import JobsView, fold_job_event, follow_jobs
from accord.authority.services.server import connection_announcer, serve_builtins
from accord.authority.services.state import StateService

__all__ = [
    "JobsView",
    "StateService",
    "connection_announcer",
    "fold_job_event",
    "follow_jobs",
    "serve_builtins",
]
