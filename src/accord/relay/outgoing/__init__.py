"""Requests that go out to addresses which others chose: wake pokes, webhooks, media.

Whoever names a URL must not be able to make the connector knock on doors inside its own network.
`policy` decides purely about URLs and addresses; `guard` resolves a name once, asks it, and
connects to the very address that was judged.
"""

from accord.relay.outgoing.guard import GuardedTransport, guarded_client
from accord.relay.outgoing.policy import (
    OutgoingPolicy,
    Verdict,
    address_allowed,
    url_allowed,
)

__all__ = [
    "GuardedTransport",
    "OutgoingPolicy",
    "Verdict",
    "address_allowed",
    "guarded_client",
    "url_allowed",
]
