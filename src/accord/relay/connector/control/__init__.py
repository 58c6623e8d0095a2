"""The control half of the connector: who is who, and who may do what.

Gateways and their secrets, enrolment, provisioning, links, bindings, grants, policies, the vault
and the wake poke. It gives delivery a `Directory` (`StoreDirectory` in the store), people and
programs a `Control`, and HTTP its `ControlRoutes`. It moves no message.
"""

from accord.relay.connector.control.control import Control
from accord.relay.connector.control.directory import (
    Capability,
    ConnectorHandle,
    Dialect,
    Directory,
    LinkReply,
    Principal,
    Vault,
    close_reason,
)
from accord.relay.connector.control.enrolment import Credentials, Provisioning
from accord.relay.connector.control.handed import EnrolmentToken, LinkCode, Rotated
from accord.relay.connector.control.housekeeping import Housekeeping
from accord.relay.connector.control.http import ControlRoutes
from accord.relay.connector.control.keyring import Keyring
from accord.relay.connector.control.managed import ManagedTokens, load_keys
from accord.relay.connector.control.records import Instance
from accord.relay.connector.control.settings import ControlSettings
from accord.relay.connector.control.stored import StoreDirectory

__all__ = [
    "Capability",
    "ConnectorHandle",
    "Control",
    "ControlRoutes",
    "ControlSettings",
    "Credentials",
    "Dialect",
    "Directory",
    "EnrolmentToken",
    "Housekeeping",
    "Instance",
    "Keyring",
    "LinkCode",
    "LinkReply",
    "ManagedTokens",
    "Principal",
    "Provisioning",
    "Rotated",
    "StoreDirectory",
    "Vault",
    "close_reason",
    "load_keys",
]
