"""The authority over HTTP: sessions bootstrap, people log in, operators look after it."""

from accord.authority.http.app import ensure_token, routes
from accord.authority.http.exchange import RateLimit, RateLimitedError, Refusals
from accord.authority.http.sessions import SILENCE_SECONDS, NatsTransport, PlanRequesters

__all__ = [
    "SILENCE_SECONDS",
    "NatsTransport",
    "PlanRequesters",
    "RateLimit",
    "RateLimitedError",
    "Refusals",
    "ensure_token",
    "routes",
]
