"""What a service, an app or a device imports to work under its contract, over NATS.

A participant presents its contract to the authority, is let in as what was accepted, and then
calls, answers, publishes and listens within that. Payloads are checked on both ends, requests are
signed, and every error is a `FabricError`.
"""

from accord.fabric.app import App
from accord.fabric.bootstrap import Authority
from accord.fabric.callers import Caller
from accord.fabric.client import Client
from accord.fabric.device import Device
from accord.fabric.errors import (
    BootstrapError,
    ConflictError,
    DeadlineError,
    FabricError,
    NotFoundError,
    RemoteError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
)
from accord.fabric.events import Received
from accord.fabric.link import Link
from accord.fabric.reception import Request
from accord.fabric.server import Server
from accord.fabric.service import Service
from accord.fabric.session import Session
from accord.fabric.terms import Terms

__all__ = [
    "App",
    "Authority",
    "BootstrapError",
    "Caller",
    "Client",
    "ConflictError",
    "DeadlineError",
    "Device",
    "FabricError",
    "Link",
    "NotFoundError",
    "Received",
    "RemoteError",
    "Request",
    "Server",
    "Service",
    "Session",
    "Terms",
    "UnauthorizedError",
    "UnavailableError",
    "ValidationError",
]
