"""People who log in, what they allow clients to do, and devices that they activate."""

from accord.authority.identities.devices import ACTIVATE
from accord.authority.identities.login import hash_password, verify_password
from accord.authority.identities.service import Identities
from accord.authority.rules.records import (
    Access,
    Consent,
    ConsentAnswer,
    DeviceActivation,
    LoginFlow,
    Person,
    PortalKind,
    Review,
)

__all__ = [
    "ACTIVATE",
    "Access",
    "Consent",
    "ConsentAnswer",
    "DeviceActivation",
    "Identities",
    "LoginFlow",
    "Person",
    "PortalKind",
    "Review",
    "hash_password",
    "verify_password",
]
