"""People who log in, what they allow clients to do, and devices that they activate."""

from accord.authority.identities.devices import ACTIVATE
from accord.authority.identities.login import hash_password, verify_password
from accord.authority.identities.service import Identities
from accord.authority.rules.records import (
    Access,
    Consent,
    ConsentAnswer,
    DeviceActivation,
    GrantOverride,
    LoginFlow,
    LoginFlowState,
    Person,
    Portal,
    PortalKind,
    Review,
)

__all__ = [
    "ACTIVATE",
    "Access",
    "Consent",
    "ConsentAnswer",
    "DeviceActivation",
    "GrantOverride",
    "Identities",
    "LoginFlow",
    "LoginFlowState",
    "Person",
    "Portal",
    "PortalKind",
    "Review",
    "hash_password",
    "verify_password",
]
