"""Grants: which subjects a session may publish and subscribe to, and why (section 16).

They follow from what the contract owns and uses, what its uses lead to, which capabilities the
session holds, and which resources are bound to the deployment; nothing else adds to them. Each
subject carries its reasons. What a service may do with a message on a subject that it shares with
other actions (a control frame) is for the service to check.
"""

from accord.contracts.permissions.bindings import BOUND, Bindings, BoundRule, Consumer, Queue
from accord.contracts.permissions.derive import Grants, Role, grants, inbox_prefix, session_prefix
from accord.contracts.permissions.rules import OWNED, USED, SurfaceRule

__all__ = [
    "BOUND",
    "OWNED",
    "USED",
    "Bindings",
    "BoundRule",
    "Consumer",
    "Grants",
    "Queue",
    "Role",
    "SurfaceRule",
    "grants",
    "inbox_prefix",
    "session_prefix",
]
