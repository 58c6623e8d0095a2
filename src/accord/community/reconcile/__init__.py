"""Range-based set reconciliation: two logs become equal in few round trips and few bytes. Pure.

`Index` holds what a node has, `Initiator` asks, `respond` answers. Requests and replies are bytes;
who carries them, and who verifies the events that come with them, is decided elsewhere.
"""

from accord.community.reconcile.index import Index, Item
from accord.community.reconcile.message import MAX_BODY, SALT_BYTES, Body, Limits
from accord.community.reconcile.session import Answer, Initiator, respond
from accord.community.reconcile.turn import Fetch

__all__ = [
    "MAX_BODY",
    "SALT_BYTES",
    "Answer",
    "Body",
    "Fetch",
    "Index",
    "Initiator",
    "Item",
    "Limits",
    "respond",
]
