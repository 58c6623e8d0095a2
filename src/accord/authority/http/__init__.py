"""The authority over HTTP: sessions bootstrap, people log in, operators look after it."""

from accord.authority.http.app import routes
from accord.authority.http.sessions import Transport

__all__ = ["Transport", "routes"]
