"""The library that services, apps and devices import to work under a contract, over NATS.

A participant presents its contract to the authority, gets a session with the permissions that were
accepted, and then calls, answers, publishes and listens within them. Payloads are validated on both
ends, requests are signed, and every error is a `FabricError`.
"""

from accord.fabric.app import App
from accord.fabric.callers import Caller
from accord.fabric.connection import Authority
from accord.fabric.events import Received
from accord.fabric.link import Link
from accord.fabric.requests import Request
from accord.fabric.rules.errors import (
    BootstrapError,
    ConflictError,
    DeadlineError,
    FabricError,
    NotFoundError,
    RemoteError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
    read_error,
    write_error,
)
from accord.fabric.rules.proofs import ReplayWindow, RequestSignature
from accord.fabric.rules.terms import (
    Event,
    Rpc,
    Terms,
    event_on,
    event_pattern,
    event_subject,
    missing_surface,
)
from accord.fabric.server import Server
from accord.fabric.service import Device, Service
from accord.fabric.session import Client, Session

__all__ = [
    "App",
    "Authority",
    "BootstrapError",
    "Caller",
    "Client",
    "ConflictError",
    "DeadlineError",
    "Device",
    "Event",
    "FabricError",
    "Link",
    "NotFoundError",
    "Received",
    "RemoteError",
    "ReplayWindow",
    "Request",
    "RequestSignature",
    "Rpc",
    "Server",
    "Service",
    "Session",
    "Terms",
    "UnauthorizedError",
    "UnavailableError",
    "ValidationError",
    "event_on",
    "event_pattern",
    "event_subject",
    "missing_surface",
    "read_error",
    "write_error",
]
