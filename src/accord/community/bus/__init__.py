"""The signed bus: calls between devices that trust keys, not addresses.

`rules.checks` lists the checks of a call, `exchange` and `calls` make them; `calls` has what a node
offers and runs it; `ledger` remembers requests across restarts; `topics` sends to subscribers;
`server` has the HTTP routes.
"""

from accord.community.bus.calls import Call, Frame, Offer, Registry
from accord.community.bus.exchange import AdmittedRequest, Rates
from accord.community.bus.ledger import (
    BUS_STORE,
    CALL_STREAM,
    MAX_KEPT_ANSWER,
    CallLedger,
    open_ledger,
)
from accord.community.bus.server import Bus, member_routes, public_routes
from accord.community.bus.topics import (
    MAX_TOPIC_BYTES,
    MAX_TOPIC_MESSAGES,
    TOPICS,
    Audience,
    TopicListener,
    Topics,
    check_listener,
)
from accord.community.rules.checks import CHECKS
from accord.community.settings import BusSettings, RateLimits, UnsignedCalls

__all__ = [
    "BUS_STORE",
    "CALL_STREAM",
    "CHECKS",
    "MAX_KEPT_ANSWER",
    "MAX_TOPIC_BYTES",
    "MAX_TOPIC_MESSAGES",
    "TOPICS",
    "AdmittedRequest",
    "Audience",
    "Bus",
    "BusSettings",
    "Call",
    "CallLedger",
    "Frame",
    "Offer",
    "RateLimits",
    "Rates",
    "Registry",
    "TopicListener",
    "Topics",
    "UnsignedCalls",
    "check_listener",
    "member_routes",
    "open_ledger",
    "public_routes",
]
