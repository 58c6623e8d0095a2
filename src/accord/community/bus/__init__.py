"""The signed bus: calls between devices that trust keys, not addresses.

`checks` is the table of what a call must pass; `door` and `calling` make the checks; `registry`
holds what a node offers; `ledger` remembers requests over restarts; `streams` and `topics` speak
over time; `routing` chooses among providers; `server` puts it behind HTTP.
"""

from accord.community.bus.checks import CHECKS, Check, Commons
from accord.community.bus.door import Guest
from accord.community.bus.ledger import SCHEMA as BUS_STORE
from accord.community.bus.ledger import Ledger, open_ledger
from accord.community.bus.legacy import Legacy
from accord.community.bus.public import public_routes
from accord.community.bus.rates import Limits
from accord.community.bus.registry import Call, Frame, Handler, Offer, Registry
from accord.community.bus.server import Bus
from accord.community.bus.settings import BusSettings
from accord.community.bus.topics import TOPICS, Audience, Topics

__all__ = [
    "BUS_STORE",
    "CHECKS",
    "TOPICS",
    "Audience",
    "Bus",
    "BusSettings",
    "Call",
    "Check",
    "Commons",
    "Frame",
    "Guest",
    "Handler",
    "Ledger",
    "Legacy",
    "Limits",
    "Offer",
    "Registry",
    "Topics",
    "open_ledger",
    "public_routes",
]
