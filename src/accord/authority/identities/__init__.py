"""Identities: people who log in, what they let clients do, and devices that they activate.

The authority knows sessions; how one becomes a person's or a device's is decided here.
"""

from accord.authority.identities.identities import Identities
from accord.authority.identities.records import (
    Access,
    Activation,
    Answer,
    Consent,
    Login,
    LoginState,
    Override,
    Person,
    Portal,
    PortalKind,
    Review,
)

__all__ = [
    "Access",
    "Activation",
    "Answer",
    "Consent",
    "Identities",
    "Login",
    "LoginState",
    "Override",
    "Person",
    "Portal",
    "PortalKind",
    "Review",
]
