"""The library that services, apps and devices import to work under a contract, over NATS.

A participant presents its contract to the authority, gets a session with the permissions that were
accepted, and then calls, answers, publishes and listens within them. Payloads are validated on both
ends, requests are signed, and every error is a `FabricError`.
"""

from accord.fabric.app import App, Login
from accord.fabric.connection import Authority
from accord.fabric.events import Received
from accord.fabric.jobs import GiveUpError, JobContext, JobQueue
from accord.fabric.kv import KeyValue, KvValue
from accord.fabric.link import Link
from accord.fabric.objects import ObjectStore
from accord.fabric.operations import OperationContext, Progress, Run, Signal, Signals, Snapshot
from accord.fabric.packages import warn_of_two_versions
from accord.fabric.requests import Caller, Request
from accord.fabric.rules.errors import (
    BootstrapError,
    ConflictError,
    DeadlineError,
    DeclaredError,
    FabricError,
    NotFoundError,
    RemoteError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
    read_error,
    write_error,
)
from accord.fabric.rules.models import Model, model_of
from accord.fabric.rules.proofs import ReplayWindow, RequestSignature
from accord.fabric.rules.terms import (
    Event,
    Rpc,
    StateEntry,
    Terms,
    event_on,
    event_pattern,
    event_subject,
    missing_surface,
)
from accord.fabric.rules.transfers import ObjectInfo
from accord.fabric.server import Server
from accord.fabric.service import Device, Service
from accord.fabric.session import Client, Publisher, Session
from accord.fabric.state import StateMap, StateValue
from accord.fabric.transfer import Downloads, download, upload
from accord.fabric.typed_service import TypedService

__all__ = [
    "App",
    "Authority",
    "BootstrapError",
    "Caller",
    "Client",
    "ConflictError",
    "DeadlineError",
    "DeclaredError",
    "Device",
    "Downloads",
    "Event",
    "FabricError",
    "GiveUpError",
    "JobContext",
    "JobQueue",
    "KeyValue",
    "KvValue",
    "Link",
    "Login",
    "Model",
    "NotFoundError",
    "ObjectInfo",
    "ObjectStore",
    "OperationContext",
    "Progress",
    "Publisher",
    "Received",
    "RemoteError",
    "ReplayWindow",
    "Request",
    "RequestSignature",
    "Rpc",
    "Run",
    "Server",
    "Service",
    "Session",
    "Signal",
    "Signals",
    "Snapshot",
    "StateEntry",
    "StateMap",
    "StateValue",
    "Terms",
    "TypedService",
    "UnauthorizedError",
    "UnavailableError",
    "ValidationError",
    "download",
    "event_on",
    "event_pattern",
    "event_subject",
    "missing_surface",
    "model_of",
    "read_error",
    "upload",
    "write_error",
]

warn_of_two_versions()
